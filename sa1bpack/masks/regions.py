"""Regions of a mask with numbered pixels, from the exact runs, without a full-size mask.

- "inside": the foreground.
- "boundary": foreground pixels with a neighbour above, below, left or right that is background or
  outside the image.
- "outside": the background of the image.

The pixels of a region are numbered column by column. A region is a sorted list of stretches of
column-major positions; its n-th pixel is found by a search in their running total. The cost depends
on the number of runs, not on the size of the mask.
"""

import numpy as np

from sa1bpack.arguments import checks_options, choice
from sa1bpack.kernels import njit
from sa1bpack.masks._arrays import check_array, check_image_runs
from sa1bpack.masks.grid import check_image

REGIONS = ("inside", "boundary", "outside")
_WHOLE, _RIM = 1, 2  # which pixels of a stretch count: all, or those at the image's top and bottom


@njit
def _boundary_stretches(ends, height, begin, end, kind):
    """`_stretches` of the boundary.

    A pixel is not on the boundary if it and its four neighbours are foreground: if its position is
    in the runs and in the same runs shifted by a pixel and by a column, both ways, and it is not at
    the top or bottom, where the next position is in another column. (At the left and right there is
    no such position.)
    """
    shifts = np.array([0, 1, -1, height, -height])
    nexts = np.zeros(5, np.int64)  # the next end in each of the five
    found = 0
    position = np.int64(0)
    while nexts[0] < len(ends):
        inside = 0
        following = np.int64(2**62)
        for i in range(5):
            while nexts[i] < len(ends) and ends[nexts[i]] + shifts[i] <= position:
                nexts[i] += 1
            if nexts[i] < len(ends):
                inside += nexts[i] & 1
                following = min(following, ends[nexts[i]] + shifts[i])
        if nexts[0] < len(ends) and nexts[0] & 1:
            begin[found], end[found] = position, following
            kind[found] = _RIM if inside == 5 else _WHOLE
            found += 1
        position = following
    return found


@njit
def _stretches(ends, height, region, begin, end, kind):
    """Write the stretches of a region, sorted; return their number."""
    if region == 1:
        return _boundary_stretches(ends, height, begin, end, kind)
    found = 0
    for k in range(1 if region == 0 else 0, len(ends), 2):
        begin[found], end[found] = ends[k - 1] if k else 0, ends[k]
        kind[found] = _WHOLE
        found += 1
    return found


@njit
def _in_box(position, height, box):
    """Count the pixels of a box x0, y0, x1, y1 before a position, column by column."""
    x = position // height
    rows = box[3] - box[1]
    if x < box[0]:
        return np.int64(0)
    if x >= box[2]:
        return (box[2] - box[0]) * rows
    return (x - box[0]) * rows + min(max(position - x * height - box[1], 0), rows)


@njit
def _on_rim(number, rows, top, bottom):
    """Count those of the first `number` pixels of a box that are at the image's top or bottom."""
    column = number // rows
    return column * (top + bottom) + (top if number > column * rows else 0)


@njit
def _nth_on_rim(number, rows, top, bottom):
    """Return the n-th pixel of a box that is at the image's top or bottom."""
    column = number // (top + bottom)
    last = bottom if number % (top + bottom) == top else 0
    return column * rows + last * (rows - 1)


@njit
def find_pixels(run_ends, run_offset, size, region, boxes, words, numbers, pixels):
    """Count the pixels of a region, and find some of them; see `nth_pixels`.

    Args:
        size: H, W.
        region: index in REGIONS.
        boxes: int64 (n, 4) or (0, 4) for the complete image.
        words: uint64 (n, k), then number k of mask m is words[m, k] modulo the count; or no rows.
        numbers: int64 (n, k), read; written if there are words.
        pixels: int64 (n, k, 2), written.

    Returns int64 (n,), the counts.
    """
    height, width = np.int64(size[0]), np.int64(size[1])
    count = np.zeros(len(run_offset) - 1, np.int64)
    longest = 0
    for m in range(len(count)):
        longest = max(longest, run_offset[m + 1] - run_offset[m])
    capacity = 5 * longest + 1 if region == 1 else longest // 2 + 1
    begin, end, kind = (
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
    )
    total = np.empty(capacity, np.int64)
    box = np.array([0, 0, width, height])
    for m in range(len(count)):
        if len(boxes):
            box[0], box[2] = min(max(boxes[m, 0], 0), width), min(max(boxes[m, 2], 0), width)
            box[1], box[3] = min(max(boxes[m, 1], 0), height), min(max(boxes[m, 3], 0), height)
        rows = box[3] - box[1]
        pixels[m] = -1
        if rows <= 0 or box[2] <= box[0]:
            continue
        top, bottom = np.int64(box[1] == 0), np.int64(box[3] == height and height > 1)
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        found = _stretches(ends, height, region, begin, end, kind)
        for i in range(found):
            low, high = _in_box(begin[i], height, box), _in_box(end[i], height, box)
            if kind[i] == _RIM:
                low = _on_rim(low, rows, top, bottom)
                high = _on_rim(high, rows, top, bottom)
            begin[i] = low
            count[m] += high - low
            total[i] = count[m]
        for k in range(numbers.shape[1]):
            if len(words) and count[m]:
                numbers[m, k] = words[m, k] % np.uint64(count[m])
            number = numbers[m, k]
            if not 0 <= number < count[m]:
                continue
            i = np.searchsorted(total[:found], number, side="right")
            position = begin[i] + number - (total[i - 1] if i else 0)
            if kind[i] == _RIM:
                position = _nth_on_rim(position, rows, top, bottom)
            pixels[m, k, 0] = box[0] + position // rows
            pixels[m, k, 1] = box[1] + position % rows
    return count


def check_region(run_ends, run_offset, height, width, region, boxes):
    """Check the arguments of `count_pixels` and return them as `find_pixels` expects them."""
    height, width = check_image(height, width)
    run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
    choice("region", region, REGIONS)
    if boxes is None:
        boxes = np.empty((0, 4), np.int64)
    else:
        check_array("boxes", boxes, "int64", (len(run_offset) - 1, 4))
    boxes = np.ascontiguousarray(boxes)
    return run_ends, run_offset, (height, width), REGIONS.index(region), boxes


_NO_WORDS = np.empty((0, 0), np.uint64)


@checks_options
def count_pixels(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    width: int,
    region: str = "inside",
    boxes: np.ndarray | None = None,
) -> np.ndarray:
    """Count the pixels of a region of every mask of one image.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        height, width: of the source image.
        region: "inside", "boundary" or "outside", see the module.
        boxes: int64 (n, 4), x0, y0, x1, y1 in source pixels, ends exclusive: counts only the part
            of a mask's region in its box; None for the complete image. The part of a box outside
            the image has no pixels.

    Returns:
        int64 (n,).

    Raises:
        MaskError: the image is too large, or a mask's run ends decrease or do not end with its
            pixels.
        OptionError: the region, a dtype or a shape is wrong.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> sa1bpack.masks.count_pixels(run_ends, run_offset, height=3, width=4)
        array([3])
        >>> sa1bpack.masks.count_pixels(run_ends, run_offset, 3, 4, "outside")
        array([9])
    """
    arguments = check_region(run_ends, run_offset, height, width, region, boxes)
    masks = len(arguments[1]) - 1
    none = np.empty((masks, 0), np.int64)
    return find_pixels(*arguments, _NO_WORDS, none, np.empty((masks, 0, 2), np.int64))


@checks_options
def nth_pixels(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    width: int,
    numbers: np.ndarray,
    region: str = "inside",
    boxes: np.ndarray | None = None,
) -> np.ndarray:
    """Find pixels of a region of every mask by their number, 0 to count - 1, column by column.

    Args:
        numbers: int64 (n, k).
        run_ends, run_offset, height, width, region, boxes: as in `count_pixels`.

    Returns:
        int64 (n, k, 2), x and y in source pixels; -1, -1 if there is no such pixel.

    Raises:
        MaskError, OptionError: as `count_pixels`.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> sa1bpack.masks.nth_pixels(run_ends, run_offset, 3, 4, np.array([[0, 2, 3]]))
        array([[[ 0,  2],
                [ 1,  1],
                [-1, -1]]])
    """
    arguments = check_region(run_ends, run_offset, height, width, region, boxes)
    masks = len(arguments[1]) - 1
    check_array("numbers", numbers, "int64", (masks, "k"))
    numbers = np.ascontiguousarray(numbers)
    pixels = np.empty((*numbers.shape, 2), np.int64)
    find_pixels(*arguments, _NO_WORDS, numbers.copy(), pixels)
    return pixels
