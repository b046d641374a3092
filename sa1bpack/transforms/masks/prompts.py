"""Prompts of a batch from its exact runs on the device: those of `sa1bpack.masks.prompts`.

Regions, coordinates and random numbers are the same, bit for bit. A device uses torch operations,
without loops over samples or masks: the stretches of many masks are concatenated, and one search
finds all pixels. A CPU uses the compiled kernels, sample by sample, which are several times faster
there.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sa1bpack.arguments import whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.masks import prompts as kernels
from sa1bpack.masks.arrays import check_array
from sa1bpack.random_words import NORMAL_BITS, normal_quantiles, shifted
from sa1bpack.transforms.backends import uses_compiled
from sa1bpack.transforms.masks.run_batch import RunBatch, padded_rows
from sa1bpack.transforms.memory import Table
from sa1bpack.transforms.random import words

# Run ends that are processed together. A boundary takes up to 1000 bytes per run end, most of them
# to sort the five copies of it.
CHUNK_ENDS = 1 << 18


class Stretches(NamedTuple):
    """Stretches of column-major positions of some masks, one mask after the other.

    Attributes:
        begin, end: int64 (s,), the first position, and the one after the last.
        mask: int64 (s,), non-decreasing.
        counted: bool (s,): the stretch belongs to the region.
        rim: bool (s,): only its pixels at the image's top and bottom count.
        offset: int64 (T + 1,): mask t has the stretches offset[t] to offset[t + 1].
    """

    begin: Tensor
    end: Tensor
    mask: Tensor
    counted: Tensor
    rim: Tensor
    offset: Tensor


def _stretches(runs: RunBatch, region: str) -> Stretches:
    """The stretches of a region of all masks, and for the boundary also those beside it."""
    end, mask, number = runs.ends()
    if region != "boundary":
        begin = torch.where(number > 0, end.roll(1), 0)
        counted = number & 1 == (region == "inside")
        return Stretches(begin, end, mask, counted, torch.zeros_like(counted), runs.run_offset)
    # The foreground; off the boundary only the pixels at the top and bottom count: as in
    # `masks.prompts`, whose five runs are sorted together here.
    height = runs.sizes[runs.owner[mask], 0]
    paired = (number | 1) < runs.run_offset.diff()[mask]
    step = (1 - 2 * (number & 1)) * paired  # 1 where foreground begins, -1 where it ends
    pixel = torch.ones_like(height)
    shifts = torch.stack([0 * pixel, pixel, -pixel, height, -height])
    # Shifted by one more column, so that no position is negative; still below 2**32.
    keys, order = (mask * 2**32 + end + shifts + height).flatten().sort()
    unshifted = order < len(end)
    mask = mask.repeat(5)[order]
    height = height.repeat(5)[order]
    step = step.repeat(5)[order]
    begin = keys - mask * 2**32 - height
    foreground = (step * unshifted).cumsum(0) > 0
    rim = step.cumsum(0) == 5
    return Stretches(begin, begin.roll(-1), mask, foreground, rim, 5 * runs.run_offset)


class Boxes(NamedTuple):
    """Boxes within their images: columns of a table, all int64 of one shape, such as (T,).

    Attributes:
        height: height of the image.
        x0, y0: the first column and row.
        columns, rows: how many there are, 0 or more.
        top, bottom: 1 if the first row is at the image's top, and the last one at its bottom; a box
            of one row has only a top.
    """

    height: Tensor
    x0: Tensor
    y0: Tensor
    columns: Tensor
    rows: Tensor
    top: Tensor
    bottom: Tensor

    def pixels_before(self, position: Tensor, rim: Tensor) -> Tensor:
        """How many pixels of each box are before a column-major position; on the rim where asked.

        The rim are the pixels at the image's top and bottom. All int64 or bool (n,).
        """
        rows = self.rows
        x = position.div(self.height, rounding_mode="floor")
        inside = torch.minimum((position - x * self.height - self.y0).clamp(min=0), rows)
        before = torch.minimum((x - self.x0).clamp(min=0), self.columns) * rows
        before += torch.where((x >= self.x0) & (x < self.x0 + self.columns), inside, 0)
        column = before.div(rows.clamp(min=1), rounding_mode="floor")
        on_rim = column * (self.top + self.bottom) + self.top * (before > column * rows)
        return torch.where(rim, on_rim, before)

    def pixel(self, number: Tensor, rim: Tensor) -> Tensor:
        """The n-th pixel of each box, column by column, or of its rim: (n, ..., 2), x and y."""
        on_rim = (self.top + self.bottom).clamp(min=1)
        column = number.div(on_rim, rounding_mode="floor")
        last = self.bottom * (number - column * on_rim == self.top)
        number = torch.where(rim, column * self.rows + last * (self.rows - 1), number)
        rows = self.rows.clamp(min=1)
        column = number.div(rows, rounding_mode="floor")
        return torch.stack([self.x0 + column, self.y0 + number - column * rows], 2)


def _box_table(edges: Tensor | None, extent: Tensor) -> Tensor:
    """int64 (T, 7), the columns of `Boxes`.

    Args:
        edges: int64 (T, 4), edges x0, y0, x1, y1 in source pixels; None: those of the images.
        extent: int64 (T, 2), width and height of the images.
    """
    if edges is None:
        edges = torch.cat([torch.zeros_like(extent), extent], 1)
    low, high = (torch.minimum(corner.clamp(min=0), extent) for corner in edges.chunk(2, 1))
    height = extent[:, 1:]
    top = low[:, 1:] == 0
    bottom = (high[:, 1:] == height) & (height > 1)
    return torch.cat([height, low, (high - low).clamp(min=0), top, bottom], 1)


def _find_with_torch(
    runs: RunBatch, region: str, edges: Tensor | None, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """`find_pixels` of some of the masks in torch operations."""
    table = _box_table(edges, runs.sizes[runs.owner].flip(1))
    stretches = _stretches(runs, region)
    rim = stretches.rim
    boxes = Boxes(*table[stretches.mask].unbind(1))
    begin = boxes.pixels_before(stretches.begin, rim)
    end = boxes.pixels_before(stretches.end, rim)
    sums = ((end - begin) * stretches.counted).cumsum(0)
    total = torch.cat([sums.new_zeros(1), sums])  # before each stretch
    first = total[stretches.offset[:-1]]  # before each mask
    count = total[stretches.offset[1:]] - first
    if not len(begin):
        return count, torch.full((*numbers.shape, 2), -1, device=numbers.device)
    number = numbers % count.clamp(min=1)[:, None] + first[:, None]
    stretch = torch.searchsorted(total, number, right=True) - 1
    stretch = stretch.clamp(max=len(begin) - 1)
    number = begin[stretch] + number - total[stretch]
    pixels = Boxes(*table[:, None].unbind(2)).pixel(number, rim[stretch])
    return count, torch.where(count[:, None, None] > 0, pixels, -1)


def find_pixels(
    runs: RunBatch, region: str, boxes: Tensor | None, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """`masks.prompts.find_pixels` of a batch: int64 (T,), and (T, k, 2) by numbers (T, k)."""
    boxes = kernels.check_asked(runs.masks, region, boxes, Tensor)
    if uses_compiled(runs.run_ends.device):
        return _find_compiled(runs, region, boxes, numbers)
    # In chunks, which take 256 MiB at most, unless a mask alone takes more.
    offset = runs.host_offset.numpy()
    cuts = np.unique(np.searchsorted(offset, np.arange(CHUNK_ENDS, offset[-1], CHUNK_ENDS)))
    counts = []
    pixels = []
    for first, stop in pairwise([0, *cuts.tolist(), runs.masks]):
        edges = None if boxes is None else boxes[first:stop]
        count, pixel = _find_with_torch(runs.slice(first, stop), region, edges, numbers[first:stop])
        counts.append(count)
        pixels.append(pixel)
    return torch.cat(counts), torch.cat(pixels)


def _find_compiled(
    runs: RunBatch, region: str, boxes: Tensor | None, numbers: Tensor
) -> tuple[Tensor, Tensor]:
    """`find_pixels` by compiled kernels."""
    counts = np.zeros(runs.masks, np.int64)
    pixels = np.full((*numbers.shape, 2), -1)
    for _, rows, image in runs.by_sample():
        edges = None if boxes is None else boxes.numpy()[rows]
        counts[rows], pixels[rows] = kernels.find_pixels(
            image, region, edges, numbers.numpy()[rows]
        )
    return torch.from_numpy(counts), torch.from_numpy(pixels)


@checks_options
def draw_points(
    runs: RunBatch,
    ids: Tensor,
    points: int,
    region: str = "inside",
    *,
    seed: int,
    epoch: int,
    draw: int = 0,
    boxes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw points uniformly from a region of every mask, with replacement.

    Args:
        runs: the masks.
        ids: int64 (T,), for example annotation ids; the points depend on them. Or (B, M) with
            padding, as a batch has them: then "..." below is (B, M), otherwise (T,).
        points: k, the number per mask.
        region: "inside", "boundary" or "outside", see docs/prompts.md.
        seed, epoch: 0 to 2**64 - 1; the points depend on them as well.
        draw: 0 to 2**32 - 1, distinguishes several draws from one region in one epoch.
        boxes: int64, int32, float32 or float64 (..., 4), edges x0, y0, x1, y1 in source pixels:
            draws only from the pixels whose centres are in the mask's box; None for the complete
            image. Those of a pipeline are pixels of its canvas: map them by `input_to_source`.

    Returns:
        points: float32 (..., k, 2), x and y of pixel centres in source coordinates. Zero where not
            valid.
        valid: bool (...), False if the region has no pixels: the mask is empty or padding, or
            covers the complete image or box, or the box is outside the image.

    Raises:
        OptionError: an option, a dtype or a shape is wrong.
        MaskError: run ends on the CPU decrease or do not end with their image's pixels. On a device
            they are not checked.

    Examples:
        >>> ds = sa1bpack.open("packed", mask_format="runs")
        >>> batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[1]])
        >>> runs = batch["runs"]
        >>> ids = torch.arange(len(runs.run_offset) - 1)
        >>> points, valid = T.draw_points(runs, ids, 3, seed=0, epoch=0)
        >>> points.shape, points.dtype, valid.dtype
        (torch.Size([180, 3, 2]), torch.float32, torch.bool)
    """
    if isinstance(ids, Tensor) and ids.ndim == 2:
        shape = ids.shape
        check_array("ids", ids, "int64", (len(runs.sizes), "M"), kind=Tensor)
        counts = runs.mask_offset.diff()
        if counts.device.type == "cpu" and (counts > shape[1]).any():
            raise OptionError(f"ids is {tuple(shape)}, but a sample has {int(counts.max())} masks")
        rows = padded_rows(runs.mask_offset, runs.masks, shape[1])
        if boxes is not None:
            check_array("boxes", boxes, kernels.BOX_TYPES, (*shape, 4), kind=Tensor)
            boxes = boxes.reshape(-1, 4)[rows]
        key = {"seed": seed, "epoch": epoch, "draw": draw}
        ids = ids.reshape(-1)[rows]
        centers, valid = draw_points(runs, ids, points, region, **key, boxes=boxes)
        return _padded(centers, rows, shape), _padded(valid, rows, shape)
    check_array("ids", ids, "int64", (runs.masks,), ", one per mask", Tensor)
    points = whole_number("points", points, 0, 2**31 - 1)
    drawn = shifted(words(seed, epoch, ids, kernels.prompt_draw(region, draw), points), 1)
    counts, pixels = find_pixels(runs, region, boxes, drawn)
    valid = counts > 0
    return torch.where(valid[:, None, None], pixels + 0.5, 0.0).float(), valid


def _padded(values: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Values (T, ...) at rows of an array (B * M, ...) of zeros, as (B, M, ...)."""
    wide = values.new_zeros((shape.numel(), *values.shape[1:]))
    return torch.unflatten(wide.index_copy_(0, rows, values), 0, shape)


@checks_options
def jitter_boxes(
    boxes: Tensor,
    extent: Tensor,
    ids: Tensor,
    *,
    seed: int,
    epoch: int,
    draw: int = 0,
) -> Tensor:
    """Move the edges of boxes at random, as SAM does for training; see `masks.jitter_boxes`.

    Args:
        boxes: float32 or float64 (..., 4), x0, y0, x1, y1, edges in pixels of the training input,
            as a `Pipeline` returns them: "..." is (T,), or (B, M) with padding.
        extent: float32, float64, int32 or int64, width and height of the image in the same pixels:
            (2,), or (..., 2) with the first axes of the boxes, such as (B, 2).
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
    kernels.check_boxes(boxes, extent, ids, Tensor)
    drawn = words(seed, epoch, ids.reshape(-1), kernels.prompt_draw("boxes", draw), 4)
    noise = _quantiles().on(boxes.device)[shifted(drawn, 64 - NORMAL_BITS)]
    edges: Tensor = kernels.moved_edges(boxes.double(), extent.double(), noise)
    return edges.float()


@lru_cache(maxsize=1)
def _quantiles() -> Table:
    return Table(normal_quantiles())
