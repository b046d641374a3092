"""Progress bars, wherever they are shown."""

import errno
import io
import os
import sys
import threading

import numpy as np
import pytest
from small_tars import members, write_tar
from tqdm import tqdm

import sa1bpack
import sa1bpack.packing.progress


@pytest.mark.parametrize("show", [False, True])
def test_bars_start_no_thread_that_stays_in_the_program(monkeypatch, tmp_path, show):
    """With one, every later fork, as of torch's workers, is one of a process with threads."""
    monkeypatch.setattr(tqdm, "monitor", None)  # none was started yet
    tar, pack = write_tar(tmp_path / "sa_000000.tar", members(range(2))), tmp_path / "pack"
    before = set(threading.enumerate())
    sa1bpack.pack(tar, pack, workers=1, image_size=64, mask_size=16, progress=show)
    assert set(threading.enumerate()) <= before


@pytest.fixture
def calls(tmp_path):
    """Name → a call that takes `progress`, in the order in which they can be called."""
    tar, pack = write_tar(tmp_path / "sa_000000.tar", members(range(2))), tmp_path / "pack"
    merged = tmp_path / "merged"
    small = {"workers": 1, "image_size": 64, "mask_size": 16}

    def features(progress):
        ds = sa1bpack.open(merged)
        numbers = np.ones((len(ds), 2), np.float32)
        result = sa1bpack.attach(ds, "ones", numbers, ds.column("image_id"), progress=progress)
        assert result.missing == ()
        assert sa1bpack.derive(ds, "twos", twos, progress=progress).missing == ()

    def exports(progress):
        sa1bpack.export_sa1b(merged, tmp_path / "records", progress=progress)
        sa1bpack.export_coco(merged, tmp_path / "coco.json", renumber=True, progress=progress)

    return {
        "pack": lambda progress: sa1bpack.pack(tar, pack, progress=progress, **small),
        "pack_part": lambda progress: sa1bpack.pack_part(
            tar, tmp_path / "job", (1, 1), progress=progress, **small
        ),
        "verify": lambda progress: sa1bpack.verify(pack, progress=progress),
        "repair": lambda progress: sa1bpack.repair(pack, tar, workers=1, progress=progress),
        "report": lambda progress: sa1bpack.report(
            pack, tmp_path / "page.html", verify="full", progress=progress
        ),
        "merge": lambda progress: sa1bpack.merge([pack], merged, progress=progress),
        "features": features,
        "exports": exports,
    }


def twos(batch):
    return np.full(len(batch["image_ids"]), 2, np.int64)


@pytest.mark.parametrize("progress", [None, False, True])
def test_every_call_that_takes_a_while_has_the_same_progress(calls, progress, capfd):
    for call in calls.values():
        call(progress)
    assert ("|" in capfd.readouterr().err) == (progress is True)


def test_a_function_is_told_what_is_done_and_what_there_is_to_do(calls, monkeypatch):
    monkeypatch.setattr("os.link", no_link)  # so that merge copies
    for name, call in calls.items():
        told = []
        call(lambda done, total, told=told: told.append((done, total)))
        assert told and all(0 <= done <= total for done, total in told), name
        assert told[-1][0] == told[-1][1] or name == "merge", name  # holes are not copied


def no_link(*args, **options):
    raise OSError("no links here")


@pytest.mark.parametrize("wrong", ["yes", 3, [print]])
def test_what_progress_cannot_be_is_refused_before_anything_is_done(calls, wrong, tmp_path):
    for name in ("pack", "merge"):
        calls[name](False)
    before = sorted(tmp_path.rglob("*"))
    for call in calls.values():
        with pytest.raises(sa1bpack.OptionError, match=r"progress is .*: choose True, False, or a"):
            call(wrong)
    assert sorted(tmp_path.rglob("*")) == before


class FullDisk(io.TextIOBase):
    """What takes nothing, as a log on a full disk."""

    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self):
        self.write("")

    def close(self):
        """Nothing: Python 3.13 tells of an error of the `flush` that closes it."""


@pytest.mark.parametrize("progress", [None, True])
@pytest.mark.parametrize("stream", [FullDisk, lambda: None], ids=["full", "closed"])
def test_no_work_ends_because_its_progress_cannot_be_shown(
    calls, progress, stream, capfd, monkeypatch
):
    """Neither by a bar nor by the lines that a run prints for the log of a job."""
    monkeypatch.setattr(sa1bpack.packing.progress, "LINE_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream())
        for call in calls.values():
            call(progress)
    assert capfd.readouterr().out == ""
