"""Synthetic batches with known contents, for the tests of transforms."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from mask_oracle import runs_of

from sa1bpack import transforms as T
from sa1bpack.display import Batch
from sa1bpack.transforms import RunBatch, backends, host


class Layout(NamedTuple):
    """What tests of transforms choose of a pack's layout."""

    image_size: int = 96
    mask_size: int = 96
    fit: str = "pad"
    pixels: str = "rgb"
    absent: tuple[str, ...] = ()


LAYOUT = Layout()
# In images of 150 x 225 pixels: x0, y0, x1, y1.
RECTANGLES = [(20, 30, 120, 100), (0, 0, 50, 40), (100, 60, 200, 141), (7, 11, 219, 149)]
FLIP, CROP = T.RandomHorizontalFlip(), T.RandomResizedCrop()
# Of pipelines that must have one result, however it is made.
# What a pipeline makes of masks and their numbers.
KEYS = ("masks", "valid", "boxes_xyxy", "point_coords", "point_inside", "input_to_source")
STEPS = {
    "none": [],
    "flip": [FLIP],
    "crop": [T.RandomResizedCrop((0.1, 0.9)), FLIP],
    "jitter": [T.ScaleJitter(0.2, 2.0), FLIP],
    "affine": [T.RandomResizedCrop((0.3, 0.9)), T.RandomAffine((10, 60), 20), FLIP],
    "affine, colors": [
        T.ScaleJitter(0.3),
        T.RandomAffine(180),
        T.ColorJitter(0.4),
        T.GaussianBlur(5),
        T.CutMix(),
    ],
    "colors": [
        FLIP,
        T.ScaleJitter(0.5, 1.5),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1, random_order=True),
        T.RandomGrayscale(0.3),
        T.GaussianBlur(5, p=0.7),
        T.RandomErasing(masks=True),
        T.Mixup(),
    ],
}
# Few, for what does not depend on the kind of a step.
FEW_STEPS = {
    "no steps": [],
    "enlarging": [CROP, FLIP, T.Mixup()],
    "affine": [T.RandomAffine(20, 10), CROP, T.CutMix()],
    "any": [
        T.ScaleJitter(),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1, random_order=True),
        T.RandomGrayscale(),
        T.GaussianBlur(5),
        T.RandomErasing(masks=True),
        T.Mixup(),
    ],
}
# Relation → whether it is of pairs of masks, and its value where there is no mask; docs/masks.md.
RELATIONS = dict.fromkeys(
    ("intersections", "ious", "containments", "touching", "distances", "children"), (True, 0)
) | {
    "centroids": (False, 0), "mask_boxes": (False, 0), "parents": (False, -1),
    "depths": (False, 0), "levels": (False, -1),
}  # fmt: skip


@contextmanager
def made_by(compiled_on: tuple[str, ...] = (), triton_on: tuple[str, ...] = ()) -> Iterator[None]:
    """Let compiled and Triton kernels make the batches of these types of devices alone; torch
    operations do so on all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "COMPILED_ON", compiled_on)
        patch.setattr(backends, "TRITON_ON", triton_on)
        yield


def drawn(count: int, device="cpu"):
    """A function of n: uniform numbers, float64 (count, n), of which more begin with the same."""
    numbers = np.random.default_rng(0).random((64, count)).T
    return lambda n: torch.from_numpy(numbers[:, :n]).to(device)


def dataset(layout: Layout, coordinates: str = "source") -> SimpleNamespace:
    """The attributes of a dataset that a pipeline reads."""
    options = SimpleNamespace(coordinates=coordinates)
    return SimpleNamespace(
        layout=layout, mask_size=layout.mask_size, mask_sampling="area", options=options
    )


def stored_size(height: int, width: int, layout: Layout) -> tuple[int, int]:
    """Stored height and width by the rule of docs/format.md."""
    if layout.fit == "squash":
        return layout.image_size, layout.image_size
    ratio = layout.image_size / max(height, width)
    return int(height * ratio + 0.5), int(width * ratio + 0.5)


def first_frame(sizes: torch.Tensor, canvas: tuple[int, int]) -> T.Frame:
    """The first frame: complete images, as large as possible, in the top left corner."""
    stored = sizes[:, 2:].double()
    scale = (torch.tensor(canvas) / stored).amin(1, keepdim=True)
    maps = T.AxisMaps((1 / scale).expand(-1, 2), torch.zeros(len(sizes), 2).double())
    return T.Frame(maps, (stored * scale).flip(1), canvas)


def rectangle_batch(layout: Layout, rectangles, source=(150, 225), coordinates="source") -> dict:
    """Images that are white inside one rectangle and black outside, with the rectangle as mask.

    Args:
        rectangles: per sample x0, y0, x1, y1 in source pixels, whole numbers.

    Pixels of the stored images have their exact coverage; mask bits are true if at least half of
    the cell is covered.
    """
    height, width = source
    side, grid = layout.image_size, layout.mask_size
    stored = stored_size(height, width, layout)
    cell = [max(source) / grid] * 2 if layout.fit != "squash" else [s / grid for s in source]
    images = np.zeros((len(rectangles), side, side, 3), np.uint8)
    bits = np.zeros((len(rectangles), 1, grid, grid // 8), np.uint8)
    for k, (x0, y0, x1, y1) in enumerate(rectangles):
        down = covered(y0, y1, height / stored[0], stored[0])
        across = covered(x0, x1, width / stored[1], stored[1])
        images[k, : stored[0], : stored[1]] = np.rint(255 * down[:, None] * across)[..., None]
        cells = np.outer(covered(y0, y1, cell[0], grid), covered(x0, x1, cell[1], grid)) >= 0.5
        bits[k, 0] = np.packbits(cells, axis=-1, bitorder="little")
    boxes = np.array([[x0, y0, x1 - x0 - 1, y1 - y0 - 1] for x0, y0, x1, y1 in rectangles])
    points = np.array([[(x0 + x1) / 2, (y0 + y1) / 2] for x0, y0, x1, y1 in rectangles])
    scale = np.array([stored[1] / width, stored[0] / height] if coordinates == "stored" else [1, 1])
    count = len(rectangles)
    return {
        "images": torch.from_numpy(images),
        "masks": torch.from_numpy(bits),
        "mask_counts": torch.ones(count, dtype=torch.int64),
        "bboxes": torch.from_numpy(boxes * np.tile(scale, 2)).float()[:, None],
        "point_coords": torch.from_numpy(points * scale).float()[:, None],
        "areas": torch.from_numpy((boxes[:, 2:] + 1).prod(1))[:, None],
        "image_ids": torch.arange(count) + 100,
        "sizes": torch.tensor([[*source, *stored]] * count, dtype=torch.int32),
    }


def noisy_batch(layout: Layout, masks: str) -> dict:
    """Rectangles with noise as images, and masks in one of their forms."""
    batch = rectangle_batch(layout, RECTANGLES)
    random = torch.Generator().manual_seed(1)
    for image, (height, width) in zip(batch["images"], batch["sizes"][:, 2:], strict=True):
        image[:height, :width] = torch.randint(0, 256, (height, width, 3), generator=random)
    if layout.pixels == "yuv420":
        shape = (len(RECTANGLES), layout.image_size * 3 // 2, layout.image_size)
        batch["images"] = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
    if masks == "runs":
        batch["runs"] = rectangle_runs(RECTANGLES)
    elif masks == "bool":
        batch["masks"] = T.unpack_bits(batch["masks"])
    return batch


def rectangle_runs(rectangles, source=(150, 225)) -> RunBatch:
    """The runs of `rectangle_batch`: one mask per sample."""
    samples = []
    for x0, y0, x1, y1 in rectangles:
        mask = np.zeros(source, bool)
        mask[y0:y1, x0:x1] = True
        samples.append((*runs_of([mask]), *source))
    return RunBatch.collate(samples)


def covered(low: float, high: float, step: float, count: int) -> np.ndarray:
    """float64 (count,): the fraction of each cell [i * step, (i + 1) * step) in [low, high)."""
    edges = np.arange(count + 1) * step
    return np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None) / step


def moved(batch: dict, device: torch.device) -> dict:
    """The batch on a device."""
    return {
        key: value.to(device) if hasattr(value, "to") else value for key, value in batch.items()
    }


def sent(batch: dict, device: torch.device) -> Batch:
    """The batch on a device, as a Loader sends it: the host knows what is small."""
    there, copies = Batch(moved(batch, device)), dict(batch)
    if "runs" in batch:
        copies["mask_offsets"] = batch["runs"].mask_offset
        copies["sizes"] = torch.cat([batch["runs"].sizes, batch["sizes"][:, 2:]], 1)
        copies["sizes"] = copies["sizes"].to(batch["sizes"].dtype)
    there.numbers = host.SentNumbers(there, lambda: copies)
    return there


def ragged(layout: str) -> dict:
    """Three samples with 2, 0 and 1 masks in one of the layouts of a batch.

    "runs" is padded, with runs that leave padding out.
    """
    batch = rectangle_batch(LAYOUT, RECTANGLES[:3])
    keys = ("masks", "bboxes", "point_coords", "areas")
    rows = [[0, 2], [], [1]]
    flat = {key: torch.cat([batch[key][k] for own in rows for k in own]) for key in keys}
    batch["mask_counts"] = torch.tensor([2, 0, 1])
    for key in keys:
        if layout.startswith("concat"):
            batch[key] = flat[key]
            batch["mask_offsets"] = torch.tensor([0, 2, 2, 3])
        else:
            padded = torch.zeros((3, 3, *flat[key].shape[1:]), dtype=flat[key].dtype)
            padded[0, :2], padded[2, 0] = flat[key][:2], flat[key][2]
            batch[key] = padded
    if not layout.endswith("bits"):
        batch["masks"] = T.unpack_bits(batch["masks"])
    if layout == "runs":
        runs = rectangle_runs([RECTANGLES[k] for own in rows for k in own])
        batch["runs"] = replace(runs, mask_offset=torch.tensor([0, 2, 2, 3]))
    return batch
