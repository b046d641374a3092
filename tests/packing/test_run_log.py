"""The record of runs beside a pack."""

from datetime import UTC, datetime, timedelta

from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack.packing.progress import RUNS_NAME, read_runs


def test_each_run_that_decodes_images_leaves_a_line_which_may_be_torn_or_impossible(root, tmp_path):
    tars = [write_tar(tmp_path / f"{n}.tar", members(range(5 * n, 5 * n + 5))) for n in (0, 1)]
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
    line = (root / RUNS_NAME).read_bytes()
    (root / RUNS_NAME).write_bytes(line + line[:40] + b"\n\xff\n" + line)  # torn
    assert len(read_runs(root)) == 4
    (root / RUNS_NAME).unlink()
    (root / RUNS_NAME).mkdir()  # it cannot be written
    other = write_tar(tmp_path / "2.tar", members(range(10, 12)))
    result = sa1bpack.pack(other, root, workers=1, **SMALL)
    assert result.complete and result.images == 12
    assert "this run is not logged (Is a directory)" in " ".join(result.notes)
