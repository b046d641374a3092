"""A disk that is full, broken, or writes less than requested, at any call of a run."""

import errno
import functools
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
from forked import Forked
from scenarios import FLAGS, Case, check_message, check_whole
from small_tars import contents

ALWAYS = 1 << 60
ERRORS = [
    ("a full disk", errno.ENOSPC, faults.SPACE, ALWAYS),
    ("a used-up quota", errno.EDQUOT, faults.SPACE, ALWAYS),
    ("a disk that fails once", errno.EIO, faults.CALLS, 1),
    ("a disk that fails from then on", errno.EIO, faults.CALLS, ALWAYS),
]


@pytest.fixture(scope="module")
def total_of(stage, tmp_path_factory):
    """total_of(scenario, calls): the number of these calls of the undisturbed run."""
    folder = tmp_path_factory.mktemp("counted") / "case"
    return functools.cache(lambda scenario, calls: Case(stage, folder, scenario).calls(calls=calls))


@pytest.fixture
def case_of(stage, tmp_path):
    """case_of(scenario): a new Case that replaces the previous one."""
    return lambda scenario: Case(stage, tmp_path / "case", scenario)


@pytest.mark.parametrize(("name", "code", "calls", "count"), ERRORS, ids=[e[0] for e in ERRORS])
def test_an_error_at_any_call_ends_the_run_and_the_next_one_completes_it(
    case_of, total_of, torture, name, code, calls, count
):
    found = Counter()
    for scenario, short, full in (("fresh", 1, 20), ("added", 1, 60), ("withdrawn", 1, 20)):
        # The additional calls of a new folder come first, before it is a pack.
        total = 60 if scenario == "fresh" else total_of(scenario, calls)
        every = code == errno.ENOSPC and scenario != "withdrawn"
        rounds = torture.rounds(short, total if every else full)
        for at in torture.rng.sample(range(total), min(rounds, total)):
            case = case_of(scenario)
            plan = case.plan("error", at=at, code=code, calls=calls, count=count)
            ended, said = case.run(plan.apply)
            if not case.hits():  # the number of calls varies slightly with timing
                assert ended == case.code, said
                continue
            hit = (scenario, at, *case.hits()[0])
            assert ended == 4, (hit, said)
            check_message(said, code, case.root)
            case.check_readable()
            case.check_completed_by_the_next()
            found[hit[2]] += 1
    assert found.total() > 0
    torture.record(f"{name}: error at a call", found.total(), "all said so and were resumed")


def test_an_error_at_a_call_of_a_run_with_workers_is_handled_the_same(case_of, torture):
    rounds = torture.rounds(2, 40)
    found = 0
    for _ in range(rounds):
        case = case_of("fresh")
        plan = case.plan("error", at=torture.rng.randrange(150), calls=faults.SPACE)
        ended, said = case.run(plan.apply, workers=2)
        if not case.hits():
            assert ended == 0, said
            continue
        found += 1
        assert ended == 4, said
        check_message(said, errno.ENOSPC, case.root)
        case.check_readable()
        case.check_completed_by_the_next()
    assert found > 0
    torture.record("a full disk, with workers: error at a call", found, "all said so, resumed")


def test_short_writes_are_completed(case_of, stage, torture):
    rounds = torture.rounds(1, 10)
    for _ in range(rounds):
        case = case_of("fresh")
        plan = case.plan("short", calls=("pwrite",))
        ended, said = case.run(plan.apply)
        assert ended == 0, said
        assert len(case.hits()) > 50
        assert contents(case.root) == stage.expected
    torture.record("every write ends short", rounds, "packs as undisturbed")


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """An empty file system in memory; `resize` changes its size."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "sa1bpack-test", folder], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not possible here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def resize(folder: Path, limit: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{limit}", folder], check=True)


@pytest.mark.parametrize("unit", ["bytes", "inodes"])
def test_a_real_full_disk_is_an_error_until_it_is_enlarged(
    stage, small_disk, tmp_path, torture, unit
):
    root = small_disk / "pack"
    command = ("pack", *stage.tars, "--output", root, "--workers", 1, *FLAGS)
    largest = 1_300_000 if unit == "bytes" else 230  # the pack needs slightly more
    steps = torture.rounds(2, 25)
    failed = 0
    for limit in sorted(torture.rng.randrange(largest // 30, largest) for _ in range(steps)):
        resize(small_disk, f"size={limit}" if unit == "bytes" else f"size=9m,nr_inodes={limit}")
        code, said = Forked(*command, log=tmp_path / "log").wait()
        if code == 0:
            continue
        failed += 1
        assert code == 4, said
        check_message(said, errno.ENOSPC, root)
        check_whole(root)
    assert failed > 0
    resize(small_disk, "size=9m,nr_inodes=9999")
    code, said = Forked(*command, log=tmp_path / "log").wait()
    assert code == 0, said
    assert contents(root) == stage.expected
    torture.record(f"a small file system, short of {unit}", failed, "all said so and were resumed")
