"""Progress bars, wherever they are shown."""

import threading

import numpy as np
import pytest
from small_tars import members, write_tar
from tqdm import tqdm

import sa1bpack


@pytest.mark.parametrize("show", [False, True])
def test_bars_start_no_thread_that_stays_in_the_program(monkeypatch, tmp_path, show):
    """With one, every later fork, as of torch's workers, is one of a process with threads."""
    monkeypatch.setattr(tqdm, "monitor", None)  # none was started yet
    tar, pack = write_tar(tmp_path / "sa_000000.tar", members(range(2))), tmp_path / "pack"
    before = set(threading.enumerate())
    sa1bpack.pack(tar, pack, workers=1, image_size=64, mask_size=16, progress=show)
    assert set(threading.enumerate()) <= before


def test_calls_that_report_progress_take_false_as_pack_does(tmp_path):
    pack = tmp_path / "pack"
    tar = write_tar(tmp_path / "sa_000000.tar", members(range(2)))
    sa1bpack.pack(tar, pack, workers=1, image_size=64, mask_size=16, progress=False)
    assert sa1bpack.verify(pack, progress=False).ok
    assert sa1bpack.report(pack, tmp_path / "page.html", progress=False).ok
    assert sa1bpack.merge([pack], tmp_path / "merged", progress=False).images == 2
    ds = sa1bpack.open(tmp_path / "merged")
    numbers = np.ones((len(ds), 2), np.float32)
    result = sa1bpack.attach(ds, "ones", numbers, ds.column("image_id"), progress=False)
    assert result.missing == ()
