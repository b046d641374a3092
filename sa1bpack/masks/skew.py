"""Run ends to packed bits under a map that rotates or shears: sample points, whole numbers only."""

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.masks.boxes import bounds

FRACTION = 32  # fractional bits of a coordinate


@njit
def _steps_within(start, step, low, high, first, last):
    """Narrow first..last to the r with low <= start + step·r < high."""
    if step == 0:
        return (first, last) if low <= start < high else (first, first)
    if step > 0:
        inside, outside = -((start - low) // step), -((start - high) // step)
    else:
        inside, outside = (start - high) // -step + 1, (start - low) // -step + 1
    return max(first, inside), min(last, outside)


@njit
def _run_at(ends, position):
    """Return the first k with ends[k] > position."""
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) >> 1
        if ends[middle] > position:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def _count_column(ends, height, box, x, y, x_step, y_step, level, hits):
    """Count the foreground points of one column of sample points into the cells of `hits`.

    x, y and the steps down the column are in units of 2**-FRACTION source pixels. Adjacent points
    mostly lie in the same run, so the last run is remembered.

    Returns the first cell that was examined and the one after the last.
    """
    x0, y0, x1, y1 = box
    first, last = np.int64(0), np.int64(len(hits)) << level
    first, last = _steps_within(x, x_step, x0 << FRACTION, x1 << FRACTION, first, last)
    first, last = _steps_within(y, y_step, y0 << FRACTION, y1 << FRACTION, first, last)
    begin = end = np.int64(0)  # of the run that contains the last point
    inside = np.int64(0)
    for r in range(first, last):
        position = ((x + x_step * r) >> FRACTION) * height + ((y + y_step * r) >> FRACTION)
        if not begin <= position < end:
            k = _run_at(ends, position)
            begin, end = np.int64(ends[k - 1]) if k else np.int64(0), np.int64(ends[k])
            inside = k & 1
        hits[r >> level] += inside
    return (first >> level, ((last - 1) >> level) + 1) if first < last else (len(hits), 0)


@njit
def draw_skew(run_ends, run_offset, height, steps, level, columns, out):
    """Write the bits of all masks of one image.

    Args:
        run_ends, run_offset: checked, see `parse_counts`.
        height: of the source.
        steps: int64 (2, 3), see `window.sample_steps`.
        level: a cell has 2**level sample points along each side, and is set if at least half of
            them are foreground.
        columns: w.
        out: uint8 (n, h, ceil(w / 8)), overwritten completely.
    """
    height = np.int64(height)
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
            top, bottom = np.int64(len(hits)), np.int64(0)
            for s in range(j << level, (j + 1) << level):
                x = steps[0, 0] * s + steps[0, 2]
                y = steps[1, 0] * s + steps[1, 2]
                first, last = _count_column(
                    ends, height, box, x, y, steps[0, 1], steps[1, 1], level, hits
                )
                top, bottom = min(top, first), max(bottom, last)
            for i in range(top, bottom):
                bits[i, j >> 3] |= np.uint8((hits[i] >= least) << (j & 7))
                hits[i] = 0
