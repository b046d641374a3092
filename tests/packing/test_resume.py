"""A run that was stopped is gone on with, and the pack is that of an undisturbed run.

Runs that are killed: tests/torture/test_kill.py.
"""

import os
import shutil
import signal
import time

import pytest
from commands import (
    SMALL_FLAGS,
    finish,
    published,
    start,
    temporaries,
    wait_until,
    workers_of,
)  # fmt: skip
from small_tars import SMALL, contents

import sa1bpack
from sa1bpack.errors import FormatError


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
