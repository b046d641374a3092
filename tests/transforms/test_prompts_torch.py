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
from sa1bpack import masks, transforms
from sa1bpack.errors import OptionError
from sa1bpack.transforms import RunBatch
from sa1bpack.transforms.masks import prompts


def batch_of(random: np.random.Generator, count: int) -> tuple[list, RunBatch]:
    samples = [random_sample(random, side=13, count=6) for _ in range(count)]
    return samples, RunBatch.collate(samples)


@pytest.mark.parametrize("region", masks.REGIONS)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_regions_and_points_equal_those_of_the_cpu(any_way, region, seed, count, in_boxes):
    random = np.random.default_rng(seed)
    samples, runs = batch_of(random, count)
    runs = runs.to(any_way)
    numbers = random.integers(-1, 60, (runs.masks, 30))
    ids = random.integers(-(2**63), 2**63, runs.masks)
    boxes = None
    if in_boxes:
        boxes = np.sort(random.integers(-3, 17, (runs.masks, 2, 2)), axis=1).reshape(-1, 4)
    key = {"seed": seed, "epoch": 3, "draw": 1}
    counts, pixels, points, valid = [], [], [], []
    for place, sample in enumerate(samples):
        rows = slice(6 * place, 6 * place + 6)
        box = None if boxes is None else boxes[rows]
        counts.append(masks.count_pixels(*sample, region, box))
        pixels.append(masks.nth_pixels(*sample, numbers[rows], region, box))
        drawn = masks.draw_points(*sample, ids[rows], 5, region, boxes=box, **key)
        points.append(drawn[0])
        valid.append(drawn[1])

    def there(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(any_way)

    def same(found: torch.Tensor, arrays: list[np.ndarray]) -> None:
        assert found.device.type == any_way.type
        found, arrays = found.cpu().numpy(), np.concatenate(arrays)
        assert found.dtype == arrays.dtype
        np.testing.assert_array_equal(found, arrays)

    there_boxes = None if boxes is None else there(boxes)
    same(prompts.count_pixels(runs, region, there_boxes), counts)
    same(prompts.nth_pixels(runs, there(numbers), region, there_boxes), pixels)
    found = prompts.draw_points(runs, there(ids), 5, region, boxes=there_boxes, **key)
    same(found[0], points)
    same(found[1], valid)


def test_boxes_surround_the_masks(any_way):
    samples, runs = batch_of(np.random.default_rng(1), 20)
    found = prompts.mask_boxes(runs.to(any_way)).cpu().numpy()
    expected = np.concatenate([masks.mask_boxes(*sample) for sample in samples])
    np.testing.assert_array_equal(found, expected)


def test_box_noise_is_the_same_as_on_the_cpu(any_way):
    random = np.random.default_rng(2)
    boxes = np.sort(random.uniform(0, 900, (500, 2, 2)), axis=1).reshape(-1, 4)
    ids = random.integers(0, 2**40, 500)
    for extent in (np.array([800.0, 700]), random.uniform(600, 1000, (500, 2))):
        expected = masks.jitter_boxes(boxes, extent, ids, seed=5, epoch=6, draw=7)
        tensors = (torch.from_numpy(array).to(any_way) for array in (boxes, extent, ids))
        found = prompts.jitter_boxes(*tensors, seed=5, epoch=6, draw=7)
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found.cpu().numpy(), expected)


@pytest.mark.parametrize("masks_as", ["padded", "flat"])
def test_prompts_are_drawn_from_what_a_pipeline_returns(any_way, layout_packs, masks_as):  # noqa: F811
    """float32 boxes and padded ids, with the numbers that each mask has in any batch."""
    ds = sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"), mask_format="runs")
    key = {"seed": 1, "epoch": 2}
    with sa1bpack.Loader(ds, 3, masks=masks_as, max_masks=7) as loader:
        batch = transforms.Pipeline(ds, [transforms.RandomHorizontalFlip()], size=96)(
            next(iter(loader))
        )
    counts, runs = batch["mask_counts"].tolist(), batch["runs"]
    ids, extent = batch["annotation_ids"], torch.tensor(batch["images"].shape[:-3:-1]).double()
    assert batch["boxes_xyxy"].dtype == torch.float32 and len(set(counts)) > 1
    arrays = (tensor.to(any_way) for tensor in (batch["boxes_xyxy"], extent, ids))
    boxes = transforms.jitter_boxes(*arrays, **key).cpu()
    points, valid = transforms.draw_points(runs.to(any_way), ids.to(any_way), 2, "inside", **key)
    points, valid = points.cpu(), valid.cpu()
    assert boxes.shape == batch["boxes_xyxy"].shape and boxes.dtype == torch.float32
    assert points.shape == (*ids.shape, 2, 2) and valid.shape == ids.shape
    if masks_as == "padded":
        present = torch.arange(ids.shape[1]) < batch["mask_counts"][:, None]
        assert not points[~present].any() and not valid[~present].any()
        ids, points, valid = (tensor[present] for tensor in (ids, points, valid))
    by_id = {}
    for sample in (ds[k] for k in range(3)):
        drawn = masks.draw_points(
            sample["run_ends"],
            sample["run_offset"],
            *sample["size"][:2].tolist(),
            sample["annotation_ids"],
            2,
            **key,
        )
        by_id |= dict(zip(sample["annotation_ids"].tolist(), zip(*drawn, strict=True), strict=True))
    for number, *found in zip(ids.tolist(), points.numpy(), valid.tolist(), strict=True):
        np.testing.assert_array_equal(found[0], by_id[number][0])
        assert found[1] == by_id[number][1]


@pytest.mark.parametrize("masks_as", ["padded", "flat"])
def test_points_and_noise_take_the_boxes_and_sizes_of_a_batch(any_way, layout_packs, masks_as):  # noqa: F811
    """float32 boxes of a crop, mapped to the source: points are where the crop shows the mask."""
    ds = sa1bpack.open(layout_packs("pad", "rgb", "bits+runs"), mask_format="runs")
    with sa1bpack.Loader(ds, 6, masks=masks_as, max_masks=7) as loader:
        batch = transforms.Pipeline(ds, [transforms.RandomResizedCrop((0.02, 0.1))], size=96)(
            next(iter(loader))
        )
    ids, boxes = batch["annotation_ids"], batch["boxes_xyxy"]
    maps = batch["input_to_source"]  # upright
    if masks_as == "padded":
        of_mask = maps[:, None].expand(*ids.shape, 2, 3)
    else:
        of_mask = maps.repeat_interleave(batch["mask_counts"], 0)
    scale, offset = of_mask[..., [0, 1], [0, 1]], of_mask[..., 2]
    edges = (boxes.unflatten(-1, (2, 2)) * scale[..., None, :] + offset[..., None, :]).float()
    points, valid = transforms.draw_points(
        batch["runs"].to(any_way), ids.to(any_way), 20, seed=1, epoch=2,
        boxes=edges.flatten(-2).to(any_way),
    )  # fmt: skip
    points, valid = points.cpu(), valid.cpu()
    assert valid.any() and not valid.all()
    low, high = (corner[valid][:, None] for corner in edges.unbind(-2))
    assert (points[valid] >= low).all() and (points[valid] < high).all()
    # Whole numbers of pixels that hold the same centres are the same boxes.
    whole = (edges - 0.5).ceil().flatten(-2).int()
    given = batch["runs"].to(any_way), ids.to(any_way), 20
    again, _ = transforms.draw_points(*given, seed=1, epoch=2, boxes=whole.to(any_way))
    assert torch.equal(again.cpu(), points)
    if masks_as == "padded":
        extent = batch["sizes"][:, 2:].flip(1)
        assert extent.dtype == torch.int32
        moved = [
            transforms.jitter_boxes(boxes.to(any_way), kind(extent).to(any_way),
                                    ids.to(any_way), seed=0, epoch=0).cpu()
            for kind in (torch.Tensor.double, torch.Tensor.long, torch.Tensor.int)
        ]  # fmt: skip
        assert torch.equal(moved[0], moved[1]) and torch.equal(moved[0], moved[2])


def test_padded_ids_that_do_not_fit_the_batch_are_refused():
    _, runs = batch_of(np.random.default_rng(0), 2)
    for shape, message in (((2, 5), "a sample has 6 masks"), ((3, 6), r"ids must be int64 \(2, M")):
        with pytest.raises(OptionError, match=message):
            prompts.draw_points(runs, torch.zeros(shape).long(), 1, seed=0, epoch=0)
    ids, boxes = torch.zeros(2, 7).long(), torch.zeros(2, 6, 4).long()
    with pytest.raises(OptionError, match=r"boxes must be int64 or .* \(2, 7, 4\)"):
        prompts.draw_points(runs, ids, 1, seed=0, epoch=0, boxes=boxes)


def test_the_largest_images_do_not_overflow(any_way):
    """Many masks of nearly 2**31 pixels, whose keys are sorted together."""
    height, width = 65_535, 32_767
    one = np.array([height + 1, height * (width - 1) - 1, height * width], np.int32)
    samples = [(one, np.array([0, 3]), height, width)] * 50
    runs = RunBatch.collate(samples).to(any_way)
    for region in masks.REGIONS:
        count = masks.count_pixels(*samples[0], region)
        numbers = np.array([[0, count[0] // 2, count[0] - 1]])
        pixels = masks.nth_pixels(*samples[0], numbers, region)
        found = prompts.nth_pixels(runs, torch.tensor(numbers).repeat(50, 1).to(any_way), region)
        assert (prompts.count_pixels(runs, region).cpu().numpy() == count).all()
        assert (found.cpu().numpy() == pixels).all()


def test_padding_and_batches_without_masks_have_no_points(any_way):
    offset = torch.tensor([0, 0, 2, 2])
    runs = RunBatch(
        torch.tensor([0, 20], dtype=torch.int32),
        offset,
        torch.tensor([0, 3]),
        torch.tensor([[4, 5]]),
        offset,
    ).to(any_way)
    for region, pixels in zip(masks.REGIONS, (20, 14, 0), strict=True):
        assert prompts.count_pixels(runs, region).tolist() == [0, pixels, 0]
    none = RunBatch.collate([]).to(any_way)
    ids = torch.zeros(0, dtype=torch.int64, device=any_way)
    for region in masks.REGIONS:
        points, valid = prompts.draw_points(none, ids, 3, region, seed=0, epoch=0)
        assert points.shape == (0, 3, 2) and valid.shape == (0,)
    assert prompts.mask_boxes(runs).tolist() == [[0, 0, 0, 0], [0, 0, 5, 4], [0, 0, 0, 0]]
    empty = torch.zeros(0, dtype=torch.int32)
    arrays = (torch.tensor(n) for n in ([0, 0], [0, 1], [[4, 5]], [0, 0]))
    padding = RunBatch(empty, *arrays).to(any_way)
    ids = torch.tensor([3], device=any_way)
    points, valid = prompts.draw_points(padding, ids, 2, seed=0, epoch=0)
    assert not points.any() and not valid.any()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"region": "edge"}, "region is 'edge': choose one of inside, boundary, outside"),
        ({"ids": [1] * 6}, r"ids must be a torch.Tensor of int64 \(6,\).*got a list"),
        ({"boxes": np.zeros((6, 4), int)}, "boxes must be a torch.Tensor.* got a numpy.ndarray"),
        ({"draw": 2**32}, "draw is 4294967296: choose a whole number"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(option, message):
    _, runs = batch_of(np.random.default_rng(0), 1)
    arguments = {"ids": torch.arange(6), "points": 2, "seed": 0, "epoch": 0, **option}
    with pytest.raises(OptionError, match=message):
        prompts.draw_points(runs, **arguments)
