"""A disk that is full, broken, or writes less than requested, at any call of a run."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import faults
import pytest
from forked import Forked
from scenarios import ENDS, FLAGS, SCENARIOS, Case, check_message, check_whole
from small_tars import contents


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_that_ends_at_any_call_is_completed_by_the_next(stage, tmp_path, torture, scenario):
    """Killed, or with any answer of the disk, and then it says what the disk refused."""
    case = Case(stage, tmp_path / "case", scenario)
    rounds = case.end_at_any_call(torture, ENDS, 1, 60)
    if torture.full:
        rounds += case.end_at_any_call(torture, ["the disk is full"], 1, 10_000)
    torture.record(f"ended at a call: {scenario}", rounds, "all resumed to the undisturbed pack")


def test_an_error_at_a_call_of_a_run_with_workers_is_handled_the_same(stage, tmp_path, torture):
    case, errors = Case(stage, tmp_path / "case", "fresh"), 0
    for _ in range(torture.rounds(2, 40)):
        case.begin()
        plan = case.plan("error", at=torture.rng.randrange(150), calls=faults.SPACE)
        code, said = case.run(plan.apply, workers=2)
        if not case.hits():
            assert code == 0, said
            continue
        errors += 1
        case.check_said(code, said, errno.ENOSPC)
        case.check_readable()
        case.check_completed_by_the_next()
    assert errors > 0
    torture.record("a full disk, with workers: error at a call", errors, "all said so, resumed")


def test_short_writes_are_completed(stage, tmp_path, torture):
    case, rounds = Case(stage, tmp_path / "case", "fresh"), torture.rounds(1, 10)
    for call_number in range(rounds):
        case.begin()
        code, said = case.run(case.plan("short", at=call_number, calls=("pwrite",)).apply)
        assert code == 0, said
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
    # What is left of it would be refused before anything is written, if that is not enough.
    flags = "--ignore-space", *FLAGS
    command = ("pack", *stage.tars, "--output", root, "--workers", 1, *flags)
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
