"""A run that dies at any moment is gone on with, and the pack is that of an undisturbed run."""

import os
import random
import shutil
import signal
import time
import warnings

import pytest
from commands import (
    SMALL_FLAGS,
    finish,
    published,
    run,
    start,
    temporaries,
    wait_until,
    workers_of,
)  # fmt: skip
from small_tars import SMALL, contents, members, write_tar

import sa1bpack
from sa1bpack.errors import FormatError

DIED = 99


def dies_at(step: int, tar, root) -> bool:
    """Pack in a forked process that ends itself, without any cleaning up, at a flush or rename.

    step
        How many of these calls succeed.

    Returns whether it got that far; if not, the pack is done.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        pid = os.fork()
    if pid == 0:
        try:
            left = iter(range(step))
            rename = os.rename

            def flush(descriptor):
                if next(left, None) is None:
                    os._exit(DIED)

            def rename_or_die(*arguments):
                flush(None)
                rename(*arguments)

            os.fsync, os.rename = flush, rename_or_die
            sa1bpack.pack(tar, root, workers=1, progress=False, **SMALL)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == DIED


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    """Three shards, a reject among them."""
    found = members(range(9))
    found["./sa_5.json"] = b"{ not json"
    return write_tar(tmp_path_factory.mktemp("resume") / "sa_000000.tar", found)


@pytest.fixture(scope="module")
def expected(tar, tmp_path_factory):
    root = tmp_path_factory.mktemp("resume") / "pack"
    sa1bpack.pack(tar, root, workers=1, **SMALL)
    return contents(root)


def test_a_run_that_dies_at_any_flush_or_rename_is_gone_on_with(tar, expected, tmp_path):
    step = moments = 0
    while dies_at(step, tar, tmp_path / str(step)):
        root = tmp_path / str(step)
        assert sa1bpack.pack(tar, root, workers=1, **SMALL).complete
        assert contents(root) == expected, step
        moments += 1
        # Every one of the first, where the folder becomes a pack; then some of each kind.
        step += 1 if step < 24 else 7
    assert moments > 40


def test_a_run_that_dies_again_and_again_gets_there(tar, expected, tmp_path):
    root = tmp_path / "pack"
    for step in (3, 17, 30, 5, 60, 90, 40, 140):
        dies_at(step, tar, root)
    assert sa1bpack.pack(tar, root, workers=1, **SMALL).complete
    assert contents(root) == expected


def test_runs_killed_at_random_moments_give_the_undisturbed_pack(long_tars, long_pack, tmp_path):
    root = tmp_path / "pack"
    rng = random.Random(5)
    killed = 0
    for whom in ("packer", "worker", "packer", "worker and packer", "packer"):
        before = published(root) if root.exists() else 0
        process = start("pack", *long_tars, "--out", root, "--workers", 2, *SMALL_FLAGS)
        goal = before + rng.randint(1, 3)
        wait_until(lambda goal=goal: published(root) >= goal, process)
        time.sleep(rng.uniform(0, 0.02))
        if "worker" in whom:
            for worker in workers_of(process.pid)[:1]:
                worker.kill()
                killed += 1
        if "packer" in whom:
            process.kill()
            killed += 1
        code, _, error = finish(process)
        # A worker may be killed so early that the run ends: it had not shown that it can start.
        assert code in (0, -signal.SIGKILL) or "before it took work" in error
    assert killed >= 4
    code, _, error = run("pack", *long_tars, "--out", root, "--workers", 2, *SMALL_FLAGS)
    assert (code, error) == (0, "")
    assert contents(root) == long_pack


@pytest.mark.parametrize(
    ("sent", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_to_all_processes_ends_the_run_tidily_and_the_next_one_completes_it(
    long_tars, long_pack, tmp_path, sent, code, word
):
    root = tmp_path / "pack"
    command = ("pack", *long_tars, "--out", root, "--workers", 2, *SMALL_FLAGS)
    process = start(*command, start_new_session=True)
    wait_until(lambda: published(root) >= 1, process)
    os.killpg(process.pid, sent)  # as a terminal and a job scheduler do
    found, _, error = finish(process)
    assert (found, error) == (
        code, f"sa1bpack: {word}\nsa1bpack: repeat the same command to go on from here\n"
    )  # fmt: skip
    assert temporaries(root) == []
    assert sa1bpack.verify(root).ok
    assert sa1bpack.pack(long_tars, root, workers=1, **SMALL).complete
    assert contents(root) == long_pack


def test_ctrl_c_while_workers_start_says_no_more_than_that(long_tars, tmp_path):
    root = tmp_path / "pack"
    command = ("pack", *long_tars, "--out", root, "--workers", 2, *SMALL_FLAGS)
    process = start(*command, start_new_session=True)
    wait_until(lambda: workers_of(process.pid), process)
    time.sleep(0.15)  # into the imports of the workers
    os.killpg(process.pid, signal.SIGINT)
    code, _, error = finish(process)
    assert code == 130
    assert error.splitlines() == [
        "sa1bpack: interrupted", "sa1bpack: repeat the same command to go on from here",
    ]  # fmt: skip


def test_a_shard_that_was_removed_is_packed_again(sources, undisturbed, tmp_path):
    root = tmp_path / "pack"
    sa1bpack.pack(sources, root, workers=1, **SMALL)
    removed = sorted(root.glob("shards/sa_*"))[1]
    shutil.rmtree(removed)
    assert sa1bpack.pack(sources, root, workers=1, **SMALL).new_images > 0
    assert contents(root) == undisturbed


def test_a_damaged_shard_ends_the_run_and_the_message_mends_it(sources, undisturbed, tmp_path):
    root = tmp_path / "pack"
    sa1bpack.pack(sources, root, workers=1, **SMALL)
    damaged = sorted(root.glob("shards/sa_*"))[0]
    os.truncate(damaged / "bbox" / "c.0.0", 5)
    with pytest.raises(FormatError, match=r"Remove the folder .* and repeat") as caught:
        sa1bpack.pack(sources, root, workers=1, **SMALL)
    assert str(damaged) in str(caught.value)
    shutil.rmtree(damaged)
    sa1bpack.pack(sources, root, workers=1, **SMALL)
    assert contents(root) == undisturbed
