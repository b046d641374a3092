"""The order of a table of masks in which each stands below the mask that it lies in."""

from typing import NamedTuple

import numpy as np

from sa1bpack.masks import relate_bits


class Row(NamedTuple):
    """A mask, how many masks of the table it lies in, and the line of its parent, or None."""

    mask: int
    depth: int
    parent: int | None


def as_tree(bits: np.ndarray, shown: np.ndarray) -> list[Row]:
    """The rows of a table of some masks: a mask's children follow it, in the order of `shown`.

    bits   uint8 (m, G, G / 8), of all masks
    shown  int64 (k,), the masks of the table; one whose parent is not among them is a root
    """
    parents = relate_bits(bits[shown]).parents  # places in `shown`
    rows: list[Row] = []
    # Last in, first out: pushed in reverse, so that the first child comes first.
    waiting: list[tuple[int, int, int | None]] = [
        (place, 0, None) for place in np.flatnonzero(parents < 0)[::-1].tolist()
    ]
    while waiting:
        place, depth, parent = waiting.pop()
        rows.append(Row(int(shown[place]), depth, parent))
        children = np.flatnonzero(parents == place)[::-1].tolist()
        waiting += [(child, depth + 1, len(rows) - 1) for child in children]
    return rows
