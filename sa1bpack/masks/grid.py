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
from sa1bpack.kernels import njit
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


@njit
def _edge_tables(axis, edge_row, edge_below):
    """Write the row tables of `AreaGrid` from the vertical axis."""
    end = np.int64(axis.cells) * axis.cell
    for y in range(len(edge_row)):
        position = min(max(np.int64(y) * axis.pixel - axis.start, 0), end)
        edge_row[y] = position // axis.cell
        edge_below[y] = axis.cell - position % axis.cell


@njit
def _column_tables(axis, column_cell, column_part, column_rest, block_begin, block_end):
    """Write the column tables of `AreaGrid` from the horizontal axis."""
    cell = np.int64(axis.cell)
    blocks = len(block_end)
    first = 8 * blocks - axis.cells if axis.mirrored else 0  # number of the leftmost cell column
    end = axis.cells * cell
    for x in range(len(column_cell)):
        left = np.int64(x) * axis.pixel - axis.start
        right = min(max(left + axis.pixel, 0), end)
        left = min(max(left, 0), end)
        at = left // cell
        part = min((at + 1) * cell, right) - left
        column_cell[x] = first + at
        column_part[x] = part
        column_rest[x] = right - left - part
    for b in range(blocks + 1):
        position = min(max(8 * b - first, 0), axis.cells) * cell + axis.start
        block_begin[b] = min(max(position // axis.pixel, 0), axis.pixels)
        if b:
            block_end[b - 1] = min(max(-(-position // axis.pixel), 0), axis.pixels)


@njit
def _center_table(axis, numbers):
    """Count the cells whose centre is before each pixel edge, 0 to len(numbers) - 1."""
    for x in range(len(numbers)):
        position = 2 * (np.int64(x) * axis.pixel - axis.start)
        before = -((axis.cell - position) // (2 * axis.cell))
        numbers[x] = min(max(before, 0), axis.cells)


@lru_cache(maxsize=64)  # most images of SA-1B have one of a few sizes; an entry is about 50 kB
def area_grid(y: Axis, x: Axis) -> AreaGrid:
    """Return the tables for sampling by area."""
    # Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, theorem
    # 4.2: exact for 31-bit numerators, and the product stays below 2**63.
    shift = 31 + (y.pixels - 1).bit_length()
    magic = -(-(1 << shift) // y.pixels)
    blocks = -(-x.cells // 8)
    edges = [np.empty(y.pixels + 1, np.int32) for _ in range(2)]
    columns = [np.empty(x.pixels, np.int32) for _ in range(3)]
    columns += [np.empty(blocks + 1, np.int64), np.empty(blocks, np.int64)]
    _edge_tables(y, *edges)
    _column_tables(x, *columns)
    for table in edges + columns:
        table.flags.writeable = False
    return AreaGrid(
        y.pixels,
        x.pixels,
        y.cells,
        int(y.mirrored),
        int(x.mirrored),
        y.cell,
        x.cell,
        magic,
        shift,
        *edges,
        *columns,
    )


@lru_cache(maxsize=64)
def center_grid(y: Axis, x: Axis) -> CenterGrid:
    """Return the tables for sampling at the cells' centres."""
    edge_center, column_center = np.empty(y.pixels + 1, np.int32), np.empty(x.pixels, np.int32)
    _center_table(y, edge_center)
    _center_table(x, column_center)
    if y.mirrored:
        edge_center = y.cells - edge_center
    centers = 2 * x.start + (2 * np.arange(x.cells) + 1) * x.cell
    center_column = centers // (2 * x.pixel)
    for table in (center_column, edge_center, column_center):
        table.flags.writeable = False
    return CenterGrid(
        y.pixels,
        x.pixels,
        y.cells,
        x.cells,
        int(x.mirrored),
        center_column,
        edge_center,
        column_center,
    )
