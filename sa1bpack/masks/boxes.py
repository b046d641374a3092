"""Boxes around masks, from their runs."""

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.masks._arrays import check_image_runs


@njit
def bounds(ends, height):
    """Return x0, y0, x1, y1 around a mask's foreground, ends exclusive; zeros if it has none."""
    x0, y0, x1, y1 = np.int64(0), np.int64(height), np.int64(0), np.int64(0)
    for k in range(1, len(ends), 2):
        first, last = np.int64(ends[k - 1]), np.int64(ends[k]) - 1
        if last < first:
            continue
        left, right = first // height, last // height
        if x1 == 0:  # runs are sorted, so the first one is in the first column
            x0 = left
        x1 = right + 1
        if left == right:
            y0, y1 = min(y0, first - left * height), max(y1, last - left * height + 1)
        else:  # it continues in the next column
            y0, y1 = np.int64(0), np.int64(height)
    return (x0, y0, x1, y1) if x1 else (np.int64(0), np.int64(0), np.int64(0), np.int64(0))


@njit
def _boxes(run_ends, run_offset, height, boxes):
    for m in range(len(boxes)):
        x0, y0, x1, y1 = bounds(run_ends[run_offset[m] : run_offset[m + 1]], height)
        boxes[m, 0], boxes[m, 1], boxes[m, 2], boxes[m, 3] = x0, y0, x1 - x0, y1 - y0


def mask_bbox(run_ends: np.ndarray, run_offset: np.ndarray, height: int, width: int) -> np.ndarray:
    """The box around each mask's foreground as COCO defines it: w = xmax - xmin + 1.

    The same as pycocotools' `toBbox`. Width and height of SA-1B's boxes are one less.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        height, width: of the source image, in pixels.

    Returns:
        int64 (n, 4): x, y, w, h in source pixels; zeros for a mask without foreground.

    Raises:
        MaskError: the runs do not belong to an image of this size.
        OptionError: an array has the wrong dtype or the offsets do not fit the runs.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> sa1bpack.masks.mask_bbox(run_ends, run_offset, height=3, width=4)
        array([[0, 0, 2, 3]])
    """
    run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
    boxes = np.empty((len(run_offset) - 1, 4), np.int64)
    _boxes(run_ends, run_offset, np.int64(height), boxes)
    return boxes
