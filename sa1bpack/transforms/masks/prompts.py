"""Prompts of a batch from its exact runs on the device: those of `sa1bpack.masks.prompts`.

Regions, coordinates and random numbers are the same, bit for bit. A device uses torch operations,
see `regions`; a CPU uses the compiled kernels, sample by sample, which are several times faster
there.
"""

from functools import lru_cache

import numpy as np
import torch

from sa1bpack.arguments import checks_options, choice, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.masks import prompts as kernels
from sa1bpack.masks import regions as region_kernels
from sa1bpack.masks._arrays import check_array
from sa1bpack.masks.prompts import (
    check_box_sides,
    check_boxes,
    check_ids,
    moved_edges,
    prompt_draw,
)
from sa1bpack.masks.random import NORMAL_BITS, normal_quantiles, shifted
from sa1bpack.masks.regions import REGIONS
from sa1bpack.masks.rle import mask_bbox
from sa1bpack.transforms.backends import uses_compiled
from sa1bpack.transforms.masks.regions import bounds, regions
from sa1bpack.transforms.masks.run_batch import RunBatch, compiled_samples
from sa1bpack.transforms.memory import Table
from sa1bpack.transforms.random import words


@checks_options
def count_pixels(
    runs: RunBatch, region: str = "inside", boxes: torch.Tensor | None = None
) -> torch.Tensor:
    """Count the pixels of a region of every mask: int64 (T,).

    Args:
        runs: the masks.
        region: "inside", "boundary" or "outside", see docs/masks.md.
        boxes: int64 (T, 4), x0, y0, x1, y1 in source pixels, ends exclusive: counts only the part
            in the box; None for the complete image.

    Raises:
        OptionError: the region or the array of boxes is invalid.
        MaskError: run ends on the CPU decrease or do not end with their image's pixels. On a device
            they are not checked.

    Examples:
        >>> ds = sa1bpack.open("packed", masks="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> T.count_pixels(runs).shape, bool((T.count_pixels(runs) > 0).all())
        (torch.Size([104]), True)
    """
    _check_region(runs, region, boxes)
    if not uses_compiled(runs.run_ends.device):
        return torch.cat([found.count for _, found in regions(runs, region, boxes)])
    count = np.zeros(runs.masks, np.int64)
    for _, rows, image in compiled_samples(runs):
        count[rows] = region_kernels.count_pixels(*image, region, _rows_of(boxes, rows))
    return torch.from_numpy(count)


@checks_options
def nth_pixels(
    runs: RunBatch,
    numbers: torch.Tensor,
    region: str = "inside",
    boxes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Pixels of a region of every mask by their number, 0 to count - 1, column by column.

    Args:
        numbers: int64 (T, k).
        runs, region, boxes: as in `count_pixels`.

    Returns int64 (T, k, 2), x and y in source pixels; -1, -1 if there is no such pixel. Raises the
    errors of `count_pixels`.

    Examples:
        >>> ds = sa1bpack.open("packed", masks="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> T.nth_pixels(runs, torch.zeros(len(runs.run_offset) - 1, 1).long()).shape
        torch.Size([104, 1, 2])
    """
    _check_region(runs, region, boxes)
    check_array("numbers", numbers, "int64", (runs.masks, "k"), kind=torch.Tensor)
    if not uses_compiled(runs.run_ends.device):
        found = regions(runs, region, boxes)
        return torch.cat([part.nth(numbers[masks]) for masks, part in found])
    pixels = np.full((*numbers.shape, 2), -1)
    for _, rows, image in compiled_samples(runs):
        some = _rows_of(boxes, rows)
        pixels[rows] = region_kernels.nth_pixels(*image, _rows_of(numbers, rows), region, some)
    return torch.from_numpy(pixels)


@checks_options
def draw_points(
    runs: RunBatch,
    ids: torch.Tensor,
    points: int,
    region: str = "inside",
    *,
    seed: int,
    epoch: int,
    draw: int = 0,
    boxes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points uniformly from a region of every mask, with replacement.

    Args:
        ids: int64 (T,), for example annotation ids; the points depend on them. Or (B, M) with
            padding, as a batch has them: then "..." below is (B, M), otherwise (T,).
        points: k, the number per mask.
        seed, epoch: 0 to 2**64 - 1; the points depend on them as well.
        draw: 0 to 2**32 - 1, distinguishes several draws from one region in one epoch.
        runs, region: as in `count_pixels`.
        boxes: int64 (..., 4), as in `count_pixels`.

    Returns:
        points: float32 (..., k, 2), x and y of pixel centres in source coordinates. Zero where not
            valid.
        valid: bool (...), False if the region has no pixels: the mask is empty or padding, or
            covers the complete image or box, or the box is outside the image.

    Raises:
        OptionError: an option, a dtype or a shape is wrong.
        MaskError: see `count_pixels`.

    Examples:
        >>> ds = sa1bpack.open("packed", masks="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> ids = torch.arange(len(runs.run_offset) - 1)
        >>> points, valid = T.draw_points(runs, ids, 3, seed=0, epoch=0)
        >>> points.shape, points.dtype, valid.dtype
        (torch.Size([104, 3, 2]), torch.float32, torch.bool)
    """
    if isinstance(ids, torch.Tensor) and ids.ndim == 2:
        check_array("ids", ids, "int64", (len(runs.sizes), "M"), kind=torch.Tensor)
        key = {"seed": seed, "epoch": epoch, "draw": draw}
        return _draw_padded(runs, ids, points, region, boxes, key)
    _check_region(runs, region, boxes)
    check_ids(ids, runs.masks, torch.Tensor)
    points = whole_number("points", points, 0, 2**31 - 1)
    if uses_compiled(runs.run_ends.device):
        return _draw_compiled(runs, ids, points, region, boxes, seed=seed, epoch=epoch, draw=draw)
    drawn = shifted(words(seed, epoch, ids, prompt_draw(region, draw), points), 1)
    counts, chosen = [], []
    for masks, part in regions(runs, region, boxes):
        counts.append(part.count)
        chosen.append(part.nth(drawn[masks] % part.count.clamp(min=1)[:, None]))
    valid, pixels = torch.cat(counts) > 0, torch.cat(chosen)
    return torch.where(valid[:, None, None], pixels + 0.5, 0.0).float(), valid


def _draw_padded(
    runs: RunBatch,
    ids: torch.Tensor,
    points: int,
    region: str,
    boxes: torch.Tensor | None,
    key: dict[str, int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """`draw_points` with ids, and boxes, that are padded to (B, M)."""
    if runs.run_ends.device.type == "cpu" and len(ids):
        most = int(runs.mask_offset.diff().amax())
        if most > ids.shape[1]:
            raise OptionError(f"ids is {tuple(ids.shape)}, but a sample has {most} masks")
    rows = runs.padded_rows(ids.shape[1])
    if boxes is not None:
        check_array("boxes", boxes, "int64", (*ids.shape, 4), kind=torch.Tensor)
        boxes = boxes.reshape(-1, 4)[rows]
    drawn, valid = draw_points(runs, ids.reshape(-1)[rows], points, region, boxes=boxes, **key)
    padded = drawn.new_zeros((ids.numel(), *drawn.shape[1:]))
    padded[rows] = drawn
    flags = valid.new_zeros(ids.numel())
    flags[rows] = valid
    return padded.view(*ids.shape, *drawn.shape[1:]), flags.view(ids.shape)


def _draw_compiled(runs, ids, points, region, boxes, **key) -> tuple[torch.Tensor, torch.Tensor]:
    """`draw_points` by the kernels of `sa1bpack.masks`."""
    drawn = np.zeros((runs.masks, points, 2), np.float32)
    valid = np.zeros(runs.masks, np.bool_)
    for _, rows, image in compiled_samples(runs):
        some = _rows_of(boxes, rows)
        drawn[rows], valid[rows] = kernels.draw_points(
            *image, _rows_of(ids, rows), points, region, boxes=some, **key
        )
    return torch.from_numpy(drawn), torch.from_numpy(valid)


def _check_region(runs: RunBatch, region: str, boxes: torch.Tensor | None) -> None:
    choice("region", region, REGIONS)
    if boxes is not None:
        check_array("boxes", boxes, "int64", (runs.masks, 4), kind=torch.Tensor)


def _rows_of(tensor: torch.Tensor | None, rows: np.ndarray) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()[rows]


@checks_options
def mask_boxes(runs: RunBatch) -> torch.Tensor:
    """The boxes around the masks, from their runs.

    Returns int64 (T, 4), x0, y0, x1, y1, edges in source pixels; 0, 0, 0, 0 for an empty mask.
    Raises MaskError, see `count_pixels`.

    Examples:
        >>> ds = sa1bpack.open("packed", masks="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> T.mask_boxes(runs).shape, T.mask_boxes(runs).dtype
        (torch.Size([104, 4]), torch.int64)
    """
    if not uses_compiled(runs.run_ends.device):
        return bounds(runs)
    edges = np.zeros((runs.masks, 4), np.int64)
    for _, rows, image in compiled_samples(runs):
        edges[rows] = mask_bbox(*image)
    edges[:, 2:] += edges[:, :2]
    return torch.from_numpy(edges)


@checks_options
def jitter_boxes(
    boxes: torch.Tensor,
    extent: torch.Tensor,
    ids: torch.Tensor,
    *,
    seed: int,
    epoch: int,
    draw: int = 0,
) -> torch.Tensor:
    """Move the edges of boxes at random, as SAM does for training; see `masks.jitter_boxes`.

    Args:
        boxes: float32 or float64 (..., 4), x0, y0, x1, y1, edges in pixels of the training input,
            as a `Pipeline` returns them: "..." is (T,), or (B, M) with padding.
        extent: float32 or float64, width and height of the image in the same pixels: (2,), or
            (..., 2) with the first axes of the boxes, such as (B, 2).
        ids: int64 (...), for example annotation ids; the noise depends on them.
        seed, epoch: 0 to 2**64 - 1; the noise depends on them as well.
        draw: 0 to 2**32 - 1, distinguishes several draws for one id in one epoch.

    Returns:
        float32 (..., 4).

    Raises:
        OptionError: an option, a dtype or a shape is wrong, or on a CPU a side of a box or of an
            image is below 0. (SA-1B's boxes are x, y, w, h.)

    Examples:
        >>> boxes = torch.tensor([[10.0, 10.0, 60.0, 40.0]]).double()
        >>> extent, ids = torch.tensor([100.0, 80.0]).double(), torch.tensor([77])
        >>> T.jitter_boxes(boxes, extent, ids, seed=0, epoch=0).dtype
        torch.float32
    """
    check_boxes(boxes, extent, ids, torch.Tensor)
    if boxes.device.type == extent.device.type == "cpu":
        check_box_sides(boxes.numpy(), extent.numpy())
    drawn = words(seed, epoch, ids.reshape(-1), prompt_draw("boxes", draw), 4)
    noise = _quantiles().on(boxes.device)[shifted(drawn, 64 - NORMAL_BITS)]
    return moved_edges(boxes.double(), extent.double(), noise).float()


@lru_cache(maxsize=1)
def _quantiles() -> Table:
    return Table(normal_quantiles())
