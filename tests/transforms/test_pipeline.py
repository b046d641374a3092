"""The pipeline: images, masks, boxes and points stay aligned for all steps and layouts."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_batches import (
    FEW_STEPS,
    LAYOUT,
    RECTANGLES,
    RELATIONS,
    STEPS,
    Layout,
    dataset,
    moved,
    ragged,
    rectangle_batch,
    rectangle_runs,
    sent,
)
from sync_debug import waiting_is_an_error

from sa1bpack import LinearSchedule, OptionError, PiecewiseSchedule
from sa1bpack import transforms as T

GEOMETRIC = {
    "none": [],
    "flips": [T.RandomHorizontalFlip(), T.RandomVerticalFlip()],
    "crop and flip": [T.RandomResizedCrop((0.2, 0.9)), T.RandomHorizontalFlip()],
    "everything": [
        T.RandomHorizontalFlip(),
        T.ScaleJitter(0.5, 1.5),
        T.RandomVerticalFlip(),
        T.RandomResizedCrop((0.5, 1.0)),
        T.RandomHorizontalFlip(0.9),
        T.ScaleJitter(0.7, 0.9),
    ],
}
PLAIN = {"mean": (0, 0, 0), "std": (255, 255, 255)}


def span(profile: torch.Tensor) -> tuple[float, float]:
    """Start and end of the object in a row, from its weight on both sides of its middle."""
    profile = profile.double().clamp(0, 1)
    middle = int((torch.arange(len(profile)) * profile).sum() / profile.sum())
    return middle - float(profile[:middle].sum()), middle + float(profile[middle:].sum())


@pytest.mark.parametrize("fit, coordinates", [("pad", "source"), ("squash", "stored")])
@pytest.mark.parametrize("steps", GEOMETRIC.values(), ids=GEOMETRIC.keys())
def test_image_mask_box_and_point_stay_together_to_half_a_pixel(steps, coordinates, fit, device):
    """The edges of a white rectangle, found in the image, in the mask and in the box.

    First the edges of the rectangles are edges of stored cells, then the masks are drawn from the
    runs, and last they are sampled from a grid that is itself off by up to half a cell.
    """
    layout = Layout(fit=fit)
    on_cells = [(20, 30, 120, 102), (0, 0, 50, 42), (100, 60, 190, 138), (6, 12, 186, 132)]
    for source, rectangles, exact, off in (
        ((144, 192), on_cells, False, 0.0),
        ((150, 225), RECTANGLES, True, 0.0),
        ((150, 225), RECTANGLES, False, 0.5),
    ):
        batch = moved(rectangle_batch(layout, rectangles, source, coordinates), device)
        if exact:
            batch["runs"] = rectangle_runs(rectangles, source).to(device)
        pipeline = T.Pipeline(dataset(layout, coordinates), steps, seed=5, **PLAIN)
        seen = 0
        for epoch in range(4):
            done = pipeline(batch, epoch)
            images = done["images"].cpu()
            masks = done["masks"].cpu()
            # Source pixels per stored cell, divided by those per pixel of the result, x and y.
            cell = torch.tensor([source[1], source[0] if fit == "squash" else max(source)]) / 96
            zoom = cell / done["input_to_source"].cpu()[:, [0, 1], [0, 1]].abs()
            for k, (x0, y0, x1, y1) in enumerate(done["boxes_xyxy"][:, 0].tolist()):
                if min(x1 - x0, y1 - y0) < 4:
                    continue
                seen += 1
                row = int((y0 + y1) / 2)
                column = int((x0 + x1) / 2)
                image = images[k].mean(0)
                mask = masks[k, 0]
                for axis, line, expected in (
                    (0, (row,), (x0, x1)),
                    (1, (slice(None), column), (y0, y1)),
                ):
                    np.testing.assert_allclose(span(image[line]), expected, atol=0.5)
                    atol = 0.5 + off * float(zoom[k, axis]) + 2e-3  # runs are drawn to 1/1024 pixel
                    np.testing.assert_allclose(span(mask[line]), expected, atol=atol)
                x, y = done["point_coords"][k, 0].tolist()
                if done["point_inside"][k, 0]:
                    assert image[int(y), int(x)] > 0.9 and mask[int(y), int(x)]
        assert seen >= 8


def test_without_steps_pixels_and_masks_are_those_of_the_batch():
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    batch["images"][:] = torch.randint(0, 256, batch["images"].shape, dtype=torch.uint8)
    pipeline = T.Pipeline(dataset(LAYOUT), **PLAIN)
    done = pipeline(batch)
    expected = batch["images"].permute(0, 3, 1, 2).float() / 255
    assert torch.equal(done["images"][:, :, :64], expected[:, :, :64])
    assert not done["images"][:, :, 64:].any() and done["images"].is_contiguous()
    exact = pipeline(batch | {"runs": rectangle_runs(RECTANGLES)})
    for found in (done, exact):  # runs are drawn as the grid of the pack
        assert torch.equal(found["masks"], T.unpack_bits(batch["masks"]))


def test_all_layouts_of_a_batch_have_the_same_result(device):
    steps = [T.RandomResizedCrop((0.3, 1.0)), *STEPS["colors"]]
    pipeline = T.Pipeline(dataset(LAYOUT), steps, size=(64, 80), mask_size=(16, 20))
    done = {
        layout: pipeline(moved(ragged(layout), device), 1)
        for layout in ("padded", "concat", "padded_bits", "concat_bits")
    }
    padded = done["padded"]
    flat = done["concat"]
    assert padded["masks"].shape == (3, 3, 16, 20) and padded["masks"].dtype == torch.bool
    assert padded["images"].shape == (3, 3, 64, 80)
    real = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]], dtype=torch.bool, device=device)
    assert not padded["valid"][~real].any() and not padded["masks"][~real].any()
    for key in ("masks", "boxes_xyxy", "point_coords", "point_inside", "valid", "areas"):
        assert torch.equal(padded[key][real], flat[key]), key
        for layout in ("padded", "concat"):
            assert torch.equal(done[layout][key], done[layout + "_bits"][key]), key
    assert torch.equal(padded["images"], flat["images"])


def test_runs_without_padding_are_drawn_in_the_rows_of_their_masks(device):
    """Three samples with 2, 0 and 1 masks: runs of three masks, and of nine in padded arrays."""
    of_one = rectangle_runs([RECTANGLES[k] for k in (0, 2, 1)])
    runs = replace(of_one, mask_offset=torch.tensor([0, 2, 2, 3]))
    pipeline = T.Pipeline(dataset(LAYOUT), [T.RandomHorizontalFlip()])
    flat = pipeline({**moved(ragged("concat"), device), "runs": runs.to(device)}, 0)["masks"]
    padded = pipeline({**moved(ragged("padded"), device), "runs": runs.to(device)}, 0)["masks"]
    assert flat.flatten(1).any(1).all()
    assert torch.equal(padded[0, :2], flat[:2]) and torch.equal(padded[2, 0], flat[2])
    assert padded.sum() == flat.sum()


def test_an_image_is_treated_the_same_in_every_batch(device):
    steps = [T.RandomHorizontalFlip(), T.ScaleJitter(0.5, 1.5), T.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    pipeline = T.Pipeline(dataset(LAYOUT), steps, seed=3)
    batch = moved(rectangle_batch(LAYOUT, RECTANGLES), device)
    whole = pipeline(batch, 7)
    for order in ([2], [3, 0], [1, 2, 3, 0]):
        part = pipeline({key: value[order] for key, value in batch.items()}, 7)
        for key in ("input_to_source", "boxes_xyxy", "masks", "valid"):
            assert torch.equal(part[key], whole[key][order]), key
        torch.testing.assert_close(part["images"], whole["images"][order], atol=1e-4, rtol=0)
    again = T.Pipeline(dataset(LAYOUT), steps, seed=3)(batch, 7)
    assert all(torch.equal(again[key], whole[key]) for key in whole)
    for other in (pipeline(batch, 8), T.Pipeline(dataset(LAYOUT), steps, seed=4)(batch, 7)):
        assert not torch.equal(other["input_to_source"], whole["input_to_source"])


def test_a_mask_outside_the_image_is_not_valid_and_keeps_its_row():
    batch = rectangle_batch(LAYOUT, [(0, 0, 20, 20), (200, 130, 225, 150)])
    batch["image_ids"][:] = 100  # the same crop for both
    pipeline = T.Pipeline(dataset(LAYOUT), [T.RandomResizedCrop((0.05, 0.1))])
    done = pipeline(batch, 0)
    gone = ~done["masks"].flatten(1).any(1)
    assert gone.tolist() in ([True, False], [False, True], [True, True])
    assert torch.equal(done["valid"][:, 0], ~gone)
    assert done["boxes_xyxy"].shape == (2, 1, 4)
    flat = done["boxes_xyxy"][gone, 0]
    assert ((flat[:, 2:] == flat[:, :2]).any(1)).all()
    assert not done["point_inside"][gone].any()
    without = {key: value for key, value in batch.items() if key != "masks"}
    assert torch.equal(pipeline(without, 0)["valid"], done["valid"])  # by the box alone


def test_a_mask_with_less_than_the_minimum_area_is_not_valid():
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    areas = T.unpack_bits(batch["masks"]).sum((1, 2, 3))
    for limit in sorted(areas.tolist()):
        done = T.Pipeline(dataset(LAYOUT), min_area=limit)(batch)
        assert torch.equal(done["valid"][:, 0], areas >= limit)


@pytest.mark.parametrize("layout", ["padded", "concat_bits"])
def test_a_batch_without_samples_or_masks_has_all_keys(layout, device):
    pipeline = T.Pipeline(dataset(LAYOUT), STEPS["colors"])
    expected = pipeline(moved(ragged(layout), device), 0)
    offsets = {"mask_offsets": torch.zeros(1, dtype=torch.int64)} if "concat" in layout else {}
    batch = {key: value[:0] for key, value in ragged(layout).items()} | offsets
    done = pipeline(moved(batch, device), 0)
    assert {key: value.dtype for key, value in done.items()} == {
        key: value.dtype for key, value in expected.items()
    }
    assert done["images"].shape == (0, 3, 96, 96) and done["masks"].shape[-2:] == (96, 96)
    bare = ragged(layout)
    bare["mask_counts"][:] = 0
    masks = ("masks", "bboxes", "point_coords", "areas")
    bare |= {key: bare[key][:, :0] if layout == "padded" else bare[key][:0] for key in masks}
    if "concat" in layout:
        bare["mask_offsets"][:] = 0
    assert pipeline(moved(bare, device), 0)["boxes_xyxy"].numel() == 0


@pytest.mark.parametrize("layout", ["padded", "concat"])
def test_keys_missing_from_the_batch_are_missing_from_the_result(layout):
    whole = T.Pipeline(dataset(LAYOUT), [T.RandomHorizontalFlip()])(ragged(layout), 0)
    for missing, without in (
        (("masks",), {"masks"}),
        (("bboxes", "areas"), {"boxes_xyxy", "areas"}),
        (
            ("masks", "bboxes", "point_coords", "areas"),
            {"masks", "boxes_xyxy", "point_coords", "point_inside", "areas", "valid"},
        ),
    ):
        batch = {key: value for key, value in ragged(layout).items() if key not in missing}
        done = T.Pipeline(dataset(LAYOUT), [T.RandomHorizontalFlip()])(batch, 0)
        assert done.keys() == whole.keys() - without
        assert all(torch.equal(done[key], whole[key]) for key in done)


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["padded", "concat_bits", "runs"])
@pytest.mark.parametrize("way", [moved, sent])
@pytest.mark.parametrize("steps", FEW_STEPS.values(), ids=FEW_STEPS.keys())
def test_nothing_waits_for_the_device(steps, way, layout):
    """Without one: `test_no_step_depends_on_data`."""
    known = way is sent or not layout.startswith("concat")  # how many masks the fullest sample has
    pipeline = T.Pipeline(dataset(LAYOUT), steps, relations=tuple(RELATIONS) if known else ())
    batch = way(ragged(layout), torch.device("cuda", 0))
    pipeline(batch, 0)  # tables are copied to the device once
    with waiting_is_an_error():
        pipeline(batch, 1)


@pytest.mark.cuda
@pytest.mark.parametrize("steps", FEW_STEPS.values(), ids=FEW_STEPS.keys())
def test_a_graph_of_a_pipeline_makes_what_a_call_makes(steps):
    """Without a device: tests of `test_devices.py` that nothing comes from the host."""
    device = torch.device("cuda", 0)
    pipeline = T.Pipeline(dataset(LAYOUT), steps)
    batch = sent(ragged("padded_bits"), device)
    T.forget_sent(batch)  # a graph reads all numbers on the device
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = pipeline(batch, 1)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = pipeline(batch, 1)
    graph.replay()
    for key, tensor in expected.items():
        assert not torch.is_tensor(tensor) or torch.equal(captured[key], tensor), key


def test_the_batch_is_not_changed():
    batch = rectangle_batch(LAYOUT, RECTANGLES)
    before = {key: value.clone() for key, value in batch.items()}
    for steps in ([], [T.RandomHorizontalFlip(), T.ColorJitter(0.5, 0.5, 0.5, 0.5), T.Mixup()]):
        T.Pipeline(dataset(LAYOUT), steps)(batch, 0)
    assert batch.keys() == before.keys()
    assert all(torch.equal(batch[key], before[key]) for key in before)


# ------------------------------------------------------------------ sizes that change

DS = dataset(LAYOUT)
CROP = [T.RandomHorizontalFlip(), T.RandomResizedCrop((0.4, 1.0))]


@pytest.fixture
def batch():
    return rectangle_batch(LAYOUT, RECTANGLES) | {"runs": rectangle_runs(RECTANGLES)}


@pytest.mark.parametrize("steps", [[], CROP], ids=["none", "crop"])
def test_every_epoch_and_step_has_its_sizes_and_masks_are_drawn_at_them(batch, steps):
    changing = T.Pipeline(
        DS,
        steps,
        size=LinearSchedule(48, 96, epochs=2, multiple=8),
        seed=3,
        mask_size=PiecewiseSchedule(24, {2: (32, 40), 4: 96}, by="step"),
    )
    for pipeline in (changing, pickle.loads(pickle.dumps(changing))):
        for epoch, step, size, grid in (
            (0, 0, 48, 24),
            (0, 1, 48, 24),
            (1, 2, 72, (32, 40)),
            (1, 4, 72, 96),
            (7, 9, 96, 96),
            (0, 1, 48, 24),
        ):
            given = batch | {"epoch": epoch, "global_step": step}
            expected = T.Pipeline(DS, steps, size=size, mask_size=grid, seed=3)(given)
            found = pipeline(given)
            assert found.keys() == expected.keys()
            tensors = [key for key in found if torch.is_tensor(found[key])]
            assert all(torch.equal(found[key], expected[key]) for key in tensors)
            assert expected["images"].shape[2:] == (size, size)
    text = repr(changing)
    assert "size=LinearSchedule(48, 96, epochs=2, multiple=8)" in text
    assert "mask_size=PiecewiseSchedule((24, 24), {2: (32, 40), 4: (96, 96)}, by=step)" in text


def test_a_list_is_a_size_per_epoch_a_tuple_is_height_and_width(batch):
    by_epoch = T.Pipeline(DS, size=[48, 96])
    pair = T.Pipeline(DS, size=(48, 96))
    shapes = [by_epoch(batch, epoch=epoch)["images"].shape[2:] for epoch in (0, 1, 5)]
    assert shapes == [(48, 48), (96, 96), (96, 96)]
    assert by_epoch(batch, epoch=0)["masks"].shape[2:] == (48, 48)  # as many pixels per cell
    assert pair(batch)["images"].shape[2:] == (48, 96)
    pairs = T.Pipeline(DS, size=[(48, 96), (96, 48)])
    assert pairs(batch, epoch=1)["images"].shape[2:] == (96, 48)


def test_a_batch_without_the_epoch_or_step_that_sizes_need_is_refused(batch):
    with pytest.raises(OptionError, match="the batch has no 'epoch', but steps or sizes"):
        T.Pipeline(DS, size=[48, 96])(batch)
    by_step = T.Pipeline(DS, size=PiecewiseSchedule(48, {3: 96}, by="step"))
    with pytest.raises(OptionError, match="change by step, but the batch has no 'global_step'"):
        by_step(batch | {"epoch": 0})
    assert by_step(batch | {"global_step": 3})["images"].shape[2:] == (96, 96)
