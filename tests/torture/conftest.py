"""One mechanism, two sizes: a few rounds in `make test`, all of them with --torture.

A test uses the fixture `torture` for its number of rounds and random numbers, and records its
results, which become the table at the end of the run.
"""

import random
import time
from dataclasses import dataclass, field

import pytest
from s3_server import s3_process  # noqa: F401 - a fixture
from scenarios import Stage

Row = tuple[str, str, str, str]  # what was done, how often, the outcome, the seconds it took
_RESULTS = pytest.StashKey[list[Row]]()


@dataclass
class Torture:
    """The fixture of a torture test.

    Attributes:
        full: whether the full size was requested.
        seed: --torture-seed.
        rng: random numbers that depend only on --torture-seed and the name of the test.
    """

    full: bool
    seed: int
    rng: random.Random
    results: list[Row]
    _since: float = field(default_factory=time.monotonic)

    def rounds(self, short: int, full: int) -> int:
        """The number of rounds for the requested size."""
        return full if self.full else short

    def record(self, name: str, rounds: int, outcome: str) -> None:
        """Add a result; its time counts from the start of the test or from its last record."""
        now = time.monotonic()
        self.results.append((name, f"{rounds:,}", outcome, f"{now - self._since:.0f}"))
        self._since = now


@pytest.fixture(scope="session")
def stage(tmp_path_factory) -> Stage:
    """Tars, and undisturbed packs of them, which no test changes."""
    return Stage(tmp_path_factory.mktemp("stage"))


@pytest.fixture
def torture(request) -> Torture:
    """Size, random numbers and results of a torture test."""
    seed = request.config.getoption("torture_seed")
    return Torture(
        full=request.config.getoption("torture"),
        seed=seed,
        rng=random.Random(f"{seed} {request.node.nodeid}"),
        results=request.config.stash.setdefault(_RESULTS, []),
    )


def pytest_terminal_summary(terminalreporter, config) -> None:
    """Print the table of results, as shown in docs/decisions/0017-reliability-tests.md."""
    results = config.stash.get(_RESULTS, [])
    if not results or not config.getoption("torture"):
        return
    terminalreporter.section(f"torture, seed {config.getoption('torture_seed')}")
    for row in (("what", "rounds", "found", "seconds"), ("---", "--:", "---", "--:"), *results):
        terminalreporter.write_line(f"| {' | '.join(row)} |")
