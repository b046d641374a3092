"""Regions of all masks of a batch with torch operations: those of `sa1bpack.masks.regions`.

There are no loops over samples or masks: the stretches of many masks are concatenated, and one
search finds all pixels.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from sa1bpack.transforms.masks.run_batch import RunBatch

# Run ends that are processed together. A boundary takes up to 1000 bytes per run end, most of them
# to sort the five copies of it.
PART_ENDS = 1 << 18


class _Stretches(NamedTuple):
    """Concatenated stretches of column-major positions of all masks; all (s,).

    begin, end  int64, positions
    mask        int64, non-decreasing
    counted     int64, above 0 if the stretch belongs to the region
    rim         bool, True if only pixels at the image's top and bottom count
    offset      int64 (T + 1,), mask t has the stretches offset[t] to offset[t + 1]
    """

    begin: torch.Tensor
    end: torch.Tensor
    mask: torch.Tensor
    counted: torch.Tensor
    rim: torch.Tensor
    offset: torch.Tensor


def _runs_of(runs: RunBatch, foreground: int) -> _Stretches:
    """The runs of foreground (1) or of background (0)."""
    end, mask, number = runs.ends_of(0, runs.masks)
    begin = torch.where(number > 0, end.roll(1), 0)
    counted = (number & 1) ^ (1 - foreground)
    return _Stretches(begin, end, mask, counted, counted < 0, runs.run_offset)


def _boundary_of(runs: RunBatch) -> _Stretches:
    """The foreground; stretches off the boundary count only at the image's top and bottom.

    A pixel is not on the boundary if it and its four neighbours are foreground: if its position is
    in the runs and in the same runs shifted by a pixel and by a column, both ways, and it is not at
    the top or bottom, where the next position is in another column. (At the left and right there is
    no such position.)
    """
    ends, mask, number = runs.ends_of(0, runs.masks)
    height = runs.sizes[runs.owner[mask], 0]
    paired = (number | 1) < runs.run_offset.diff()[mask]
    step = (1 - 2 * (number & 1)) * paired  # 1 where foreground begins, -1 where it ends
    one = torch.ones_like(height)
    shifts = torch.stack([0 * one, one, -one, height, -height])
    # Shifted by one more column, so that no position is negative; still below 2**32.
    keys, order = (mask * 2**32 + ends + shifts + height).flatten().sort()
    mask, height, step = mask.repeat(5)[order], height.repeat(5)[order], step.repeat(5)[order]
    position = keys - mask * 2**32 - height
    foreground = (step * (order < len(ends))).cumsum(0)
    return _Stretches(
        position, position.roll(-1), mask, foreground, step.cumsum(0) == 5, 5 * runs.run_offset
    )


def _stretches_of(runs: RunBatch, region: str) -> _Stretches:
    return _boundary_of(runs) if region == "boundary" else _runs_of(runs, int(region == "inside"))


class _Boxes(NamedTuple):
    """The part of a box inside the image, for each mask or stretch; all int64 (n,).

    `top` and `bottom` are 1 if its first and last row are those of the image; an image of one row
    has only a top.
    """

    height: torch.Tensor
    x0: torch.Tensor
    y0: torch.Tensor
    columns: torch.Tensor
    rows: torch.Tensor
    top: torch.Tensor
    bottom: torch.Tensor

    def of(self, mask: torch.Tensor) -> "_Boxes":
        return _Boxes(*(numbers[mask] for numbers in self))

    def before(self, position: torch.Tensor) -> torch.Tensor:
        """The number of the box's pixels before a position, column by column."""
        x = position.div(self.height, rounding_mode="floor")
        within = _limit(position - x * self.height - self.y0, self.rows)
        whole = _limit(x - self.x0, self.columns) * self.rows
        return whole + torch.where((x >= self.x0) & (x < self.x0 + self.columns), within, 0)

    def on_rim(self, number: torch.Tensor) -> torch.Tensor:
        """How many of the box's first `number` pixels are at the image's top or bottom."""
        rows = self.rows.clamp(min=1)
        column = number.div(rows, rounding_mode="floor")
        return column * (self.top + self.bottom) + self.top * (number > column * rows)

    def nth_on_rim(self, number: torch.Tensor) -> torch.Tensor:
        """The n-th of the box's pixels that are at the image's top or bottom."""
        a_column = (self.top + self.bottom).clamp(min=1)
        column = number.div(a_column, rounding_mode="floor")
        last = self.bottom * (number - column * a_column == self.top)
        return column * self.rows + last * (self.rows - 1)


def _limit(numbers: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    return torch.minimum(numbers.clamp(min=0), most)


def _clip_boxes(runs: RunBatch, boxes: torch.Tensor | None) -> _Boxes:
    """The boxes of all masks, int64 (T, 4), or None for complete images, clipped to the images."""
    height, width = runs.sizes[runs.owner].unbind(1)
    if boxes is None:
        zeros = torch.zeros_like(height)
        boxes = torch.stack([zeros, zeros, width, height], 1)
    x0, y0, x1, y1 = boxes.unbind(1)
    x0, x1, y0, y1 = _limit(x0, width), _limit(x1, width), _limit(y0, height), _limit(y1, height)
    rows, columns = (y1 - y0).clamp(min=0), (x1 - x0).clamp(min=0)
    bottom = (y1 == height) & (height > 1)
    return _Boxes(height, x0, y0, columns, rows, (y0 == 0).long(), bottom.long())


def regions(
    runs: RunBatch, region: str, boxes: torch.Tensor | None
) -> Iterator[tuple[slice, "Region"]]:
    """A region of all masks, in parts that take 256 MiB at most, unless a mask alone takes more.

    region, boxes  see `Region`

    Yields the masks of each part and their region; at least one part, which may have no masks. Use
    one before the next. Nothing waits for the device.
    """
    start = 0
    while True:
        stop = _part_stop(runs.host_offset, start)
        masks = slice(start, stop)
        part = runs if stop - start == runs.masks else runs.part(start, stop)
        yield masks, Region(part, region, None if boxes is None else boxes[masks])
        start = stop
        if start >= runs.masks:
            return


def _part_stop(offset: torch.Tensor, start: int) -> int:
    """The mask after a part that begins with mask `start`: it has one mask, or few enough ends."""
    most = int(offset[start]) + PART_ENDS
    stop = int(torch.searchsorted(offset, most, right=True)) - 1
    return min(max(stop, start + 1), len(offset) - 1)


class Region:
    """One region of each mask: the number of its pixels, and the n-th pixel.

    count  int64 (T,), pixels of each mask's region
    """

    def __init__(self, runs: RunBatch, region: str, boxes: torch.Tensor | None):
        """region: one of `masks.regions.REGIONS`. boxes: int64 (T, 4) or None."""
        self.boxes = _clip_boxes(runs, boxes)
        found = _stretches_of(runs, region)
        box = self.boxes.of(found.mask)
        begin, end = box.before(found.begin), box.before(found.end)
        self.rim = found.rim
        self.begin = torch.where(found.rim, box.on_rim(begin), begin)
        end = torch.where(found.rim, box.on_rim(end), end)
        sums = ((end - self.begin) * (found.counted > 0)).cumsum(0)
        self.total = torch.cat([sums.new_zeros(1), sums])  # before each stretch
        self.first = self.total[found.offset[:-1]]  # before each mask
        self.count = self.total[found.offset[1:]] - self.first

    def nth(self, numbers: torch.Tensor) -> torch.Tensor:
        """int64 (T, k, 2), x and y of the pixels `numbers` (T, k); -1 if there is no such pixel."""
        exists = (numbers >= 0) & (numbers < self.count[:, None])
        if not len(self.rim):
            return torch.full((*numbers.shape, 2), -1, device=numbers.device)
        number = torch.where(exists, numbers + self.first[:, None], 0)
        at = torch.searchsorted(self.total, number, right=True) - 1
        at = at.clamp(max=len(self.rim) - 1)
        position = self.begin[at] + number - self.total[at]
        box = _Boxes(*(side[:, None] for side in self.boxes))
        position = torch.where(self.rim[at], box.nth_on_rim(position), position)
        rows = box.rows.clamp(min=1)
        column = position.div(rows, rounding_mode="floor")
        pixels = torch.stack([box.x0 + column, box.y0 + position - column * rows], 2)
        return torch.where(exists[..., None], pixels, -1)


def bounds(runs: RunBatch) -> torch.Tensor:
    """Edges around the foreground of every mask, see `prompts.mask_boxes`: int64 (T, 4)."""
    found = _runs_of(runs, foreground=1)
    height = runs.sizes[runs.owner[found.mask], 0]
    last = found.end - 1
    left, right = (at.div(height, rounding_mode="floor") for at in (found.begin, last))
    one_column = left == right
    y0 = torch.where(one_column, found.begin - left * height, 0)
    y1 = torch.where(one_column, last - right * height + 1, height)
    some = (found.counted > 0) & (found.end > found.begin)
    far = 2**31
    low, high = (height.new_full((runs.masks, 2), number) for number in (far, 0))
    lows = torch.where(some[:, None], torch.stack([left, y0], 1), far)
    highs = torch.where(some[:, None], torch.stack([right + 1, y1], 1), 0)
    index = found.mask[:, None].expand(-1, 2)
    low.scatter_reduce_(0, index, lows, "amin")
    high.scatter_reduce_(0, index, highs, "amax")
    return torch.cat([torch.where(high > 0, low, 0), high], 1)
