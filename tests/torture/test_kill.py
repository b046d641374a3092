"""Packers and workers that are killed, stopped, or started twice: nothing is lost or partial."""

import os
import random
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from commands import finish, pack_command, published, start, temporaries, workers_of
from forked import Forked
from scenarios import check_whole
from small_tars import contents, members, pack_small, write_tar


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> list[Path]:
    """Three tars of five shards each, with rejects."""
    folder = tmp_path_factory.mktemp("tars")
    found = []
    for tar in range(3):
        listed = members(range(100 * tar, 100 * tar + 19))
        listed[f"./sa_{100 * tar + 7}.json"] = b"{"
        found.append(write_tar(folder / f"sa_00000{tar}.tar", listed, shuffle=tar))
    return found


@pytest.fixture(scope="module")
def expected(tars, tmp_path_factory) -> dict[str, bytes]:
    """The contents of an undisturbed pack of them."""
    root = tmp_path_factory.mktemp("whole") / "pack"
    pack_small(tars, root)
    return contents(root)


class Runs:
    """Runs into one folder, any of which may be disturbed."""

    def __init__(self, tars: list[Path], folder: Path, rng: random.Random):
        self.root = folder / "measured"
        self._tars = tars
        self._log = folder / "log"
        self._rng = rng
        self._seconds = 0.0

    def start(self, workers: int) -> Forked:
        return Forked(*pack_command(self._tars, self.root, workers=workers), log=self._log)

    def measure(self) -> None:
        """Measure the duration of a run from its first working folder on, with one worker."""
        run = self.start(1)
        self._wait_for_work(run)
        begun = time.monotonic()
        assert run.wait()[0] == 0
        self._seconds = time.monotonic() - begun

    def wait_for_a_moment(self, run: Forked) -> None:
        """Wait for a random moment of a run: one in six during start-up, the others later."""
        if self._rng.random() < 1 / 6:
            self._sleep(run, self._rng.uniform(0, 0.3))
            return
        self._wait_for_work(run)
        # The work of earlier runs shortens this one.
        left = 1 - published(self.root) / 16
        self._sleep(run, self._rng.uniform(0, self._seconds * left))

    def _wait_for_work(self, run: Forked) -> None:
        run.wait_until(lambda: list(self.root.glob("shards/.tmp-*")))

    @staticmethod
    def _sleep(run: Forked, seconds: float) -> None:
        end = time.monotonic() + seconds
        run.wait_until(lambda: time.monotonic() >= end)


@pytest.fixture
def runs(tars, tmp_path, torture) -> Runs:
    return Runs(tars, tmp_path, torture.rng)


def kill(run: Forked, whom: str, rng: random.Random) -> bool:
    """Send SIGKILL to the packer, one of its workers, or all at once. False if it had ended."""
    workers = workers_of(run.pid)
    if run.ended():
        return False
    if whom == "worker" and workers:
        with suppress(psutil.NoSuchProcess):
            rng.choice(workers).kill()
    elif whom == "all":
        os.killpg(run.pid, signal.SIGKILL)
    else:
        os.kill(run.pid, signal.SIGKILL)
    if whom != "worker" or not workers:
        run.wait()
    _, left = psutil.wait_procs(workers if run.ended() else [], timeout=60)
    assert left == []
    return True


def test_runs_killed_at_random_moments_produce_the_undisturbed_pack(
    runs, expected, tmp_path, torture
):
    runs.measure()
    goal = torture.rounds(2, 200)
    packs, kills, shards = 0, Counter(), Counter()
    while kills.total() < goal:
        runs.root = tmp_path / f"pack{packs}"
        for _ in range(torture.rng.randint(1, 6)):
            workers = torture.rng.randint(1, 3)
            whom = torture.rng.choice(("packer", "worker", "all") if workers > 1 else ("packer",))
            run = runs.start(workers)
            runs.wait_for_a_moment(run)
            if kill(run, whom, torture.rng):
                kills[whom] += 1
                shards[published(runs.root) * 4 // 16] += 1
            code, said = run.wait()
            # If a worker ends before it took work, it is unknown whether workers can start.
            assert code in (0, -signal.SIGKILL) or "before it took work" in said, said
            check_whole(runs.root)
        code, said = runs.start(torture.rng.randint(1, 3)).wait()
        assert code == 0, said
        assert contents(runs.root) == expected
        assert temporaries(runs.root) == []
        packs += 1
    if torture.full:
        assert all(shards[quarter] >= goal // 20 for quarter in range(4)), shards
    whom = ", ".join(f"{whom} {count}" for whom, count in sorted(kills.items()))
    torture.record(
        f"SIGKILL at random ({whom})", kills.total(), f"{packs} packs, all as undisturbed"
    )


@pytest.mark.parametrize(
    ("sent", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_at_a_random_moment_stops_tidily(
    runs, expected, tmp_path, torture, sent, code, word
):
    runs.measure()
    codes = Counter()
    goal = torture.rounds(1, 30)
    while codes[code] < goal:
        runs.root = tmp_path / f"pack{codes.total()}"
        workers = torture.rng.choice((1, 2))
        run = runs.start(workers)
        # Earlier, it may not have its handlers yet (see the next test).
        run.wait_until(lambda: (runs.root / ".lock").exists())
        runs.wait_for_a_moment(run)
        processes = workers_of(run.pid)
        with suppress(ProcessLookupError):
            # A terminal and a job scheduler signal all processes, `kill` only the packer.
            torture.rng.choice((os.kill, os.killpg))(run.pid, sent)
        found, said = run.wait()
        codes[found] += 1
        assert psutil.wait_procs(processes, timeout=60)[1] == []
        if found != 0:
            assert found == code, said
            advice = "repeat the same command to continue from here"
            if "\nthis run: " in said:  # it came when all was done and reported
                assert said.endswith(f"\nsa1bpack: {word}\n")
                assert contents(runs.root) == expected
            else:
                assert said == f"sa1bpack: {word}\nsa1bpack: {advice}\n"
        check_whole(runs.root)
        found, said = runs.start(workers).wait()
        assert found == 0, said
        assert contents(runs.root) == expected
    torture.record(f"{sent.name} at random", goal, "all stopped tidily and were resumed")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_of_the_start_ends_the_run(tars, tmp_path, torture, sent):
    """In a fresh interpreter, which imports modules and loads kernels in its first second."""
    root = tmp_path / "pack"
    flags = ("--image-size", 2048, "--mask-size", 512, "--samples-per-shard", 8)
    own = {signal.SIGINT: 130, signal.SIGTERM: 143}[sent]
    rounds, codes = torture.rounds(2, 40), Counter()
    for _ in range(rounds):
        shutil.rmtree(root, ignore_errors=True)  # each time from the start: none is done too soon
        workers = torture.rng.choice((1, 2))
        process = start("pack", *tars, "--output", root, "--workers", workers, *flags)
        time.sleep(torture.rng.uniform(0, 1))
        process.send_signal(sent)
        code, _, said = finish(process)
        codes[code] += 1
        assert code != 0, said
        # Before the command has its handlers, the interpreter ends in its own way.
        if code == own:
            assert said.startswith("sa1bpack: ") and "Traceback" not in said
        else:
            assert not root.exists()
        check_whole(root)
    ends = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
    torture.record(f"{sent.name} as it starts", rounds, f"none lost (exit codes {ends})")


def test_of_two_packers_of_one_folder_one_works_and_one_is_refused(
    runs, expected, tmp_path, torture
):
    rounds = torture.rounds(2, 20)
    refused = 0
    for number in range(rounds):
        runs.root = tmp_path / f"pack{number}"
        (tmp_path / "a").mkdir(exist_ok=True)
        first = runs.start(1)
        time.sleep(torture.rng.choice((0, torture.rng.uniform(0, 0.2))))
        second = Forked(*first.arguments, log=tmp_path / "a" / "log")
        ended = [first.wait(), second.wait()]
        codes = sorted(code for code, _ in ended)
        # Both work if the second started after the first had ended.
        assert codes in ([0, 3], [0, 0]), ended
        refusals = [said for code, said in ended if code == 3]
        assert all(f"{runs.root}: another process packs into this folder" in s for s in refusals)
        refused += len(refusals)
        assert contents(runs.root) == expected
    torture.record("two packers at once", rounds, f"{refused} refused, no pack damaged")
