"""Distances of cells of a mask from the nearest cell outside, exactly, in whole numbers.

Along the columns by two scans, then along the rows by the lower envelope of parabolas (Felzenszwalb
and Huttenlocher, "Distance Transforms of Sampled Functions", 2012).
"""

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.kernels import njit

# The squares of two sides of this length fit into an int32.
MAX_GRID = 16_384


def squared_distances(masks: np.ndarray) -> np.ndarray:
    """Squared distance of each cell from the nearest cell outside its mask.

    Args:
        masks: bool (T, h, w); beyond the border all is outside.

    Returns:
        int32 (T, h, w), in cells; 0 outside the mask.

    Raises:
        OptionError: it is no such array, or a side exceeds MAX_GRID.

    Examples:
        >>> squared_distances(np.ones((1, 3, 3), np.bool_))[0].tolist()
        [[1, 1, 1], [1, 4, 1], [1, 1, 1]]
    """
    if masks.dtype != np.bool_ or masks.ndim != 3 or max(masks.shape[1:]) > MAX_GRID:
        raise OptionError(
            f"masks is {masks.dtype} {masks.shape}: give bool (T, h, w), with sides of at most "
            f"{MAX_GRID}"
        )
    found = np.empty(masks.shape, np.int32)
    _squared_distances(np.ascontiguousarray(masks).view(np.uint8), found)
    return found


@njit(error_model="numpy")
def _squared_distances(masks, found):
    count, height, width = masks.shape
    column = np.empty(width + 2, np.int64)  # with a cell outside at either end
    vertex = np.empty(width + 2, np.int64)
    start = np.empty(width + 3, np.float64)  # from where on a vertex is the nearest
    for m in range(count):
        for x in range(width):
            steps = 0
            for y in range(height):
                steps = steps + 1 if masks[m, y, x] else 0
                found[m, y, x] = steps
            steps = 0
            for y in range(height - 1, -1, -1):
                steps = steps + 1 if masks[m, y, x] else 0
                found[m, y, x] = min(found[m, y, x], steps)
        for y in range(height):
            column[0] = column[width + 1] = 0
            for x in range(width):
                column[x + 1] = np.int64(found[m, y, x]) ** 2
            last = 0
            vertex[0] = 0
            start[0] = -np.inf
            for x in range(1, width + 2):
                while True:
                    p = vertex[last]
                    crossing = (column[x] + x * x - column[p] - p * p) / (2.0 * (x - p))
                    if crossing > start[last]:
                        break
                    last -= 1
                last += 1
                vertex[last] = x
                start[last] = crossing
            start[last + 1] = np.inf
            k = 0
            for x in range(1, width + 1):
                while start[k + 1] < x:
                    k += 1
                p = vertex[k]
                found[m, y, x - 1] = (x - p) * (x - p) + column[p]
