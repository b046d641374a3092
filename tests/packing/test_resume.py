"""A run that was stopped is resumed, and the pack is that of an undisturbed run.

Runs that are killed: tests/torture/test_kill.py.
"""

import os
import signal
from pathlib import Path

import pytest
from commands import finish, pack_command, published, start, temporaries, wait_until, workers_of
from preloads import after_import
from small_tars import contents, pack_small

import sa1bpack

# Preloaded into every process of a run: each stops where this says, and leaves a file that names
# it, so that a signal meets all of them there, however fast the machine is.
_PAUSE = """
import os, sys, time
from pathlib import Path

worker = "sa1bpack.packing.workers" in " ".join(sys.orig_argv)


def pause():
    (Path(__file__).parent / f"paused-{os.getpid()}").touch()
    while True:  # signal.pause() would sleep on if the signal came just before it
        time.sleep(0.01)
"""
_IN_THE_IMPORTS_OF_WORKERS = (
    _PAUSE
    + """
if worker:
    pause()
"""
)
_BEFORE_THE_SECOND_SHARD = _PAUSE + after_import(
    "sa1bpack.packing.publishers",
    """
add_shard = module.FolderPublisher.add_shard


def added(publisher, shard):
    module.FolderPublisher.add_shard = add_shard  # only once: a run that ends adds more
    add_shard(publisher, shard)
    pause()


module.FolderPublisher.add_shard = added
""",
)


@pytest.fixture
def start_paused(long_tars, tmp_path):
    """start_paused(preload, root): a run with two workers, once as many processes have paused."""
    preloads = tmp_path / "preloads"
    preloads.mkdir()

    def start_paused(preload: str, root: Path, processes: int):
        (preloads / "sitecustomize.py").write_text(preload)
        command = pack_command(long_tars, root, workers=2)
        process = start(*command, path=preloads, start_new_session=True)
        wait_until(lambda: len(list(preloads.glob("paused-*"))) == processes, process)
        assert process.poll() is None
        return process

    return start_paused


@pytest.mark.parametrize(
    ("sent", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_ends_a_run_tidily(start_paused, long_tars, long_pack, root, sent, code, word):
    """It reaches all processes; the next run completes the pack."""
    process = start_paused(_BEFORE_THE_SECOND_SHARD, root, processes=1)
    os.killpg(process.pid, sent)  # as a terminal and a job scheduler do
    found, _, error = finish(process)
    assert (found, error) == (
        code, f"sa1bpack: {word}\nsa1bpack: repeat the same command to continue from here\n"
    )  # fmt: skip
    assert 1 <= published(root) < 12
    assert temporaries(root) == []
    assert sa1bpack.verify(root).ok
    assert pack_small(long_tars, root).complete
    assert contents(root) == long_pack


def test_ctrl_c_while_workers_start_says_no_more_than_that(start_paused, tmp_path):
    process = start_paused(_IN_THE_IMPORTS_OF_WORKERS, tmp_path / "pack", processes=2)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)
    code, _, error = finish(process)
    assert code == 130
    assert error.splitlines() == [
        "sa1bpack: interrupted", "sa1bpack: repeat the same command to continue from here",
    ]  # fmt: skip
    assert not any(worker.is_running() for worker in workers)
