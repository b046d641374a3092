"""The record of runs beside a pack."""

import json
from datetime import UTC, datetime, timedelta

from small_tars import members, pack_small, write_tar

import sa1bpack


def test_each_run_that_decodes_images_leaves_a_line_which_may_be_torn_or_impossible(root, tmp_path):
    tars = [write_tar(tmp_path / f"{n}.tar", members(range(5 * n, 5 * n + 5))) for n in (0, 1)]
    for sources in (tars[:1], tars, tars):  # the last run has nothing to do
        pack_small(sources, root)
    log = root / ".runs.jsonl"
    runs = [json.loads(line) for line in log.read_text().splitlines()]
    for run, tar in zip(runs, tars, strict=True):
        finished = datetime.fromisoformat(run.pop("finished"))
        assert timedelta(-2) < finished - datetime.now(UTC) <= timedelta(0)
        assert run.pop("seconds") > 0
        assert run == {
            "outcome": "finished", "images": 5, "source_bytes": tar.stat().st_size, "workers": 1,
            "sa1bpack": sa1bpack.__version__,
        }  # fmt: skip
    assert sa1bpack.verify(root).ok and not sa1bpack.verify(root).notes
    lines = log.read_bytes()
    log.write_bytes(lines + lines[:40] + b"\n\xff\n" + lines)  # torn
    sa1bpack.report(root, tmp_path / "report.html", samples=1)
    assert "20 images in 4 runs and" in (tmp_path / "report.html").read_text()
    log.unlink()
    log.mkdir()  # it cannot be written
    other = write_tar(tmp_path / "2.tar", members(range(10, 12)))
    result = pack_small(other, root)
    assert result.complete and result.images == 12
    assert "this run is not logged (Is a directory)" in " ".join(result.notes)
