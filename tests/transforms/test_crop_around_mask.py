"""A crop around one mask of each image, compared with its definition in Python and with PIL."""

from collections import Counter

import numpy as np
import pytest
import torch
from made_batches import LAYOUT, dataset, moved, noisy_batch
from PIL import Image
from small_tars import members, pack_small, write_tar

import sa1bpack
from sa1bpack import Loader, OptionError
from sa1bpack import transforms as T

# Masks of three images of 64 x 96 stored pixels: x, y, w, h as SA-1B has them, in pixels.
BOXES = [
    [(10, 20, 19, 9), (70, 40, 9, 19), (0, 0, 4, 4)],
    [(30, 30, 0, 0)],
    [],
]
PLAIN = {"mean": (0, 0, 0), "std": (1, 1, 1)}


def batch_of(boxes=BOXES, padded=True):
    """Noisy images with these boxes of masks, whose masks are empty."""
    made = noisy_batch(LAYOUT, "bits")
    count = len(boxes)
    counts = torch.tensor([len(of_image) for of_image in boxes])
    most = max(int(counts.max()), 1)
    batch = {
        "images": made["images"][:count],
        "sizes": torch.tensor([[64, 96, 64, 96]] * count, dtype=torch.int32),
        "image_ids": torch.arange(count) + 7,
        "mask_counts": counts,
    }
    if padded:
        batch["bboxes"] = torch.zeros(count, most, 4)
        for k, of_image in enumerate(boxes):
            for n, box in enumerate(of_image):
                batch["bboxes"][k, n] = torch.tensor(box)
    else:
        rows = [box for of_image in boxes for box in of_image]
        batch["bboxes"] = torch.tensor(rows, dtype=torch.float32).view(-1, 4)
        batch["mask_offsets"] = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    shape = batch["bboxes"].shape[:-1]
    batch["masks"] = torch.zeros(*shape, 96, 12, dtype=torch.uint8)
    return batch


def pipeline_of(*steps, size=(48, 96), seed=3):
    return T.Pipeline(dataset(LAYOUT), steps, size=size, seed=seed, **PLAIN)


def window_of(box, canvas, factor):
    """x0, y0, x1, y1 of the window in stored pixels, by the definition, for a centred box."""
    x, y, w, h = box
    height, width = canvas
    fit = min(height / 64, width / 96)  # canvas pixels per stored pixel
    extent = 96 * fit, 64 * fit
    sides = (w + 1) * fit, (h + 1) * fit
    zoom = factor * max(sides[0] / width, sides[1] / height)
    zoom = min(max(zoom, 32 / max(canvas)), max(extent[0] / width, extent[1] / height))
    window = zoom * width, zoom * height
    middle = (x + (w + 1) / 2) * fit, (y + (h + 1) / 2) * fit
    corner = [
        min(max(middle[axis] - window[axis] / 2, 0), max(extent[axis] - window[axis], 0))
        for axis in (0, 1)
    ]
    ends = [corner[0] + window[0], corner[1] + window[1]]
    return [value / fit for value in (*corner, *ends)]


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("factor", [1.0, 2.0, 50.0])
def test_the_window_is_that_of_the_definition_and_its_pixels_those_of_pil(device, padded, factor):
    canvas = (48, 96)
    pipeline = pipeline_of(T.CropAroundMask((factor, factor)), size=canvas)
    batch = batch_of(padded=padded)
    seen = set()
    for epoch in range(10, 16):
        made = pipeline(moved(batch, device), epoch)
        chosen = made["crop_mask"].tolist()
        assert chosen[1:] == [0, -1]
        seen.add(chosen[0])
        for k in (0, 1):
            x0, y0, x1, y1 = window_of(BOXES[k][chosen[k]], canvas, factor)
            to_source = made["input_to_source"][k].cpu().numpy()
            np.testing.assert_allclose(to_source @ [0, 0, 1], [x0, y0], atol=1e-9)
            np.testing.assert_allclose(to_source @ [96, 48, 1], [x1, y1], atol=1e-9)
            stored = Image.fromarray(batch["images"][k, :64].numpy())
            inside = (x0, y0, min(x1, 96), min(y1, 64))
            height, width = made["input_sizes"][k].tolist()
            found = made["images"][k].permute(1, 2, 0).cpu().numpy()
            if (width, height) == (96, 48):
                expected = stored.resize((96, 48), Image.Resampling.BILINEAR, inside)
                np.testing.assert_allclose(found, np.asarray(expected), atol=1.01)
            assert not found[int(np.ceil(height)) :].any()
            assert not found[:, int(np.ceil(width)) :].any()
    assert seen == {0, 1, 2}


def test_the_box_is_in_the_window_and_has_its_share_of_it(device):
    pipeline = pipeline_of(T.CropAroundMask((1.3, 3.0), shift=1.0, min_side=1), size=64)
    random = np.random.default_rng(0)
    corners = random.integers(0, (60, 40), (4, 5, 2))
    sides = random.integers(4, 20, (4, 5, 2))
    boxes = np.concatenate([corners, sides], 2).tolist()
    shares = []
    for epoch in range(20):
        made = pipeline(moved(batch_of(boxes), device), epoch)
        for k, number in enumerate(made["crop_mask"].tolist()):
            x0, y0, x1, y1 = made["boxes_xyxy"][k, number].tolist()
            assert 0 <= x0 < x1 <= 64 and 0 <= y0 < y1 <= 64
            w = boxes[k][number][2]
            scale = made["source_to_input"][k, 0, 0].item()
            assert x1 - x0 == pytest.approx((w + 1) * scale, abs=1e-3)
            shares.append(64 / max(x1 - x0, y1 - y0))
    assert 1.3 <= min(shares) < 1.5 and 2.6 < max(shares) <= 3.0 + 1e-6


@pytest.mark.parametrize("padded", [True, False])
def test_each_visible_mask_is_drawn_alike_and_again_in_the_same_way(padded):
    boxes = [[(10 * n, 5 * n, 9, 4) for n in range(7)]] * 4
    pipeline = pipeline_of(T.CropAroundMask())
    batch = batch_of(boxes, padded)
    counts = Counter()
    for epoch in range(80):
        counts.update(pipeline(batch, epoch)["crop_mask"].tolist())
    assert torch.equal(pipeline(batch, 3)["crop_mask"], pipeline(batch, 3)["crop_mask"])
    assert counts.keys() == set(range(7))
    assert all(abs(count - 320 / 7) < 4 * (320 / 7) ** 0.5 for count in counts.values())


def test_the_largest_box_is_chosen_and_of_equal_ones_the_first(device):
    boxes = [[(0, 0, 3, 9), (5, 5, 9, 9), (9, 9, 9, 9)], [(1, 1, 2, 2)], []]
    pipeline = pipeline_of(T.CropAroundMask(select="largest"))
    assert pipeline(moved(batch_of(boxes), device), 0)["crop_mask"].tolist() == [1, 0, -1]


def test_masks_that_an_earlier_step_cut_off_are_not_chosen(device):
    class RightHalf(T.GeometricStep):
        def __call__(self, frame, uniform):
            offset = torch.zeros_like(frame.extent)
            offset[:, 0] = frame.extent[:, 0] / 2
            maps = T.AxisMaps(torch.ones_like(frame.extent), offset)
            return frame.step(maps, frame.extent - offset)

    boxes = [[(5, 5, 20, 20), (60, 10, 9, 9)], [(5, 5, 20, 20)], [(90, 0, 5, 5), (0, 0, 9, 9)]]
    pipeline = pipeline_of(RightHalf(), T.CropAroundMask())
    for epoch in range(5):
        made = pipeline(moved(batch_of(boxes), device), epoch)
        assert made["crop_mask"].tolist() == [1, -1, 0]


def test_an_image_without_masks_stays_as_it_is(device):
    batch = batch_of([[], []])
    made = pipeline_of(T.CropAroundMask())(moved(batch, device), 0)
    expected = pipeline_of()(moved(batch, device), 0)
    assert made["crop_mask"].tolist() == [-1, -1]
    assert torch.equal(made["images"], expected["images"])
    assert torch.equal(made["input_to_source"], expected["input_to_source"])


def test_it_may_follow_a_rotation(device):
    steps = [T.RandomAffine((30, 30)), T.CropAroundMask((3.0, 3.0))]
    made = pipeline_of(*steps, size=96)(moved(batch_of([[(40, 25, 9, 9)]]), device), 0)
    x0, y0, x1, y1 = made["boxes_xyxy"][0, 0].tolist()
    assert max(x1 - x0, y1 - y0) == pytest.approx(32, abs=0.1)
    assert (x0 + x1) / 2 == pytest.approx(48, abs=0.1)


def test_a_loader_batch_has_the_same_crops_in_every_layout(layout_packs_ds):
    found = []
    for layout in ("padded", "concat", "concat_bits"):
        pipeline = T.Pipeline(layout_packs_ds, [T.CropAroundMask()], size=64)
        batches = [pipeline(batch) for batch in Loader(layout_packs_ds, 3, mask_layout=layout)]
        found.append([batch["images"] for batch in batches])
    for images in zip(*found, strict=True):
        assert torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])


@pytest.fixture(scope="module")
def layout_packs_ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crops")
    tar = write_tar(folder / "sa_000000.tar", members(range(1, 7), lambda number: number % 4))
    pack_small(tar, folder / "packed")
    return sa1bpack.open(folder / "packed")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: T.CropAroundMask((0, 1)), r"scale is \(0, 1\)"),
        (lambda: T.CropAroundMask(select="iou"), "select is 'iou': choose one of random, largest"),
        (lambda: T.CropAroundMask(shift=2), "shift is 2"),
        (lambda: T.CropAroundMask(min_side=0), "min_side is 0"),
        (
            lambda: pipeline_of(T.CropAroundMask(), T.CropAroundMask()),
            "at most one may be CropAroundMask",
        ),
        (
            lambda: pipeline_of(T.CropAroundMask())(
                {key: value for key, value in batch_of().items() if key != "bboxes"}, 0
            ),
            "but the batch has no 'bboxes'",
        ),
        (
            lambda: T.CropAroundMask()(None, None),
            "it is a step of a Pipeline",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(make, named):
    with pytest.raises(OptionError, match=named):
        make()


def test_the_text_of_a_pipeline_has_the_step():
    step = T.CropAroundMask((1.5, 2), shift=0.5)
    assert "CropAroundMask(" in str(pipeline_of(step)) and "shift=0.5" in repr(step)
