"""The record of runs beside a pack."""

from datetime import UTC, datetime, timedelta

from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack.packing.progress import RUNS_NAME, read_runs


def test_each_run_that_decodes_images_leaves_a_line(tmp_path):
    tars = [write_tar(tmp_path / f"{n}.tar", members(range(5 * n, 5 * n + 5))) for n in (0, 1)]
    root = tmp_path / "pack"
    assert read_runs(root) == []
    for sources in (tars[:1], tars, tars):  # the last run has nothing to do
        sa1bpack.pack(sources, root, workers=1, **SMALL)
    runs = read_runs(root)
    assert [run.images for run in runs] == [5, 5]
    assert [run.source_bytes for run in runs] == [tar.stat().st_size for tar in tars]
    for run in runs:
        assert run.outcome == "finished" and run.workers == 1 and run.seconds > 0
        assert run.sa1bpack == sa1bpack.__version__
        assert timedelta(-2) < run.finished - datetime.now(UTC) <= timedelta(0)
    assert sa1bpack.verify(root).ok and not sa1bpack.verify(root).notes


def test_a_torn_line_is_passed_over(tmp_path):
    tar = write_tar(tmp_path / "a.tar", members(range(2)))
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, **SMALL)
    path = tmp_path / "pack" / RUNS_NAME
    line = path.read_bytes()
    path.write_bytes(line + line[:40] + b"\n\xff\n" + line)
    assert len(read_runs(tmp_path / "pack")) == 2


def test_a_record_that_cannot_be_written_does_not_spoil_the_run(tmp_path):
    (tmp_path / "pack").mkdir()
    tar = write_tar(tmp_path / "a.tar", members(range(2)))
    sa1bpack.pack(tar, tmp_path / "pack", workers=1, **SMALL)
    (tmp_path / "pack" / RUNS_NAME).unlink()
    (tmp_path / "pack" / RUNS_NAME).mkdir()
    other = write_tar(tmp_path / "b.tar", members(range(5, 7)))
    result = sa1bpack.pack(other, tmp_path / "pack", workers=1, **SMALL)
    assert result.complete and result.images == 4
    assert "this run is not logged (Is a directory)" in " ".join(result.notes)
