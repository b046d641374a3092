"""A crop around each mask, compared with PIL's windows of each image and with cells in Python."""

import math

import numpy as np
import pytest
import torch
from made_batches import Layout, dataset, moved, noisy_batch
from PIL import Image
from small_tars import members, pack_small, write_tar

import sa1bpack
from sa1bpack import Loader, OptionError
from sa1bpack import transforms as T

LAYOUT = Layout(image_size=48, mask_size=48)
PLAIN = {"mean": (10, 20, 30), "std": (2, 3, 4)}


def made_batch(steps=(), size=(40, 44), mask_size=(20, 44), **options):
    """What a pipeline makes of four noisy images with a mask each, on the CPU."""
    pipeline = T.Pipeline(
        dataset(LAYOUT), steps, size=size, mask_size=mask_size, **{**PLAIN, **options}
    )
    return pipeline(noisy_batch(LAYOUT, "bool"), 0)


def window_of(box, size, scale):
    """x0, y0, x1, y1 by the definition."""
    x0, y0, x1, y1 = box
    height, width = size
    step = scale * max((x1 - x0) / width, (y1 - y0) / height)
    middle = (x0 + x1) / 2, (y0 + y1) / 2
    half = step * width / 2, step * height / 2
    return [middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1]]


def axis_weights(start, step, content, count, length):
    """(count, length): the triangle filter of each output pixel, by its definition."""
    support = max(step, 1.0)
    weights = np.zeros((count, length))
    inside = np.zeros(count, bool)
    centers = start + step * (np.arange(count) + 0.5)
    pixels = min(max(math.ceil(content - 0.5), 1), length)
    for i, center in enumerate(centers):
        inside[i] = 0 <= center < content
        for k in range(pixels):
            weights[i, k] = max(0.0, 1 - abs(k + 0.5 - center) / support)
        if weights[i].sum() > 0:
            weights[i] /= weights[i].sum()
    return weights, inside, centers


def brute_force(batch, size, scale, background):
    """Crops and masks, pixel by pixel of their definition."""
    images, masks = [], []
    height, width = size
    counts = batch["mask_counts"].tolist()
    canvas = batch["images"].shape[2:]
    mean, std = batch["pixel_mean"].numpy(), batch["pixel_std"].numpy()
    for b, count in enumerate(counts):
        for n in range(count):
            row = (b, n) if batch["masks"].ndim == 4 else sum(counts[:b]) + n
            box = batch["boxes_xyxy"][row].double().tolist()
            x0, y0, x1, y1 = window_of(box, size, scale)
            extent_y, extent_x = batch["input_sizes"][b].tolist()
            empty = not (box[2] > box[0] and box[3] > box[1])
            step_x, step_y = (x1 - x0) / width, (y1 - y0) / height
            across, in_x, x = axis_weights(x0, step_x, extent_x, width, canvas[1])
            down, in_y, y = axis_weights(y0, step_y, extent_y, height, canvas[0])
            image = batch["images"][b].float().numpy()
            crop = np.einsum("ih,chw,jw->cij", down, image, across)
            grid = batch["masks"][row].numpy()
            rows = np.clip(y * grid.shape[0] / canvas[0], 0, grid.shape[0] - 1).astype(int)
            columns = np.clip(x * grid.shape[1] / canvas[1], 0, grid.shape[1] - 1).astype(int)
            inside = in_y[:, None] & in_x[None, :] & (not empty)
            cells = grid[rows[:, None], columns[None, :]] & inside
            outside = np.zeros(3)
            if background is not None:
                outside = (np.broadcast_to(background, 3) - mean) / std
            shown = inside if background is None else cells
            images.append(np.where(shown, crop, outside[:, None, None]))
            masks.append(cells)
    return np.stack(images), np.stack(masks)


CASES = {
    "enlarged": ({}, 20, 1.2, None),
    "reduced": ({"size": (90, 100), "mask_size": 50}, (12, 20), 1.0, (0, 128, 255)),
    "flipped and cropped": (
        {"steps": [T.RandomHorizontalFlip(1), T.RandomResizedCrop((0.3, 0.6))]},
        24,
        2.5,
        90,
    ),
    "rotated": ({"steps": [T.RandomAffine((20, 20))]}, 16, 1.5, None),
}


@pytest.mark.parametrize("name", CASES)
def test_crops_are_those_of_their_definition(everywhere, name):
    options, size, scale, background = CASES[name]
    batch = made_batch(**options)
    height_and_width = size if isinstance(size, tuple) else (size, size)
    images, masks = brute_force(batch, height_and_width, scale, background)
    crops = T.mask_crops(moved(batch, everywhere), size, scale=scale, background=background)
    assert crops.images.shape == images.shape and crops.images.dtype == torch.float32
    assert crops.owner.tolist() == crops.rows.tolist() == [0, 1, 2, 3]
    # A centre on the border of two cells may fall into either, by rounding.
    assert (crops.masks.cpu().numpy() != masks).mean() < 1e-3
    close = np.isclose(crops.images.cpu().numpy(), images, rtol=1e-4, atol=2e-3)
    assert close.mean() > 0.999
    for window, box in zip(crops.windows.tolist(), batch["boxes_xyxy"][:, 0].tolist(), strict=True):
        if box[2] > box[0] and box[3] > box[1]:
            np.testing.assert_allclose(window, window_of(box, height_and_width, scale), atol=1e-9)


def test_a_crop_within_the_image_has_the_pixels_of_pil():
    batch = made_batch(size=(90, 90), mask_size=90, mean=(0, 0, 0), std=(1, 1, 1))
    crops = T.mask_crops(batch, 40, scale=1.0)
    extent = batch["input_sizes"][0].tolist()
    compared = 0
    for k, (x0, y0, x1, y1) in enumerate(crops.windows.tolist()):
        if min(x0, y0) < 0 or x1 > extent[1] or y1 > extent[0]:
            continue
        channels = [
            Image.fromarray(plane.numpy()).crop((0, 0, int(extent[1]), int(extent[0])))
            for plane in batch["images"][k]
        ]
        expected = np.stack(
            [
                np.asarray(c.resize((40, 40), Image.Resampling.BILINEAR, (x0, y0, x1, y1)))
                for c in channels
            ]
        )
        np.testing.assert_allclose(crops.images[k].numpy(), expected, atol=0.05)
        compared += 1
    assert compared


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_crops_have_the_type_of_the_images(everywhere, kind):
    batch = made_batch(dtype=kind)
    crops = T.mask_crops(moved(batch, everywhere), 16)
    assert crops.images.dtype == kind
    expected = T.mask_crops(batch | {"images": batch["images"].float()}, 16)
    torch.testing.assert_close(crops.images.float().cpu(), expected.images, rtol=1e-2, atol=0.6)


def test_a_mask_that_is_out_of_the_picture_has_an_empty_crop(everywhere):
    batch = made_batch()
    batch["boxes_xyxy"][1] = 0
    for background, expected in ((None, 0.0), (10, 0.0)):
        crops = T.mask_crops(moved(batch, everywhere), 8, background=background)
        assert not crops.masks[1].any()
        assert (crops.images[1, 0] == expected).all()
        assert crops.masks[0].any()


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crops")
    tar = write_tar(folder / "sa_000000.tar", members(range(1, 7), lambda number: number % 4))
    pack_small(tar, folder / "packed")
    return sa1bpack.open(folder / "packed")


def test_padding_has_no_crops_and_layouts_agree(ds):
    pipeline = T.Pipeline(ds, size=64)
    for padded, joined in zip(Loader(ds, 3), Loader(ds, 3, mask_layout="concat"), strict=True):
        first = T.mask_crops(pipeline(padded), 20)
        second = T.mask_crops(pipeline(joined), 20)
        counts = padded["mask_counts"]
        assert first.owner.tolist() == torch.arange(len(counts)).repeat_interleave(counts).tolist()
        assert torch.equal(first.owner, second.owner)
        assert torch.equal(first.images, second.images) and torch.equal(first.masks, second.masks)
        ids = padded["annotation_ids"].flatten(0, 1)[first.rows]
        assert torch.equal(ids, joined["annotation_ids"][second.rows])


def test_a_batch_without_masks_has_no_crops(ds):
    none = ds.where("mask_count == 0")
    crops = T.mask_crops(T.Pipeline(none)(next(iter(Loader(none, 1)))), 20)
    assert crops.images.shape == (0, 3, 20, 20) and crops.masks.shape == (0, 20, 20)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": 5000}, "size is 5000"),
        ({"scale": 0}, "scale is 0"),
        ({"background": 256}, "background is 256: choose a number or three"),
        ({"background": (1, 2)}, r"background is \(1, 2\)"),
        ({"background": "white"}, "background is 'white'"),
    ],
)
def test_values_that_cannot_be_used_are_refused(arguments, named):
    with pytest.raises(OptionError, match=named):
        T.mask_crops(made_batch(), **arguments)


def test_what_no_pipeline_made_is_refused(ds):
    with pytest.raises(OptionError, match="the batch has no boxes_xyxy, input_sizes"):
        T.mask_crops(next(iter(Loader(ds, 2))))
