"""Masks of any part of the image at any size: the exact runs, drawn under an affine map.

A map is float64 (2, 3) `M` and maps OUTPUT coordinates to SOURCE coordinates,
[xs, ys] = M @ [x, y, 1]. Coordinates are continuous: x to the right, y down, pixel edges at whole
numbers, the centre of pixel i at i + 0.5. Cell (i, j) of the output is [j, j + 1) x [i, i + 1).

The result is defined in whole numbers, so that CPUs and devices produce the same bits:

- An upright map (a stretched and possibly mirrored rectangle of the source) is defined by the
  source positions of the output's edges, which are rounded to 1/1024 of a source pixel. Everything
  after that is exact: "area" sets a cell if at least half of it is covered, "center" takes the
  source pixel under its centre. A rectangle without width is treated as 1/1024 pixel wide.
- A map that rotates or shears by more than that is evaluated at sample points, in units of 2**-32
  source pixels: at the cell's centre for "center"; at 4 x 4 points spread evenly over the cell for
  "area", which sets a cell if at least 8 of them are foreground.

Outside the source is background.
"""

import numpy as np

from sa1bpack.arguments import choice, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.kernels import njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import check_image_runs, check_out
from sa1bpack.masks.cells import FRACTION
from sa1bpack.masks.raster import Axis, check_image, draw_grid, make_axis
from sa1bpack.masks.rle import bounds
from sa1bpack.masks.select import MAX_MASK_SIZE, SAMPLINGS
from sa1bpack.wording import brief

UNIT = 1024  # edges of the output lie at multiples of 1/UNIT source pixel
REACH = 2**20  # source pixels; maximum distance of the output's corners from the origin
STEPS = 1 << FRACTION  # sample points of other maps lie at multiples of 1/STEPS source pixel
LEVELS = {"center": 0, "area": 2}  # binary logarithm of the sample points along a cell's side


@checks_options
def window_map(x0: float, y0: float, x1: float, y1: float, size: tuple[int, int]) -> np.ndarray:
    """The map from an output of `size` to a rectangle of the source.

    Args:
        x0, y0: source coordinates of the output's top left corner.
        x1, y1: source coordinates of its bottom right corner; x1 < x0 mirrors horizontally, y1 < y0
            vertically.
        size: (h, w), cells of the output.

    Returns:
        float64 (2, 3), see the module. ``(0, 0, L, L)`` with L = max(H, W) is the grid of the fits
        "pad" and "native", ``(0, 0, W, H)`` that of "squash".

    Raises:
        OptionError: `size` is not two whole numbers from 1 to 4096.

    Examples:
        >>> sa1bpack.masks.window_map(0, 0, 2250, 1500, size=(256, 256))
        array([[8.7890625, 0.       , 0.       ],
               [0.       , 5.859375 , 0.       ]])
    """
    height, width = check_size(size)
    return np.array([[(x1 - x0) / width, 0, x0], [0, (y1 - y0) / height, y0]], np.float64)


def check_size(
    size: tuple[int, int], name: str = "size", most: int = MAX_MASK_SIZE
) -> tuple[int, int]:
    """Check (h, w), the sides of an output, and return them as ints.

    Raises:
        OptionError: `size` is not two whole numbers from 1 to `most`; the message has its name.
    """
    try:
        height, width = size
    except (TypeError, ValueError):
        raise OptionError(
            f"{name} is {brief(size)}: give (height, width), whole numbers from 1 to {most}"
        ) from None
    return whole_number(f"{name}[0]", height, 1, most), whole_number(f"{name}[1]", width, 1, most)


def check_maps(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Check maps and return which are upright.

    Args:
        maps: float64 (b, 2, 3), see the module.
        size: (h, w), cells of the output.

    Returns:
        bool (b,), True where the map is upright, see the module.

    Raises:
        OptionError: the array is another, a number is not finite, or a map reaches too far.
    """
    if maps.dtype != np.float64 or maps.ndim != 3 or maps.shape[1:] != (2, 3):
        raise OptionError(f"maps must be float64 (b, 2, 3), got {maps.dtype} {maps.shape}")
    beyond = np.flatnonzero(~within_reach(maps, size))
    if len(beyond):
        height, width = size
        raise OptionError(
            f"map {beyond[0]} of {len(maps)} places an output of {height}x{width} more than "
            f"{REACH} source pixels from the origin: {maps[beyond[0]].tolist()}"
        )
    return are_upright(maps, size)


def within_reach(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """bool (b,): maps that place no corner of the output too far from the origin.

    False for a map with a number that is not finite. Arguments: see `check_maps`.
    """
    height, width = size
    across = maps[..., 0] * width
    down = maps[..., 1] * height
    origin = maps[..., 2]
    low = origin + np.minimum(across, 0) + np.minimum(down, 0)
    high = origin + np.maximum(across, 0) + np.maximum(down, 0)
    within: np.ndarray = ((low > -REACH) & (high < REACH)).all(1)  # False for NaN as well
    return within


def are_upright(maps: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """bool (b,): maps that are upright, see the module. Arguments: see `check_maps`."""
    height, width = size
    off_axis = np.stack([maps[:, 0, 1] * height, maps[:, 1, 0] * width], 1) * UNIT
    upright: np.ndarray = (np.rint(off_axis) == 0).all(1)
    return upright


def _axis(pixels: int, cells: int, scale: float, offset: float) -> Axis:
    """The axis on which cell edge j lies at scale·j + offset, for j = 0 and j = cells."""
    first = int(np.rint(offset * UNIT))
    last = int(np.rint((scale * cells + offset) * UNIT))
    cell = max(abs(last - first), 1)
    return make_axis(pixels, cells, cells * UNIT, cell, min(first, last) * cells, last < first)


@njit
def _steps_within(
    start: np.int64, step: np.int64, low: np.int64, high: np.int64, first: np.int64, last: np.int64
) -> tuple[np.int64, np.int64]:
    """Narrow first..last to the r with low <= start + step·r < high."""
    if step == 0:
        if not low <= start < high:
            last = first
        return first, last
    if step > 0:
        inside = -((start - low) // step)
        outside = -((start - high) // step)
    else:
        inside = (start - high) // -step + 1
        outside = (start - low) // -step + 1
    return max(first, inside), min(last, outside)


@njit
def _count_column(
    ends: np.ndarray,
    height: np.int64,
    box: tuple[np.int64, np.int64, np.int64, np.int64],
    point: tuple[np.int64, np.int64],
    step: tuple[np.int64, np.int64],
    level: int,
    hits: np.ndarray,
) -> tuple[np.int64, np.int64]:
    """Count the foreground points of one column of sample points into the cells of `hits`.

    Adjacent points mostly lie in the same run, so the last run is remembered.

    Args:
        ends: int32 (r,), run ends of the mask.
        height: height of the source image.
        box: x0, y0, x1, y1 around the foreground, in source pixels.
        point, step: x and y of the first point and the steps down the column, in units of
            2**-FRACTION source pixels.
        level: a cell has 2**level sample points along the column.

    Returns:
        The first cell that was examined, and the one after the last.
    """
    x0, y0, x1, y1 = box
    x, y = point
    x_step, y_step = step
    first = np.int64(0)
    last = np.int64(len(hits)) << level
    first, last = _steps_within(x, x_step, x0 << FRACTION, x1 << FRACTION, first, last)
    first, last = _steps_within(y, y_step, y0 << FRACTION, y1 << FRACTION, first, last)
    begin = end = np.int64(0)  # of the run that contains the last point
    inside = np.int64(0)
    for r in range(first, last):
        position = ((x + x_step * r) >> FRACTION) * height + ((y + y_step * r) >> FRACTION)
        if not begin <= position < end:
            k = np.searchsorted(ends, position, "right")
            begin = np.int64(0)
            if k > 0:
                begin = np.int64(ends[k - 1])
            end = np.int64(ends[k])
            inside = k & 1
        hits[r >> level] += inside
    if first >= last:
        return np.int64(len(hits)), np.int64(0)
    return first >> level, ((last - 1) >> level) + 1


@njit
def _draw_affine(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    steps: np.ndarray,
    level: int,
    columns: int,
    out: np.ndarray,
) -> None:
    """Write the bits of all masks of one image.

    Args:
        run_ends, run_offset: checked, see `parse_counts`.
        height: height of the source image.
        steps: int64 (2, 3), see `draw_map`.
        level: a cell has 2**level sample points along each side, and is set if at least half of
            them are foreground.
        columns: w, cells per row.
        out: uint8 (n, h, ceil(w / 8)), overwritten completely.
    """
    least = ((1 << 2 * level) + 1) >> 1
    hits = np.zeros(out.shape[1], np.int64)  # of one cell column, zero between columns
    for m in range(out.shape[0]):
        bits = out[m]
        bits[:] = 0
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        box = bounds(ends, height)
        if box[2] == 0:
            continue
        for j in range(columns):
            top = np.int64(len(hits))
            bottom = np.int64(0)
            for s in range(j << level, (j + 1) << level):
                point = steps[0, 0] * s + steps[0, 2], steps[1, 0] * s + steps[1, 2]
                step = steps[0, 1], steps[1, 1]
                first, last = _count_column(ends, np.int64(height), box, point, step, level, hits)
                top = min(top, first)
                bottom = max(bottom, last)
            for i in range(top, bottom):
                bits[i, j >> 3] |= np.uint8((hits[i] >= least) << (j & 7))
                hits[i] = 0


@checks_options
def draw_window(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    width: int,
    affine: np.ndarray,
    size: tuple[int, int],
    sampling: str = "area",
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the masks of one image under a map, as packed bits. Releases the GIL.

    With the map of a stored grid (`window_map`) the result equals `rasterize`'s, bit for bit.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        height, width: size of the source image in pixels, 1 to 65,535, together below 2**31 pixels.
        affine: float64 (2, 3), the map from output to source coordinates, see the module.
        size: (h, w), cells of the output, 1 to 4096 each.
        sampling: "area" or "center", see the module.
        out: uint8 (n, h, ceil(w / 8)), C-contiguous, to write into; it is overwritten completely.

    Returns:
        uint8 (n, h, ceil(w / 8)), row by row, lowest bit first, bits after the last column 0:
        `out`, or a new array. `unpack_bits(bits, w)` converts it to bool.

    Raises:
        MaskError: the image is too large, or a mask's run ends decrease or do not end with its
            pixels.
        OptionError: an option, a dtype or a shape is wrong, or the map reaches too far.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> right_half = sa1bpack.masks.window_map(1, 0, 3, 2, size=(4, 4))
        >>> bits = sa1bpack.masks.draw_window(run_ends, run_offset, 3, 4, right_half, (4, 4))
        >>> sa1bpack.masks.unpack_bits(bits, 4).astype(int)[0]
        array([[1, 1, 0, 0],
               [1, 1, 0, 0],
               [1, 1, 0, 0],
               [1, 1, 0, 0]])
    """
    height, width = check_image(height, width)
    size = check_size(size)
    choice("sampling", sampling, SAMPLINGS)
    affine = np.asarray(affine)
    [upright] = check_maps(affine[None], size)
    runs = check_image_runs(run_ends, run_offset, height * width)
    check_out(out, len(run_offset) - 1, *size)
    return draw_map((*runs, height, width), affine, size, sampling, upright, out)


def draw_map(
    image: tuple[np.ndarray, np.ndarray, int, int],
    affine: np.ndarray,
    size: tuple[int, int],
    sampling: str,
    upright: bool,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """`draw_window` of checked arguments.

    Args:
        image: (run_ends, run_offset, height, width).
        affine, size, sampling, out: see `draw_window`.
        upright: the map is upright, and within reach; if it is not, it is drawn at its sample
            points, whatever it does.
    """
    run_ends, run_offset, height, width = image
    rows, columns = size
    if upright:
        y = _axis(height, rows, affine[1, 1], affine[1, 2])
        x = _axis(width, columns, affine[0, 0], affine[0, 2])
        return draw_grid(run_ends, run_offset, y, x, sampling, out)
    if out is None:
        out = np.empty((len(run_offset) - 1, rows, -(-columns // 8)), np.uint8)
    # x and y of sample point (r, s), in row r and column s of h·k x w·k with k to a cell's side,
    # are [..., 0]·s + [..., 1]·r + [..., 2].
    level = LEVELS[sampling]
    across, down, origin = affine.T
    first = origin + (across + down) * (0.5 / (1 << level))
    steps = np.stack([across / (1 << level), down / (1 << level), first], 1)
    # As `transforms.maps.fixed_steps`: what lies beyond is in no image.
    steps = np.rint(steps.clip(-REACH, REACH) * STEPS).astype(np.int64)
    _draw_affine(run_ends, run_offset, height, steps, level, columns, out)
    return out
