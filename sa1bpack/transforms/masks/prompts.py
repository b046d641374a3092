"""Prompts of a batch from its exact runs on the device: those of `sa1bpack.masks.prompts`.

Regions, coordinates and random numbers are the same, bit for bit. A device uses torch operations,
without loops over samples or masks: the stretches of many masks are concatenated, and one search
finds all pixels. A CPU uses the compiled kernels, sample by sample, which are several times faster
there.
"""

from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch

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


def _stretches(runs: RunBatch, region: str) -> tuple[torch.Tensor, ...]:
    """Concatenated stretches of column-major positions of all masks.

    Returns, all (s,) but the last, begin and end, int64; mask, int64, non-decreasing; counted,
    bool: the stretch belongs to the region; rim, bool: only its pixels at the image's top and
    bottom count; and offset, int64 (T + 1,): mask t has the stretches offset[t] to offset[t + 1].
    """
    end, mask, number = runs.ends()
    if region != "boundary":
        begin = torch.where(number > 0, end.roll(1), 0)
        counted = number & 1 == (region == "inside")
        return begin, end, mask, counted, torch.zeros_like(counted), runs.run_offset
    # The foreground; off the boundary only the pixels at the top and bottom count: as in
    # `masks.prompts`, whose five runs are sorted together here.
    height = runs.sizes[runs.owner[mask], 0]
    paired = (number | 1) < runs.run_offset.diff()[mask]
    step = (1 - 2 * (number & 1)) * paired  # 1 where foreground begins, -1 where it ends
    one = torch.ones_like(height)
    shifts = torch.stack([0 * one, one, -one, height, -height])
    # Shifted by one more column, so that no position is negative; still below 2**32.
    keys, order = (mask * 2**32 + end + shifts + height).flatten().sort()
    own = order < len(end)
    mask, height, step = (each.repeat(5)[order] for each in (mask, height, step))
    begin = keys - mask * 2**32 - height
    foreground = (step * own).cumsum(0) > 0
    rim = step.cumsum(0) == 5
    return begin, begin.roll(-1), mask, foreground, rim, 5 * runs.run_offset


def _find_with_torch(
    runs: RunBatch, region: str, boxes: torch.Tensor | None, numbers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`find_pixels` of some of the masks in torch operations."""
    extent = runs.sizes[runs.owner].flip(1)  # x, y
    boxes = torch.cat([torch.zeros_like(extent), extent], 1) if boxes is None else boxes
    low, high = (torch.minimum(corner.clamp(min=0), extent) for corner in boxes.split(2, 1))
    sides = (high - low).clamp(min=0)
    height = extent[:, 1:]
    # Whether the first and last row are those of the image; one of one row has only a top.
    top = low[:, 1:] == 0
    bottom = (high[:, 1:] == height) & (height > 1)
    box = torch.cat([height, low, sides, top, bottom], 1)  # (T, 7)
    *ends, mask, counted, rim, offset = _stretches(runs, region)
    height, x0, y0, columns, rows, top, bottom = box[mask].unbind(1)
    for k, position in enumerate(ends):  # as the number of the box's pixels before it
        x = position.div(height, rounding_mode="floor")
        within = torch.minimum((position - x * height - y0).clamp(min=0), rows)
        before = torch.minimum((x - x0).clamp(min=0), columns) * rows
        before += torch.where((x >= x0) & (x < x0 + columns), within, 0)
        column = before.div(rows.clamp(min=1), rounding_mode="floor")
        on_rim = column * (top + bottom) + top * (before > column * rows)
        ends[k] = torch.where(rim, on_rim, before)
    begin, end = ends
    sums = ((end - begin) * counted).cumsum(0)
    total = torch.cat([sums.new_zeros(1), sums])  # before each stretch
    first = total[offset[:-1]]  # before each mask
    count = total[offset[1:]] - first
    if not len(begin):
        return count, torch.full((*numbers.shape, 2), -1, device=numbers.device)
    number = numbers % count.clamp(min=1)[:, None] + first[:, None]
    at = torch.searchsorted(total, number, right=True) - 1
    at = at.clamp(max=len(begin) - 1)
    position = begin[at] + number - total[at]
    _, x0, y0, _, rows, top, bottom = box[:, None].unbind(2)
    on_rim = (top + bottom).clamp(min=1)
    column = position.div(on_rim, rounding_mode="floor")
    last = bottom * (position - column * on_rim == top)
    position = torch.where(rim[at], column * rows + last * (rows - 1), position)
    rows = rows.clamp(min=1)
    column = position.div(rows, rounding_mode="floor")
    pixels = torch.stack([x0 + column, y0 + position - column * rows], 2)
    return count, torch.where(count[:, None, None] > 0, pixels, -1)


def find_pixels(
    runs: RunBatch, region: str, boxes: torch.Tensor | None, numbers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`masks.prompts.find_pixels` of a batch: int64 (T,), and (T, k, 2) by numbers (T, k)."""
    boxes = kernels.check_asked(runs.masks, region, boxes, torch.Tensor)
    if not uses_compiled(runs.run_ends.device):
        # In chunks, which take 256 MiB at most, unless a mask alone takes more.
        offset = runs.host_offset.numpy()
        cuts = np.unique(np.searchsorted(offset, np.arange(CHUNK_ENDS, offset[-1], CHUNK_ENDS)))
        found = []
        for first, stop in pairwise([0, *cuts.tolist(), runs.masks]):
            some = None if boxes is None else boxes[first:stop]
            chunk = runs.slice(first, stop)
            found.append(_find_with_torch(chunk, region, some, numbers[first:stop]))
        return tuple(map(torch.cat, zip(*found, strict=True)))
    count = np.zeros(runs.masks, np.int64)
    pixels = np.full((*numbers.shape, 2), -1)
    for _, rows, image in runs.by_sample():
        some = None if boxes is None else boxes.numpy()[rows]
        found = kernels.find_pixels(image, region, some, numbers.numpy()[rows])
        count[rows], pixels[rows] = found
    return torch.from_numpy(count), torch.from_numpy(pixels)


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
        runs: the masks.
        ids: int64 (T,), for example annotation ids; the points depend on them. Or (B, M) with
            padding, as a batch has them: then "..." below is (B, M), otherwise (T,).
        points: k, the number per mask.
        region: "inside", "boundary" or "outside", see docs/masks.md.
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
        (torch.Size([104, 3, 2]), torch.float32, torch.bool)
    """
    padded = isinstance(ids, torch.Tensor) and ids.ndim == 2
    if padded:
        shape = ids.shape
        check_array("ids", ids, "int64", (len(runs.sizes), "M"), kind=torch.Tensor)
        counts = runs.mask_offset.diff()
        if counts.device.type == "cpu" and (counts > shape[1]).any():
            raise OptionError(f"ids is {tuple(shape)}, but a sample has {int(counts.max())} masks")
        rows = padded_rows(runs.mask_offset, runs.masks, shape[1])
        ids = ids.reshape(-1)[rows]
        if boxes is not None:
            check_array("boxes", boxes, kernels.BOX_TYPES, (*shape, 4), kind=torch.Tensor)
            boxes = boxes.reshape(-1, 4)[rows]
    check_array("ids", ids, "int64", (runs.masks,), ", one per mask", torch.Tensor)
    points = whole_number("points", points, 0, 2**31 - 1)
    drawn = shifted(words(seed, epoch, ids, kernels.prompt_draw(region, draw), points), 1)
    counts, pixels = find_pixels(runs, region, boxes, drawn)
    valid = counts > 0
    found = torch.where(valid[:, None, None], pixels + 0.5, 0.0).float(), valid
    if not padded:
        return found
    wide = (each.new_zeros((shape.numel(), *each.shape[1:])) for each in found)
    return tuple(
        out.index_copy_(0, rows, each).unflatten(0, shape)
        for out, each in zip(wide, found, strict=True)
    )


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
    kernels.check_boxes(boxes, extent, ids, torch.Tensor)
    drawn = words(seed, epoch, ids.reshape(-1), kernels.prompt_draw("boxes", draw), 4)
    noise = _quantiles().on(boxes.device)[shifted(drawn, 64 - NORMAL_BITS)]
    return kernels.moved_edges(boxes.double(), extent.double(), noise).float()


@lru_cache(maxsize=1)
def _quantiles() -> Table:
    return Table(normal_quantiles())
