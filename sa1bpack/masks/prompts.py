"""Prompts from the exact runs: points in a mask, on its boundary or outside it, and boxes.

Points are drawn uniformly from the pixels of a region (uniformly to 2**-32, because 2**63 words
cannot be divided evenly):

- "inside": the foreground.
- "boundary": foreground pixels with a neighbour above, below, left or right that is background or
  outside the image.
- "outside": the background of the image.

The pixels of a region are numbered column by column. A region is a sorted list of stretches of
column-major positions; its n-th pixel is found by a search in their running total. The cost depends
on the number of runs, not on the size of the mask: there is no full-size mask.

Points are pixel centres in continuous source coordinates, (x + 1/2, y + 1/2), and boxes are edges:
x0, y0, x1, y1 = left, top, right + 1, bottom + 1 of the pixels, as those of `mask_boxes`. The
affine maps of `sa1bpack.masks.window` use the same coordinates. SAM's prompt encoder adds 1/2
itself: subtract it after all maps. The `bbox` of an SA-1B record is (x0, y0, x1 - x0 - 1, y1 - y0 -
1).

Random prompts depend only on (seed, epoch, id, draw); `sa1bpack.transforms.masks.prompts` draws
the same ones on a device.
"""

from typing import Any

import numpy as np

from sa1bpack.arguments import choice, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.kernels import njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import check_array, check_image_runs, frozen
from sa1bpack.masks.raster import check_image
from sa1bpack.random_words import NORMAL_BITS, normal_quantiles, words

REGIONS = ("inside", "boundary", "outside")
_FLOATS = "float32 or float64"
BOX_TYPES = f"int64 or int32 or {_FLOATS}"
# Kinds of stretches: all of their pixels count, or only those at the image's top and bottom.
_WHOLE = 1
_RIM = 2


@njit
def _boundary_stretches(
    ends: np.ndarray, height: np.int64, begin: np.ndarray, end: np.ndarray, kind: np.ndarray
) -> int:
    """`_stretches` of the boundary.

    A pixel is not on the boundary if it and its four neighbours are foreground: if its position is
    in the runs and in the same runs shifted by a pixel and by a column, both ways, and it is not at
    the top or bottom, where the next position is in another column. (At the left and right there is
    no such position.)
    """
    shifts = np.array([0, 1, -1, height, -height])
    nexts = np.zeros(5, np.int64)  # the next end in each of the five
    count = 0
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
            begin[count] = position
            end[count] = following
            kind[count] = _WHOLE
            if inside == 5:
                kind[count] = _RIM
            count += 1
        position = following
    return count


@njit
def _stretches(
    ends: np.ndarray,
    height: np.int64,
    region: int,
    begin: np.ndarray,
    end: np.ndarray,
    kind: np.ndarray,
) -> int:
    """Write the stretches of a region, an index in REGIONS, sorted; return their number."""
    if region == 1:
        return _boundary_stretches(ends, height, begin, end, kind)
    first = 1  # the first end of foreground, or of background
    if region == 2:
        first = 0
    count = 0
    for k in range(first, len(ends), 2):
        begin[count] = 0
        if k > 0:
            begin[count] = ends[k - 1]
        end[count] = ends[k]
        kind[count] = _WHOLE
        count += 1
    return count


@njit
def _in_box(position: np.int64, height: np.int64, box: np.ndarray) -> np.int64:
    """Count the pixels of a box x0, y0, x1, y1 before a position, column by column."""
    x = position // height
    rows = box[3] - box[1]
    if x < box[0]:
        return np.int64(0)
    if x >= box[2]:
        return np.int64((box[2] - box[0]) * rows)
    return np.int64((x - box[0]) * rows + min(max(position - x * height - box[1], 0), rows))


@njit
def _on_rim(number: np.int64, rows: np.int64, top: np.int64, bottom: np.int64) -> np.int64:
    """Count those of the first `number` pixels of a box that are at the image's top or bottom."""
    column = number // rows
    return column * (top + bottom) + top * np.int64(number > column * rows)


@njit
def _nth_on_rim(number: np.int64, rows: np.int64, top: np.int64, bottom: np.int64) -> np.int64:
    """The n-th pixel of a box that is at the image's top or bottom."""
    column = number // (top + bottom)
    last = bottom * np.int64(number % (top + bottom) == top)
    return column * rows + last * (rows - 1)


@njit
def _find_pixels(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    size: tuple[int, int],
    region: int,
    boxes: np.ndarray,
    numbers: np.ndarray,
    pixels: np.ndarray,
) -> np.ndarray:
    """Count the pixels of a region, and find some of them; see `find_pixels`.

    Args:
        run_ends, run_offset: runs that `check_image_runs` has checked.
        size: (H, W).
        region: index in REGIONS.
        boxes: int64 (n, 4) or (0, 4) for the complete image.
        numbers: int64 (n, k), as in `find_pixels`.
        pixels: int64 (n, k, 2), out: x and y.

    Returns:
        int64 (n,), the counts.
    """
    height = np.int64(size[0])
    width = np.int64(size[1])
    count = np.zeros(len(run_offset) - 1, np.int64)
    longest = 0
    for m in range(len(count)):
        longest = max(longest, run_offset[m + 1] - run_offset[m])
    capacity = longest // 2 + 1
    if region == 1:
        capacity = 5 * longest + 1
    scratch = np.empty((4, capacity), np.int64)
    begin = scratch[0]
    end = scratch[1]
    kind = scratch[2]
    total = scratch[3]
    box = np.array([0, 0, width, height])
    for m in range(len(count)):
        if len(boxes):
            box[0] = min(max(boxes[m, 0], 0), width)
            box[2] = min(max(boxes[m, 2], 0), width)
            box[1] = min(max(boxes[m, 1], 0), height)
            box[3] = min(max(boxes[m, 3], 0), height)
        rows = box[3] - box[1]
        pixels[m] = -1
        if rows <= 0 or box[2] <= box[0]:
            continue
        top = np.int64(box[1] == 0)
        bottom = np.int64(box[3] == height and height > 1)
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        stretches = _stretches(ends, height, region, begin, end, kind)
        for i in range(stretches):
            low = _in_box(begin[i], height, box)
            high = _in_box(end[i], height, box)
            if kind[i] == _RIM:
                low = _on_rim(low, rows, top, bottom)
                high = _on_rim(high, rows, top, bottom)
            begin[i] = low
            count[m] += high - low
            total[i] = count[m]
        for k in range(numbers.shape[1]):
            if count[m] == 0:
                break
            number = numbers[m, k] % count[m]
            i = np.searchsorted(total[:stretches], number, side="right")
            position = begin[i] + number
            if i > 0:
                position -= total[i - 1]
            if kind[i] == _RIM:
                position = _nth_on_rim(position, rows, top, bottom)
            pixels[m, k, 0] = box[0] + position // rows
            pixels[m, k, 1] = box[1] + position % rows
    return count


def find_pixels(
    image: tuple[np.ndarray, np.ndarray, int, int],
    region: str,
    boxes: np.ndarray | None,
    numbers: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Count the pixels of a region of every mask of one image, and find some of them.

    Args:
        image: (run_ends, run_offset, height, width).
        region, boxes: as in `draw_points`.
        numbers: int64 (n, k), 0 or more, of the pixels to find, modulo the count.

    Returns:
        int64 (n,), the counts, and int64 (n, k, 2), x and y in source pixels; -1, -1 if the region
        has no pixels.
    """
    run_ends, run_offset, height, width = image
    size = check_image(height, width)
    run_ends, run_offset = check_image_runs(run_ends, run_offset, size[0] * size[1])
    boxes = check_asked(len(run_offset) - 1, region, boxes)
    if boxes is None:
        boxes = np.empty((0, 4), np.int64)
    pixels = np.empty((*numbers.shape, 2), np.int64)
    counts = _find_pixels(
        run_ends, run_offset, size, REGIONS.index(region), frozen(boxes), frozen(numbers), pixels
    )
    return counts, pixels


def check_asked(masks: int, region: str, boxes: Any, kind: type = np.ndarray) -> Any:
    """Check what is asked about masks, see `draw_points`.

    Returns the boxes as int64, with whole edges around the pixels whose centres they hold; or None.
    Raises OptionError if the region, the dtype or the shape is wrong.
    """
    choice("region", region, REGIONS)
    if boxes is None:
        return None
    check_array("boxes", boxes, BOX_TYPES, (masks, 4), kind=kind)
    if "float" in str(boxes.dtype):
        boxes = (-((0.5 - boxes) // 1)).clip(-1, 2**31)
    if kind is np.ndarray:
        return boxes.astype(np.int64)
    return boxes.long()


# Kirillov et al., "Segment Anything", 2023, appendix A: a box gets "random noise added in each
# coordinate with standard deviation equal to 10% of the box sidelength, to a maximum of 20 pixels".
BOX_NOISE = 0.1
BOX_SHIFT = 20.0

# `draw` for the words of each kind of prompt; the caller's draw is added.
DRAWS = {
    kind: number << 32
    for number, kind in enumerate((*REGIONS, "boxes", "clicks", "points", "kinds", "valid"), 1)
}


@checks_options
def draw_points(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    width: int,
    ids: np.ndarray,
    points: int,
    region: str = "inside",
    *,
    seed: int,
    epoch: int,
    draw: int = 0,
    boxes: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw points uniformly from a region of every mask of one image, with replacement.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        height, width: size of the source image in pixels.
        ids: int64 (n,), for example annotation ids; the points depend on them.
        points: k, the number per mask.
        region: "inside", "boundary" or "outside", see the module.
        seed, epoch: 0 to 2**64 - 1; the points depend on them as well.
        draw: 0 to 2**32 - 1, distinguishes several draws from one region in one epoch.
        boxes: int64, int32, float32 or float64 (n, 4), edges x0, y0, x1, y1 in source pixels: draws
            only from the pixels whose centres are in the mask's box; None for the complete image.
            The part of a box outside the image has no pixels.

    Returns:
        points: float32 (n, k, 2), x and y of pixel centres in source coordinates. A larger k
            appends points. Zero where not valid.
        valid: bool (n,), False if the region has no pixels: the mask is empty, or covers the
            complete image or box, or the box is outside the image.

    Raises:
        MaskError: the image is too large, or a mask's run ends decrease or do not end with its
            pixels.
        OptionError: an option, a dtype or a shape is wrong.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> ids = np.array([77])
        >>> draw = sa1bpack.masks.draw_points
        >>> points, valid = draw(run_ends, run_offset, 3, 4, ids, 2, seed=0, epoch=0)
        >>> points.shape, points.dtype, valid
        ((1, 2, 2), dtype('float32'), array([ True]))
    """
    check_array("ids", ids, "int64", (len(run_offset) - 1,), ", one per mask")
    points = whole_number("points", points, 0, 2**31 - 1)
    drawn = words(seed, epoch, ids, prompt_draw(region, draw), points) >> np.uint64(1)
    runs = run_ends, run_offset, height, width
    counts, pixels = find_pixels(runs, region, boxes, drawn.view(np.int64))
    valid = counts > 0
    return np.where(valid[:, None, None], pixels + 0.5, 0).astype(np.float32), valid


def prompt_draw(kind: str, draw: int) -> int:
    """The `draw` for the words of a kind of prompt.

    Raises:
        OptionError: `draw` is not 0 to 2**32 - 1.
    """
    return DRAWS[choice("region", kind, DRAWS)] + whole_number("draw", draw, 0, 2**32 - 1)


@checks_options
def jitter_boxes(
    boxes: np.ndarray, extent: np.ndarray, ids: np.ndarray, *, seed: int, epoch: int, draw: int = 0
) -> np.ndarray:
    """Move the edges of boxes at random, as SAM does for training.

    Each edge moves by normal noise with a standard deviation of 10% of the box's width or height,
    by at most 20 pixels, and stays inside the image. A box cannot turn inside out: the noise never
    exceeds 4.33 standard deviations.

    Args:
        boxes: float32 or float64 (..., 4), x0, y0, x1, y1, edges in pixels of the training input,
            to which the limit of 20 pixels applies; "..." is (n,), or any other shape.
        extent: float32, float64, int32 or int64, width and height of the image in the same pixels:
            (2,), or (..., 2) with the first axes of the boxes, such as (B, 2) for (B, M, 4).
        ids: int64 (...), for example annotation ids; the noise depends on them.
        seed, epoch: 0 to 2**64 - 1; the noise depends on them as well.
        draw: 0 to 2**32 - 1, distinguishes several draws for one id in one epoch.

    Returns:
        float32 (..., 4).

    Raises:
        OptionError: an option, a dtype or a shape is wrong, or a side of a box or of the image is
            below 0. (SA-1B's boxes are x, y, w, h.)

    Examples:
        >>> boxes, ids = np.array([[10.0, 10.0, 60.0, 40.0]]), np.array([77])
        >>> extent = np.array([100.0, 80.0])
        >>> moved = sa1bpack.masks.jitter_boxes(boxes, extent, ids, seed=0, epoch=0)
        >>> moved.dtype, bool((abs(moved - boxes) <= 20).all())
        (dtype('float32'), True)
    """
    check_boxes(boxes, extent, ids)
    drawn = words(seed, epoch, ids.reshape(-1), prompt_draw("boxes", draw), 4)
    noise = normal_quantiles()[drawn >> np.uint64(64 - NORMAL_BITS)]
    edges: np.ndarray = moved_edges(boxes.astype(np.float64), extent, noise)
    return edges.astype(np.float32)


def moved_edges(edges: Any, extent: Any, noise: Any) -> Any:
    """Boxes, float64 (..., 4), with their edges moved by normal noise, four numbers per box.

    Arrays are those of numpy or torch; the others are as in `jitter_boxes`.
    """
    corners = edges.reshape(*edges.shape[:-1], 2, 2)
    sides = corners[..., 1:, :] - corners[..., :1, :]
    moves = (noise.reshape(corners.shape) * BOX_NOISE * sides).clip(-BOX_SHIFT, BOX_SHIFT)
    missing = [1] * (corners.ndim - extent.ndim)
    limit = extent.reshape(*extent.shape[:-1], *missing, 2)
    return (corners + moves).clip(0).clip(None, limit).reshape(edges.shape)


def check_boxes(boxes: Any, extent: Any, ids: Any, kind: type = np.ndarray) -> None:
    """Check boxes, their images' extent and their ids, see `jitter_boxes`.

    Raises:
        OptionError: they are not arrays of this kind, see `check_array`; a dtype or a shape is
            wrong; or, unless they are on a device, edges are not in order or a side is below 0.
    """
    check_array("boxes", boxes, _FLOATS, ("...", 4), kind=kind)
    lead = tuple(boxes.shape[:-1])
    axes = min(getattr(extent, "ndim", 1) - 1, len(lead))
    note = ""
    if axes == 0:
        note = f" or {(*lead, 2)}"
    check_array("extent", extent, f"{_FLOATS} or int32 or int64", (*lead[:axes], 2), note, kind)
    check_array("ids", ids, "int64", lead, ", one per box", kind)
    if kind is not np.ndarray and not boxes.device.type == extent.device.type == "cpu":
        return
    if not (np.asarray(extent) >= 0).all():
        raise OptionError(f"extent must be widths and heights of 0 or more, got {extent.min()}")
    boxes = np.asarray(boxes).reshape(-1, 4)
    wrong = np.flatnonzero(~(boxes[:, 2:] >= boxes[:, :2]).all(1))  # true for NaN as well
    if len(wrong):
        raise OptionError(
            f"box {wrong[0]} of {len(boxes)} is {boxes[wrong[0]].tolist()}: boxes are edges, x0, "
            "y0, x1, y1, with x0 <= x1 and y0 <= y1; SA-1B's boxes are x, y, w, h"
        )
