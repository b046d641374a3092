"""benchmarks/real_clients.py on stand-ins with the files and classes of EdgeSAM and SAM 2."""

from pathlib import Path

import pytest

STAND_INS = Path(__file__).parents[1] / "helpers" / "stand_ins"
OPTIONS = ["--images", "1", "--prompts", "4", "--rounds", "1"]


def differences(found: dict) -> dict[str, tuple[float, float]]:
    """Largest and mean differences by name."""
    return {line["name"]: (line["largest"], line["mean"]) for line in found["compared"]}


def test_what_edgesam_gives_is_what_a_pack_does(figures_of, tmp_path, sample_tar):
    clone = STAND_INS / "edgesam"
    found, out = figures_of("real_clients", tmp_path, clone, sample_tar, *OPTIONS)
    compared = differences(found)
    assert compared["size before padding"] == compared["embeddings"] == (0, 0)
    assert max(compared["boxes"] + compared["points"]) < 1e-3
    assert compared["images"][1] < 0.02
    assert compared["the same, ours drawn at the corners"][0] < 0.01
    assert 0.01 < compared["masks"][1] < 0.2
    assert any(line.startswith("mmengine.dataset: ") for line in found["replaced"])
    assert any(line.startswith("edge_sam/__init__.py: ") for line in found["replaced"])
    assert len(found["ms"]) == 9 and all(name in out for name in found["ms"])
    assert all(taken[0] > 0 for taken in found["ms"].values())


def test_what_sam_2_gives_is_what_a_pack_does(figures_of, tmp_path, sample_tar):
    found, out = figures_of("real_clients", tmp_path, STAND_INS / "sam2", sample_tar, *OPTIONS)
    compared = differences(found)
    assert compared["images"][1] < 0.02 and compared["masks"][1] < 0.01
    assert any(line.startswith("iopath.common.file_io: ") for line in found["replaced"])
    assert len(found["ms"]) == 6 and all(name in out for name in found["ms"])


def test_a_folder_that_is_no_clone_or_of_another_version_is_refused(module, tmp_path):
    clients = module("real_clients")
    with pytest.raises(SystemExit, match=r"sa1b_dataset.py \(EdgeSAM\) or .*: give the folder of"):
        clients.client_of(tmp_path)
    first, *others = clients.FILES["SAM 2"]
    (tmp_path / first).parent.mkdir(parents=True)
    (tmp_path / first).touch()
    with pytest.raises(SystemExit, match=f"SAM 2, but has no {', '.join(others)}: another version"):
        clients.client_of(tmp_path)
