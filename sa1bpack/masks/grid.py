"""How the cells of an output grid map to the pixels of a source image, in whole numbers only.

Along one axis, the unit is chosen such that source pixels, cells and the start of the grid are
whole numbers of units. With P units per source pixel, D units per cell and a grid that starts at O,
source pixel x covers [x·P, (x + 1)·P) and cell j covers [O + j·D, O + (j + 1)·D). A mirrored axis
numbers its cells from the other end.

The compiled kernels (`sa1bpack.masks.raster`) and the device (`sa1bpack.transforms.masks.runs`)
use the same units, so they cannot differ.
"""

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from sa1bpack.arguments import choice, whole_number
from sa1bpack.errors import MaskError
from sa1bpack.masks._arrays import MAX_RUN_END, MAX_SIDE

SAMPLINGS = ("area", "center")
MAX_MASK_SIZE = 4096  # cells along one side of a grid


class Axis(NamedTuple):
    """One axis of a grid, in the units described in the module.

    Attributes:
        pixels: length of the source image in source pixels.
        cells: number of cells.
        pixel: P, 1 to 2**22.
        cell: D, 1 to 2**31 - 1.
        start: O, absolute value below 2**43; of the lower end, mirrored or not.
        mirrored: whether cell 0 is at the higher end.
    """

    pixels: int
    cells: int
    pixel: int
    cell: int
    start: int
    mirrored: bool


def make_axis(
    pixels: int, cells: int, pixel: int, cell: int, start: int = 0, mirrored: bool = False
) -> Axis:
    """Return an axis in the largest possible unit: small numbers need narrower sums."""
    unit = gcd(pixel, cell, start)
    return Axis(pixels, cells, pixel // unit, cell // unit, start // unit, mirrored)


def check_image(height: int, width: int) -> tuple[int, int]:
    """Return the size of an image as ints.

    Raises:
        MaskError: an image of this size cannot have masks.
        OptionError: a side is not a whole number of at least 0.
    """
    height, width = whole_number("height", height, 0), whole_number("width", width, 0)
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_RUN_END):
        raise MaskError(
            f"masks of {height}x{width} pixels cannot be used; the limits are "
            f"{MAX_SIDE} per side and {MAX_RUN_END} pixels"
        )
    return height, width


def check_sampling(sampling: str) -> None:
    """Raise OptionError unless `sampling` is "area" or "center"."""
    choice("sampling", sampling, SAMPLINGS)


class AreaGrid(NamedTuple):
    """Tables for sampling by area.

    "Edge" y lies above source row y, 0 to H. Edges outside the grid are moved to its end.

    Attributes:
        height, width: of the source, H and W.
        rows: of cells.
        mirror_y, mirror_x: 1 if that axis is mirrored, otherwise 0; the tables describe the axis
            before mirroring. Mirrored cell columns are numbered so that the last one ends a byte.
        cell_height, cell_width: D of each axis.
        magic, shift: position // H is (position * magic) >> shift for every int32 position.
        edge_row: int32 (H + 1,), the cell row that contains edge y (`rows` for an edge at the end).
        edge_below: int32 (H + 1,), how much of that cell row is below the edge, 1 to D.
        column_cell: int32 (W,), the first cell column that source column x overlaps.
        column_part: int32 (W,), by how much.
        column_rest: int32 (W,), by how much it overlaps the following cell columns.
        block_begin: int64 (blocks + 1,), the first source column that overlaps cell column 8·b.
        block_end: int64 (blocks,), the first source column right of cell column 8·b + 7.
    """

    height: int
    width: int
    rows: int
    mirror_y: int
    mirror_x: int
    cell_height: int
    cell_width: int
    magic: int
    shift: int
    edge_row: np.ndarray
    edge_below: np.ndarray
    column_cell: np.ndarray
    column_part: np.ndarray
    column_rest: np.ndarray
    block_begin: np.ndarray
    block_end: np.ndarray


class CenterGrid(NamedTuple):
    """Tables for sampling at the cells' centres.

    Attributes:
        height, width: of the source, H and W.
        rows, columns: of cells.
        mirror_x: 1 if cell column j must be written as the j-th from the right, otherwise 0.
        center_column: int64 (columns,), the source column under the centre of cell column j, below
            0 or at least W outside the source.
        edge_center: int32 (H + 1,), the position of edge y among the cell rows' centres.
        column_center: int32 (W,), the number of cell columns whose centre is left of column x.
    """

    height: int
    width: int
    rows: int
    columns: int
    mirror_x: int
    center_column: np.ndarray
    edge_center: np.ndarray
    column_center: np.ndarray


def _on_axis(axis: Axis, edges: np.ndarray) -> np.ndarray:
    """int64: how far edges of source pixels are from the start of the axis, moved to its ends."""
    return np.clip(edges * axis.pixel - axis.start, 0, axis.cells * axis.cell)


def _table(numbers: np.ndarray, kind: type) -> np.ndarray:
    """A read-only array, C-contiguous, of a type."""
    table = np.ascontiguousarray(numbers, kind)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=64)  # most images of SA-1B have one of a few sizes; an entry is about 50 kB
def area_grid(y: Axis, x: Axis) -> AreaGrid:
    """Return the tables for sampling by area."""
    # Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, theorem
    # 4.2: exact for 31-bit numerators, and the product stays below 2**63.
    shift = 31 + (y.pixels - 1).bit_length()
    magic = -(-(1 << shift) // y.pixels)
    edge_row, above = np.divmod(_on_axis(y, np.arange(y.pixels + 1)), y.cell)
    edges = _on_axis(x, np.arange(x.pixels + 1))
    column = edges[:-1] // x.cell
    part = np.minimum((column + 1) * x.cell, edges[1:]) - edges[:-1]
    first = -x.cells % 8 if x.mirrored else 0  # number of the leftmost cell column
    blocks = np.arange(0, x.cells + 8, 8) - first  # the first cell column of each, and the end
    bounds = np.clip(blocks, 0, x.cells) * x.cell + x.start
    return AreaGrid(
        height=y.pixels,
        width=x.pixels,
        rows=y.cells,
        mirror_y=int(y.mirrored),
        mirror_x=int(x.mirrored),
        cell_height=y.cell,
        cell_width=x.cell,
        magic=magic,
        shift=shift,
        edge_row=_table(edge_row, np.int32),
        edge_below=_table(y.cell - above, np.int32),
        column_cell=_table(first + column, np.int32),
        column_part=_table(part, np.int32),
        column_rest=_table(np.diff(edges) - part, np.int32),
        block_begin=_table(np.clip(bounds // x.pixel, 0, x.pixels), np.int64),
        block_end=_table(np.clip(-(-bounds[1:] // x.pixel), 0, x.pixels), np.int64),
    )


def _cells_before(axis: Axis) -> np.ndarray:
    """int64 (pixels + 1,): how many cells have their centre before each edge of a source pixel."""
    edges = np.arange(axis.pixels + 1) * axis.pixel - axis.start
    return np.clip(-((axis.cell - 2 * edges) // (2 * axis.cell)), 0, axis.cells)


@lru_cache(maxsize=64)
def center_grid(y: Axis, x: Axis) -> CenterGrid:
    """Return the tables for sampling at the cells' centres."""
    rows, centers = _cells_before(y), 2 * x.start + (2 * np.arange(x.cells) + 1) * x.cell
    return CenterGrid(
        height=y.pixels,
        width=x.pixels,
        rows=y.cells,
        columns=x.cells,
        mirror_x=int(x.mirrored),
        center_column=_table(centers // (2 * x.pixel), np.int64),
        edge_center=_table(y.cells - rows if y.mirrored else rows, np.int32),
        column_center=_table(_cells_before(x)[:-1], np.int32),
    )
