"""The cells outside of masks that ways connect with the edge of their grid, compiled."""

import numpy as np

from sa1bpack.kernels import njit


@njit
def reach_from_edges(masks: np.ndarray, corners: bool, reached: np.ndarray) -> None:
    """Find the cells outside of each mask that a way over such cells connects with the edge.

    Every cell is visited once, from a stack.

    Args:
        masks: uint8 (n, h, w), 1 for cells of the mask.
        corners: a way leads to cells that share a corner as well.
        reached: uint8 (n, h, w), zeros; out: 1 for the cells.
    """
    count, height, width = masks.shape
    stack = np.empty(height * width, np.int64)
    for n in range(count):
        found = 0
        for y in range(height):
            for x in range(width):
                is_edge = y == 0 or x == 0 or y == height - 1 or x == width - 1
                if is_edge and masks[n, y, x] == 0:
                    reached[n, y, x] = 1
                    stack[found] = y * width + x
                    found += 1
        while found > 0:
            found -= 1
            y = stack[found] // width
            x = stack[found] - y * width
            for down in range(max(y - 1, 0), min(y + 2, height)):
                for across in range(max(x - 1, 0), min(x + 2, width)):
                    if not corners and down != y and across != x:
                        continue
                    if masks[n, down, across] == 0 and reached[n, down, across] == 0:
                        reached[n, down, across] = 1
                        stack[found] = down * width + across
                        found += 1
