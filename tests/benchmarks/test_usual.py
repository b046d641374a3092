"""The benchmark of the usual way: all ways deliver the same samples, and every line is reported."""

import importlib.util

import pytest
import torch

# pycocotools' decode and numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
INSTALLED = importlib.util.find_spec("rlemasklib") is not None
WITHOUT_PACK = ["simplejpeg + rlemasklib, 0 workers", "simplejpeg + rlemasklib, 2 workers"]
SAM2_WITHOUT_PACK = [
    "simplejpeg + rlemasklib, SAM 2's output, 0 workers",
    "simplejpeg + rlemasklib, SAM 2's output, 2 workers",
]
LINES = [
    "guide, 0 workers", "guide, 2 workers", "guide, 2 workers, prefetch_factor 4",
    "guide, 2 workers, pin_memory",
    *(WITHOUT_PACK if INSTALLED else []),
    "TarDataset, 0 workers", "TarDataset, 2 workers",
    "Loader, float32 masks", "Loader, bool masks", "Loader, bits", "SAM 2's steps, 0 workers",
    "SAM 2's steps, 2 workers", *(SAM2_WITHOUT_PACK if INSTALLED else []),
    "Loader and Pipeline",
]  # fmt: skip


@pytest.fixture(scope="module")
def usual(module):
    return module("usual")


def test_the_ways_of_a_task_deliver_the_same_samples(usual, tmp_path, sample_tar, monkeypatch):
    """By id: each of the two images has 3 masks, which are almost those of the guide."""
    usual.prepare([sample_tar], tmp_path, images=2, masks=3)
    ways = {way.name: way for way in usual.ways(tmp_path, 2, [0, 2])}
    assert list(ways) == LINES
    guide = usual.GuideDataset(tmp_path / "photos")
    expected = {int(path.stem[3:]): guide[row] for row, path in enumerate(guide.images)}
    (raw,), (batch,), (floats,) = (
        list(ways[name].begin())
        for name in ("TarDataset, 0 workers", "Loader, bool masks", "Loader, float32 masks")
    )
    for found in (raw, batch):
        assert sorted(found["image_ids"].tolist()) == sorted(expected)
        for row, number in enumerate(found["image_ids"].tolist()):
            image, masks = expected[number]
            colours = found["images"][row].permute(2, 0, 1).float() / 255
            assert (colours - image).abs().mean() < 0.02
            assert (found["masks"][row] == masks.bool()).float().mean() > 0.98
            assert 0 < masks.mean() < 1
    assert torch.equal(floats[0], batch["images"].permute(0, 3, 1, 2).float() / 255)
    assert torch.equal(floats[1], batch["masks"].float())
    shapes = [
        [tuple(tensor.shape) for tensor in found]
        for found in (*ways["guide, 0 workers"].begin(), floats)
    ]
    assert shapes == [[(2, 3, 1024, 1024), (2, 3, 256, 256)]] * 2
    (sam2,), (ours,) = (
        list(ways[name].begin()) for name in ("SAM 2's steps, 0 workers", "Loader and Pipeline")
    )
    assert ours["images"].shape == sam2[0].shape == (2, 3, 1024, 1024)
    assert ours["masks"].shape == sam2[1].shape == (2, 3, 1024, 1024)
    assert ours["masks"].dtype == sam2[1].dtype == torch.bool


def test_the_fastest_way_without_a_pack_delivers_the_samples_of_the_guide(
    usual, tmp_path, sample_tar
):
    pytest.importorskip("rlemasklib")
    usual.prepare([sample_tar], tmp_path, images=3, masks=90)
    guide, runs = (
        dataset(tmp_path / "photos") for dataset in (usual.GuideDataset, usual.RunsDataset)
    )
    for row in range(3):
        image, masks = runs[row]
        expected_image, expected_masks = guide[row]
        colours = image.permute(2, 0, 1).float() / 255
        assert (colours - expected_image).abs().mean() < 0.02
        assert masks.dtype == torch.bool and masks.shape == expected_masks.shape
        expected = expected_masks.bool()
        assert (masks == expected).float().mean() > 0.99
        largest = expected.sum((1, 2)).argmax()  # of small ones, the edges are a large part
        shared = masks[largest] & expected[largest]
        both = masks[largest] | expected[largest]
        assert shared.sum() > 0.95 * both.sum()


def test_the_fastest_way_to_sam_2s_output_draws_and_flips_the_same(usual, tmp_path, sample_tar):
    pytest.importorskip("rlemasklib")
    usual.prepare([sample_tar], tmp_path, images=6, masks=40)
    steps, runs = (
        dataset(tmp_path / "photos") for dataset in (usual.Sam2Dataset, usual.RunsSam2Dataset)
    )
    for row in range(6):
        image, masks = runs[row]
        expected_image, expected_masks = steps[row]
        assert image.dtype == torch.float32 and masks.dtype == torch.bool
        assert (image - expected_image).abs().mean() < 0.1  # of a standard deviation
        assert (masks == expected_masks).float().mean() > 0.99


def test_ratios_are_to_the_guide_and_to_the_fastest_line_without_a_pack_of_the_task(usual):
    def line(name, task, *speeds):
        return {"line": name, "task": task, "speed": speeds, "memory_bytes": None}

    found = [
        line("guide, 0 workers", "guide", 1, 2, 4),
        line(WITHOUT_PACK[0], "guide", 5, 10, 20),
        line(WITHOUT_PACK[1], "guide", 4, 8, 16),
        line("Loader, bool masks", "guide", 10, 20, 60),
        line("SAM 2's steps, 0 workers", "SAM 2", 2, 2, 2),
        line(SAM2_WITHOUT_PACK[0], "SAM 2", 4, 4, 4),
        line("Loader and Pipeline", "SAM 2", 8, 8, 8),
    ]
    table = usual.table(found)
    assert "| Loader, bool masks | 20.0 | 10.0 | 2.0 |  |" in table
    assert "| Loader and Pipeline | 8.0 | 4.0 | 2.0 |  |" in table


def test_the_loader_is_compared_with_the_fastest_line_without_a_pack(usual):
    def line(name, *speeds):
        return {"line": name, "task": "guide", "speed": speeds, "memory_bytes": None}

    found = [line("Loader, bool masks", 60, 80, 100), line(WITHOUT_PACK[0], 10, 10, 10)]
    found.append(line(WITHOUT_PACK[1], 20, 20, 25))
    said = "Loader, bool masks: 4 times simplejpeg + rlemasklib, 2 workers (3 to 4)"
    assert usual.against_the_fastest(found) == said
    assert usual.against_the_fastest(found[:1]) is None


def test_a_claim_is_judged_by_the_ratios_of_the_same_round(usual):
    def line(name, *speeds):
        return {"line": name, "task": "guide", "speed": speeds, "memory_bytes": 5_000_000}

    found = [
        line("guide, 0 workers", 1, 2, 4),
        line("guide, 2 workers", 2, 3, 8),
        line("guide, 2 workers, pin_memory", 3, 6, 16),
    ]
    workers, pinning = usual.claims(found, cpus=2, cuda=True)
    assert (workers["found"], workers["reproduced"]) == ((2, 1.5, 2), False)
    assert "with 2 workers, on 2 CPUs; at 1.00 times per CPU it takes 8 CPUs" in workers["text"]
    assert (pinning["found"], pinning["reproduced"]) == ((2, 1.5, 2), True)
    (_, pinning) = usual.claims(found, cpus=2, cuda=False)
    assert pinning["reproduced"] is None and "pins nothing without a CUDA" in pinning["text"]
    found[1]["speed"] = (8, 16, 32)
    assert usual.claims(found, cpus=8, cuda=False)[0]["reproduced"] is True
    assert "| guide, 2 workers | 16.0 | 8.0 |  | 5 |" in usual.table(found)


def test_every_line_is_reported(figures_of, tmp_path, sample_tar, complete_runs):
    options = ["--images", 4, "--masks", 3, "--rounds", 2, "--workers", 0, 2, "--seconds", 0.1]
    found, out = figures_of("usual", tmp_path, sample_tar, *options, "--folder", tmp_path)
    assert [line["line"] for line in found["lines"]] == LINES
    for line in found["lines"]:
        assert len(line["speed"]) == 2 and min(line["speed"]) > 0
        assert line["memory_bytes"] > 2 * 3 * 1024 * 1024  # a batch of bytes, and much else
        assert f"| {line['line']} |" in out
    assert [claim["claim"] for claim in found["claims"]] == ["workers", "pinning"]
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
