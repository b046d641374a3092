"""One mechanism, two sizes: a few rounds under `make test`, all of them with --torture.

A test takes the fixture `torture`, asks it for its number of rounds and for random numbers, and
records what it found; the records become the table that ends the run.
"""

import random
import time
from dataclasses import dataclass, field

import pytest

_RESULTS = pytest.StashKey[list["Result"]]()


@dataclass(frozen=True)
class Result:
    """One line of the table: what was done how often, what came of it, and the seconds it took."""

    name: str
    rounds: int
    outcome: str
    seconds: float


@dataclass
class Torture:
    """What a torture test is given.

    full
        Whether the full form was asked for.
    rng
        Random numbers that follow from --torture-seed and the test's name alone.
    """

    full: bool
    rng: random.Random
    results: list[Result]
    _since: float = field(default_factory=time.monotonic)

    def rounds(self, short: int, full: int) -> int:
        """The number of rounds of the form that runs."""
        return full if self.full else short

    def record(self, name: str, rounds: int, outcome: str) -> None:
        """Enter a result; its time is that since the test, or since its record before."""
        now = time.monotonic()
        self.results.append(Result(name, rounds, outcome, now - self._since))
        self._since = now


@pytest.fixture
def torture(request) -> Torture:
    """Size, random numbers and results of a torture test."""
    seed = request.config.getoption("torture_seed")
    return Torture(
        full=request.config.getoption("torture"),
        rng=random.Random(f"{seed} {request.node.nodeid}"),
        results=request.config.stash.setdefault(_RESULTS, []),
    )


def pytest_terminal_summary(terminalreporter, config) -> None:
    """Print the table of results, as docs/reliability.md shows it."""
    results = config.stash.get(_RESULTS, [])
    if not results or not config.getoption("torture"):
        return
    terminalreporter.section(f"torture, seed {config.getoption('torture_seed')}")
    rows = [("what", "rounds", "found", "seconds"), ("---", "--:", "---", "--:")]
    rows += [(r.name, f"{r.rounds:,}", r.outcome, f"{r.seconds:.0f}") for r in results]
    for row in rows:
        terminalreporter.write_line(f"| {' | '.join(row)} |")
