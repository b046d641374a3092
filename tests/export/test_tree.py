"""The table of a large picture puts every mask below the one that it lies in."""

import numpy as np

from sa1bpack.export.drawing import as_tree
from sa1bpack.masks import pack_bits


def squares(*corners: tuple[int, int, int]) -> np.ndarray:
    """Bits of squares x, y, side on a grid of 32 x 32 cells."""
    cells = np.zeros((len(corners), 32, 32), bool)
    for mask, (x, y, side) in zip(cells, corners, strict=True):
        mask[y : y + side, x : x + side] = True
    return pack_bits(cells)


def test_children_follow_their_parent_from_large_to_small():
    bits = squares((20, 20, 4), (0, 0, 16), (9, 9, 5), (1, 1, 7), (2, 2, 3), (20, 0, 8))
    shown = np.array([1, 5, 3, 2, 0, 4])  # by size
    assert as_tree(bits, shown) == [
        (1, 0, None),
        (3, 1, 0),
        (4, 2, 1),
        (2, 1, 0),
        (5, 0, None),
        (0, 0, None),
    ]
