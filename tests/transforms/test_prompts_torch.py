"""Prompts on a device, compared with those of `sa1bpack.masks` (which tests/masks compares with
full-size masks)."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layout_packs import layout_packs  # noqa: F401 - a fixture
from made_runs import random_sample

import sa1bpack
from sa1bpack import masks
from sa1bpack import transforms as T
from sa1bpack.transforms import RunBatch

REGIONS = ("inside", "boundary", "outside")


@pytest.mark.parametrize("region", REGIONS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_regions_and_points_equal_those_of_the_cpu(any_way, region, seed, count, in_boxes):
    random = np.random.default_rng(seed)
    samples = [random_sample(random, side=13, count=6) for _ in range(count)]
    runs = RunBatch.collate(samples).to(any_way)
    ids = random.integers(-(2**63), 2**63, runs.masks)
    boxes = None
    if in_boxes:
        boxes = np.sort(random.integers(-3, 17, (runs.masks, 2, 2)), axis=1).reshape(-1, 4)
    key = {"seed": seed, "epoch": 3, "draw": 1}
    expected = []
    for place, sample in enumerate(samples):
        rows = slice(6 * place, 6 * place + 6)
        box = None if boxes is None else boxes[rows]
        drawn = masks.draw_points(*sample, ids[rows], 20, region, boxes=box, **key)
        expected.append(drawn)
    ids = torch.from_numpy(ids).to(any_way)
    boxes = None if boxes is None else torch.from_numpy(boxes).to(any_way)
    found = T.draw_points(runs, ids, 20, region, boxes=boxes, **key)
    for one, parts in zip(found, zip(*expected, strict=True), strict=True):
        assert one.device.type == any_way.type
        np.testing.assert_array_equal(one.cpu().numpy(), np.concatenate(parts), strict=True)


def test_box_noise_is_the_same_as_on_the_cpu(any_way):
    random = np.random.default_rng(2)
    boxes = np.sort(random.uniform(0, 900, (500, 2, 2)), axis=1).reshape(-1, 4)
    ids = random.integers(0, 2**40, 500)
    for extent in (np.array([800.0, 700]), random.uniform(600, 1000, (500, 2))):
        expected = masks.jitter_boxes(boxes, extent, ids, seed=5, epoch=6, draw=7)
        tensors = (torch.from_numpy(array).to(any_way) for array in (boxes, extent, ids))
        found = T.jitter_boxes(*tensors, seed=5, epoch=6, draw=7)
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found.cpu().numpy(), expected)


def test_prompts_are_drawn_from_what_a_pipeline_returns(any_way, layout_packs):  # noqa: F811
    """Padded or not, each mask has the same points, where the crop shows it."""
    ds = sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"), mask_format="runs")
    pipeline = T.Pipeline(ds, [T.RandomResizedCrop((0.02, 0.1))], size=96)
    key = {"seed": 1, "epoch": 2}
    found = []
    for layout in ("padded", "concat"):
        with sa1bpack.Loader(ds, 6, mask_layout=layout, max_masks=7) as loader:
            batch = pipeline(next(iter(loader)))
        counts = batch["mask_counts"]
        rows = torch.arange(7) < counts[:, None] if layout == "padded" else slice(None)
        ids = batch["annotation_ids"].to(any_way)
        boxes = batch["boxes_xyxy"].to(any_way)
        owner = torch.arange(6).repeat_interleave(counts)
        if layout == "padded":
            owner = torch.arange(6)[:, None].expand(ids.shape)
        maps = batch["input_to_source"][owner].to(any_way)
        scale = maps[..., [0, 1, 0, 1], [0, 1, 0, 1]]
        offset = maps[..., [0, 1, 0, 1], 2]
        edges = (boxes * scale + offset).float()
        points, valid = T.draw_points(batch["runs"].to(any_way), ids, 5, boxes=edges, **key)
        inside = (points >= edges[..., None, :2]) & (points < edges[..., None, 2:])
        assert valid.any() and not valid[rows].all() and inside[valid].all()
        assert not points[~valid].any()
        assert valid[rows].sum() == valid.sum(), "padding has no points"
        # Extents of any numbers, and of each image.
        canvas = torch.tensor(batch["images"].shape[:-3:-1], device=any_way)
        moved = T.jitter_boxes(boxes, canvas.int(), ids, **key)
        if layout == "padded":
            each = batch["sizes"][:, 2:].flip(1).to(any_way)
            inside = T.jitter_boxes(boxes, each, ids, **key) <= each.repeat(1, 2)[:, None]
            assert inside.all()
        found.append((ids[rows], points[rows], valid[rows], moved[rows]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_largest_images_do_not_overflow(any_way):
    """Many masks of nearly 2**31 pixels, whose keys are sorted together."""
    height = 65_535
    width = 32_767
    one = np.array([height + 1, height * (width - 1) - 1, height * width], np.int32)
    same(any_way, [(one, np.array([0, 3]), height, width)] * 50)


def test_masks_of_many_runs_are_made_in_parts(any_way):
    """On a device at most 262,144 run ends at once: here there are twice as many."""
    random = np.random.default_rng(0)
    cuts = np.sort(random.integers(0, 400 * 600, (60, 9000), dtype=np.int32))
    cuts[:, -1] = 400 * 600
    same(any_way, [(ends, np.array([0, 9000]), 400, 600) for ends in cuts])


def same(device, samples: list) -> None:
    """Compare 20 points of each region of samples that have one mask each."""
    runs = RunBatch.collate(samples).to(device)
    key = {"seed": 1, "epoch": 2}
    ids = np.arange(len(samples))
    boxes = np.array([(n, n, width, height) for n, (*_, height, width) in enumerate(samples)])
    ids_there = torch.from_numpy(ids).to(device)
    boxes_there = torch.from_numpy(boxes).to(device)
    for region in REGIONS:
        points, valid = T.draw_points(runs, ids_there, 20, region, boxes=boxes_there, **key)
        for n, sample in enumerate(samples):
            row = slice(n, n + 1)
            expected, has_pixels = masks.draw_points(
                *sample, ids[row], 20, region, boxes=boxes[row], **key
            )
            assert np.array_equal(points[row].cpu().numpy(), expected)
            assert valid[row].tolist() == has_pixels.tolist()


def test_padding_and_batches_without_masks_have_no_points(any_way):
    offset = torch.tensor([0, 0, 2, 2])
    ends = torch.tensor([0, 20], dtype=torch.int32)
    sizes = torch.tensor([[4, 5]])
    runs = RunBatch(ends, offset, torch.tensor([0, 3]), sizes, offset).to(any_way)
    ids = torch.arange(3, device=any_way)
    for region, pixels in zip(REGIONS, (20, 14, 0), strict=True):
        points, valid = T.draw_points(runs, ids, 500, region, seed=0, epoch=0)
        assert valid.tolist() == [False, pixels > 0, False]
        assert len(points[1].unique(dim=0)) == max(pixels, 1)
    none = RunBatch.collate([]).to(any_way)
    ids = torch.zeros(0, dtype=torch.int64, device=any_way)
    for region in REGIONS:
        points, valid = T.draw_points(none, ids, 3, region, seed=0, epoch=0)
        assert points.shape == (0, 3, 2) and valid.shape == (0,)
    empty = torch.zeros(0, dtype=torch.int32)
    arrays = (torch.tensor(n) for n in ([0, 0], [0, 1], [[4, 5]], [0, 0]))
    padding = RunBatch(empty, *arrays).to(any_way)
    ids = torch.tensor([3], device=any_way)
    points, valid = T.draw_points(padding, ids, 2, seed=0, epoch=0)
    assert not points.any() and not valid.any()
