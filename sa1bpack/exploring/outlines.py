"""The outline of a mask as a path of SVG, exactly along the edges of its pixels.

In a column of pixels, a mask changes between outside and inside at some edges: its *toggles*. A
toggle (x, y) is the edge from the corner (x, y) to the corner (x + 1, y), so it is a horizontal
piece of the outline. Corners at which exactly one horizontal piece ends are those of the outline:
of every such corner, one vertical and one horizontal line lead to another. In the order of x, then
y, the corners that belong together vertically are neighbours, and in the order of y, then x, those
that belong together horizontally. So the outline of all masks is sorted twice, and then followed.

Where two parts of a mask touch at a corner, the lines cross there. Filled by the rule "evenodd",
the path covers exactly the pixels of the mask.
"""

import numpy as np

from sa1bpack.masks import unpack_bits


def outlines_of_runs(
    run_ends: np.ndarray, run_offset: np.ndarray, height: int, width: int
) -> list[str]:
    """The outline of each of m masks, in pixels of the source: "M4 0h2v3h-2z".

    Args:
        run_ends: int32 (r,), ends of runs in source pixels, by columns, as a sample has them.
        run_offset: int64 (m + 1,), where the runs of each mask begin.
        height, width: of the source, in pixels.
    """
    lengths = np.diff(run_offset)
    masks = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.zeros(len(run_ends), np.int64)
    begins[1:] = run_ends[:-1]
    ordinal = np.arange(len(run_ends)) - np.repeat(run_offset[:-1], lengths)
    begins[ordinal == 0] = 0
    inside = (ordinal % 2 == 1) & (run_ends > begins)
    first = begins[inside]
    last = run_ends[inside].astype(np.int64) - 1
    # A run that continues in the next column is one piece in each.
    first_column = first // height
    last_column = last // height
    pieces = last_column - first_column + 1
    run = np.repeat(np.arange(len(first)), pieces)
    nth = np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    column = first_column[run] + nth
    top = np.where(nth == 0, first[run] % height, 0)
    bottom = np.where(nth == pieces[run] - 1, last[run] % height + 1, height)
    mask = masks[inside][run]
    return _paths(
        np.concatenate([mask, mask]),
        np.concatenate([column, column]),
        np.concatenate([top, bottom]),
        len(lengths),
    )


def outlines_of_bits(bits: np.ndarray) -> list[str]:
    """The outline of each of m masks, in cells of their grid.

    Args:
        bits: uint8 (m, G, G / 8), lowest bit first, as a sample has them.
    """
    cells = unpack_bits(bits)
    closed = np.pad(cells, ((0, 0), (1, 1), (0, 0)))
    mask, y, x = np.nonzero(closed[:, 1:] != closed[:, :-1])
    return _paths(mask, x, y, len(bits))


def _paths(mask: np.ndarray, x: np.ndarray, y: np.ndarray, count: int) -> list[str]:
    """The path of each of `count` masks, of toggles: int64 (t,) each; two of one place are none."""
    if not len(mask):
        return [""] * count
    span = int(max(x.max(), y.max())) + 2
    left = (mask * span + x) * span + y
    corners, times = np.unique(np.concatenate([left, left + span]), return_counts=True)
    corners = corners[times % 2 == 1]
    corner_y = corners % span
    corner_x = corners // span % span
    corner_mask = corners // (span * span)
    across = np.argsort((corner_mask * span + corner_y) * span + corner_x)
    partner = np.empty(len(corners), np.int64)
    partner[across[0::2]] = across[1::2]
    partner[across[1::2]] = across[0::2]
    bounds = np.searchsorted(corner_mask, np.arange(count + 1)).tolist()
    return _followed(corner_x.tolist(), corner_y.tolist(), partner.tolist(), bounds)


def _followed(x: list[int], y: list[int], partner: list[int], bounds: list[int]) -> list[str]:
    """The path of each mask: from a corner across to its partner, down or up to the next, and on.

    Args:
        x, y: of the corners of all masks, sorted by mask, x and y: those at 2 k and 2 k + 1 are
            the ends of a vertical line.
        partner: of each corner, the other end of its horizontal line.
        bounds: first corner of each mask, and the number of all.
    """
    seen = bytearray(len(x))
    paths = []
    for mask in range(len(bounds) - 1):
        words: list[str] = []
        for start in range(bounds[mask], bounds[mask + 1]):
            if seen[start]:
                continue
            words.append(f"M{x[start]} {y[start]}")
            corner = start
            while not seen[corner]:
                across = partner[corner]
                below = across ^ 1
                seen[corner] = 1
                seen[across] = 1
                words.append(f"h{x[across] - x[corner]}v{y[below] - y[across]}")
                corner = below
            words.append("z")
        paths.append("".join(words))
    return paths
