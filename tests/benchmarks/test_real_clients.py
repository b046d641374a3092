"""benchmarks/real_clients.py on a stand-in with the files and classes of EdgeSAM."""

from pathlib import Path

import pytest

STAND_IN = Path(__file__).parents[1] / "helpers/stand_ins/edgesam"


@pytest.mark.usefixtures("complete_runs")
def test_what_edgesam_gives_is_what_a_pack_does(figures_of, tmp_path, sample_tar):
    options = ["--images", 1, "--prompts", 4, "--rounds", 1]
    found, out = figures_of("real_clients", tmp_path, STAND_IN, sample_tar, *options)
    compared = {line["name"]: (line["largest"], line["mean"]) for line in found["compared"]}
    assert compared["size before padding"] == compared["embeddings"] == (0, 0)
    assert max(compared["boxes"] + compared["points"]) < 1e-3
    assert compared["images"][1] < 0.02
    assert compared["the same, ours drawn at the corners"][0] < 0.01
    assert 0.01 < compared["masks"][1] < 0.2
    assert any(line.startswith("mmengine.dataset: ") for line in found["replaced"])
    assert any(line.startswith("edge_sam/__init__.py: ") for line in found["replaced"])
    assert len(found["ms"]) == 9 and all(name in out for name in found["ms"])
    assert all(taken[0] > 0 for taken in found["ms"].values())


def test_a_folder_that_is_no_clone_or_of_another_version_is_refused(module, tmp_path):
    clients = module("real_clients")
    with pytest.raises(SystemExit, match=r"sa1b_dataset.py \(EdgeSAM\) or .*: give the folder of"):
        clients.client_of(tmp_path)
    first, *others = clients.FILES["SAM 2"]
    (tmp_path / first).parent.mkdir(parents=True)
    (tmp_path / first).touch()
    with pytest.raises(SystemExit, match=f"SAM 2, but has no {', '.join(others)}: another version"):
        clients.client_of(tmp_path)
