"""benchmarks/real_clients.py on stand-ins with the files and classes of EdgeSAM and SAM 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STAND_INS = Path(__file__).parents[1] / "helpers" / "stand_ins"


def run(clone: Path, tar: Path, folder: Path) -> tuple[dict, dict, str]:
    """Largest and mean differences by name, the other figures, and what was printed."""
    command = [sys.executable, str(BENCHMARKS / "real_clients.py"), str(clone), str(tar)]
    command += ["--images", "1", "--prompts", "4", "--rounds", "1", "--json"]
    done = subprocess.run(
        [*command, str(folder / "found.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "found.json").read_text())
    return (
        {line["name"]: (line["largest"], line["mean"]) for line in found["compared"]},
        found,
        (done.stdout),
    )


def test_what_edgesam_gives_is_what_a_pack_does(tmp_path, sample_tar):
    compared, found, out = run(STAND_INS / "edgesam", sample_tar, tmp_path)
    assert compared["size before padding"] == compared["embeddings"] == (0, 0)
    assert max(compared["boxes"] + compared["points"]) < 1e-3
    assert compared["images"][1] < 0.02
    assert compared["the same, ours drawn at the corners"][0] < 0.01
    assert 0.01 < compared["masks"][1] < 0.2
    assert any(line.startswith("mmengine.dataset: ") for line in found["replaced"])
    assert any(line.startswith("edge_sam/__init__.py: ") for line in found["replaced"])
    assert len(found["ms"]) == 9 and all(name in out for name in found["ms"])
    assert all(taken[0] > 0 for taken in found["ms"].values())


def test_what_sam_2_gives_is_what_a_pack_does(tmp_path, sample_tar):
    compared, found, out = run(STAND_INS / "sam2", sample_tar, tmp_path)
    assert compared["images"][1] < 0.02 and compared["masks"][1] < 0.01
    assert any(line.startswith("iopath.common.file_io: ") for line in found["replaced"])
    assert len(found["ms"]) == 6 and all(name in out for name in found["ms"])


def test_a_folder_that_is_no_clone_or_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from real_clients import FILES, client_of

    with pytest.raises(SystemExit, match=r"sa1b_dataset.py \(EdgeSAM\) or .*: give the folder of"):
        client_of(tmp_path)
    first, *others = FILES["SAM 2"]
    (tmp_path / first).parent.mkdir(parents=True)
    (tmp_path / first).touch()
    with pytest.raises(SystemExit, match=f"SAM 2, but has no {', '.join(others)}: another version"):
        client_of(tmp_path)
