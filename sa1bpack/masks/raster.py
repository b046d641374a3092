"""Run ends to packed bits on any upright grid, without an intermediate full-size mask.

Geometry of the grid that a pack stores. Cell (i, j) of an Sm x Sm grid covers the source rectangle
[i·ky, (i + 1)·ky) x [j·kx, (j + 1)·kx), with ky = kx = max(H, W) / Sm for "pad" and "native",
ky = H / Sm, kx = W / Sm for "squash", and ky = kx = max(H, W, S) / Sm for "scale_down", whose
images of up to S pixels per side are not enlarged to their canvas. Outside the source is
background.

- "center" takes the source pixel under the cell's centre, y = floor((i + 1/2)·ky).
- "area" sets a cell if at least half of it is covered: covered·2 >= Dy·Dx.

Everything is computed exactly, in whole numbers only. Along one axis, the unit is chosen such that
source pixels, cells and the start of the grid are whole numbers of units. With P units per source
pixel, D units per cell and a grid that starts at O, source pixel x covers [x·P, (x + 1)·P) and cell
j covers [O + j·D, O + (j + 1)·D). A mirrored axis numbers its cells from the other end. A pack's
grid has P = Sm, and for D the numerator of ky or kx.

Bits are packed row by row, lowest bit first, see `sa1bpack.masks.cells`. The same kernels draw
grids that start elsewhere, are mirrored or have other sizes: `sa1bpack.masks.window`. A device uses
the same units (`sa1bpack.transforms.masks.cells`), so they cannot differ.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from sa1bpack.arguments import choice, whole_number
from sa1bpack.errors import MaskError, OptionError
from sa1bpack.kernels import njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import MAX_RUN_END, MAX_SIDE, check_image_runs, check_out, frozen
from sa1bpack.masks.select import MAX_MASK_SIZE, SAMPLINGS


class Axis(NamedTuple):
    """One axis of a grid, in the units described in the module.

    Attributes:
        pixels: length of the source image in source pixels.
        cells: number of cells.
        pixel: P, 1 to 2**22.
        cell: D, 1 to 2**31 - 1.
        start: O, absolute value below 2**43; for the lower end, mirrored or not.
        mirrored: cell 0 is at the higher end.
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
    """An axis in the largest possible unit: small numbers need narrower sums."""
    unit = gcd(pixel, cell, start)
    return Axis(pixels, cells, pixel // unit, cell // unit, start // unit, mirrored)


def check_image(height: int, width: int) -> tuple[int, int]:
    """Check the size of an image, and return it as ints.

    Raises:
        MaskError: an image of this size cannot have masks.
        OptionError: a side is not a whole number of at least 0.
    """
    height = whole_number("height", height, 0)
    width = whole_number("width", width, 0)
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_RUN_END):
        raise MaskError(
            f"masks of {height}x{width} pixels cannot be used; the limits are "
            f"{MAX_SIDE} per side and {MAX_RUN_END} pixels"
        )
    return height, width


class AreaGrid(NamedTuple):
    """Tables for sampling by area; they describe the axes before mirroring.

    "Edge" y lies above source row y, 0 to H. Edges outside the grid are moved to its end. Mirrored
    cell columns are numbered so that the last one ends a byte.

    Attributes:
        y, x: the axes; cell rows and columns.
        magic, shift: position // H is (position * magic) >> shift for every int32 position.
        edge_row: int32 (H + 1,), the cell row that contains edge y (that at the end: their number).
        edge_below: int32 (H + 1,), how much of that cell row is below the edge, 1 to D.
        column_cell: int32 (W,), the first cell column that source column x overlaps.
        column_share: int32 (W,), how much of source column x that is.
        column_rest: int32 (W,), how much of source column x the following cell columns overlap.
        block_begin: int64 (blocks + 1,), the first source column that overlaps cell column 8·b.
        block_end: int64 (blocks,), the first source column right of cell column 8·b + 7.
    """

    y: Axis
    x: Axis
    magic: int
    shift: int
    edge_row: np.ndarray
    edge_below: np.ndarray
    column_cell: np.ndarray
    column_share: np.ndarray
    column_rest: np.ndarray
    block_begin: np.ndarray
    block_end: np.ndarray


class CenterGrid(NamedTuple):
    """Tables for sampling at the cells' centres.

    Attributes:
        y, x: the axes; mirrored cell column j is written as the j-th from the right.
        center_column: int64 (columns,), the source column under the centre of cell column j, below
            0 or at least W outside the source.
        edge_center: int32 (H + 1,), the position of edge y among the cell rows' centres.
        column_center: int32 (W,), the number of cell columns whose centre is left of column x.
    """

    y: Axis
    x: Axis
    center_column: np.ndarray
    edge_center: np.ndarray
    column_center: np.ndarray


@lru_cache(maxsize=64)  # an entry is about 50 kB
def area_grid(y: Axis, x: Axis) -> AreaGrid:
    """The tables for sampling by area."""
    return _area_grid(y, x)


@njit
def _area_grid(y: Axis, x: Axis) -> AreaGrid:
    """`area_grid`, compiled: images of a data set have hundreds of sizes."""
    # Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, theorem
    # 4.2: exact for 31-bit numerators, and the product stays below 2**63.
    shift = 31
    while (y.pixels - 1) >> (shift - 31):
        shift += 1
    magic = -(-(1 << shift) // y.pixels)
    edge_row = np.empty(y.pixels + 1, np.int32)
    edge_below = np.empty(y.pixels + 1, np.int32)
    for edge in range(y.pixels + 1):
        line = _pixel_edge(y, edge)
        edge_row[edge] = line // y.cell
        edge_below[edge] = (line // y.cell + 1) * y.cell - line
    first = 0  # number of the leftmost cell column
    if x.mirrored:
        first = -x.cells % 8
    column_cell = np.empty(x.pixels, np.int32)
    column_share = np.empty(x.pixels, np.int32)
    column_rest = np.empty(x.pixels, np.int32)
    for pixel in range(x.pixels):
        left = _pixel_edge(x, pixel)
        right = _pixel_edge(x, pixel + 1)
        column = left // x.cell
        share = min((column + 1) * x.cell, right) - left
        column_cell[pixel] = first + column
        column_share[pixel] = share
        column_rest[pixel] = right - left - share
    blocks = (x.cells + 7) // 8
    block_begin = np.empty(blocks + 1, np.int64)
    block_end = np.empty(blocks, np.int64)
    for block in range(blocks + 1):
        bound = min(max(8 * block - first, 0), x.cells) * x.cell + x.start
        block_begin[block] = min(max(bound // x.pixel, 0), x.pixels)
        if block:
            block_end[block - 1] = min(max(-(-bound // x.pixel), 0), x.pixels)
    return AreaGrid(
        y,
        x,
        magic,
        shift,
        edge_row,
        edge_below,
        column_cell,
        column_share,
        column_rest,
        block_begin,
        block_end,
    )


@njit
def _pixel_edge(axis: Axis, pixel: int) -> int:
    """The upper or left edge of a source pixel from the grid's start, moved to the grid's ends."""
    return min(max(pixel * axis.pixel - axis.start, 0), axis.cells * axis.cell)


def _cells_before(axis: Axis) -> np.ndarray:
    """int64 (pixels + 1,): how many cells have their centre before each edge of a source pixel."""
    edges = np.arange(axis.pixels + 1) * axis.pixel - axis.start
    return np.clip(-((axis.cell - 2 * edges) // (2 * axis.cell)), 0, axis.cells)


@lru_cache(maxsize=64)
def center_grid(y: Axis, x: Axis) -> CenterGrid:
    """The tables for sampling at the cells' centres."""
    rows = _cells_before(y)
    if y.mirrored:
        rows = y.cells - rows
    centers = 2 * x.start + (2 * np.arange(x.cells) + 1) * x.cell
    return CenterGrid(
        y=y,
        x=x,
        center_column=frozen(centers // (2 * x.pixel), np.int64),
        edge_center=frozen(rows, np.int32),
        column_center=frozen(_cells_before(x)[:-1], np.int32),
    )


FITS = ("pad", "native", "squash", "scale_down")
MAX_CANVAS = 16384  # pixels per side


@njit
def _rasterize_center(
    run_ends: np.ndarray, run_offset: np.ndarray, grid: CenterGrid, out: np.ndarray
) -> None:
    """Write the bits of all masks, sampled at the cells' centres.

    Invariant: while the runs are walked, a set bit of `bits` marks a row where its column changes
    between background and foreground; a running XOR down the rows turns these into the mask.
    """
    height = np.int64(grid.y.pixels)
    rows = np.int64(grid.y.cells)
    for m in range(out.shape[0]):
        bits = out[m]
        bits[:] = 0
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        if len(ends) < 2 or ends[0] == ends[-1]:
            continue
        run = 1  # the end of the first foreground run that reaches the current column
        first_row = rows
        last_row = np.int64(0)
        for j in range(grid.column_center[ends[0] // height], grid.x.cells):
            top = grid.center_column[j] * height
            while run < len(ends) and ends[run] <= top:
                run += 2
            if run >= len(ends) or grid.center_column[j] >= grid.x.pixels:
                break
            column = j
            if grid.x.mirrored:
                column = grid.x.cells - 1 - j
            byte = column >> 3
            bit = np.uint8(1 << (column & 7))
            for r in range(run, len(ends), 2):
                if ends[r - 1] >= top + height:
                    break
                first = np.int64(grid.edge_center[max(ends[r - 1] - top, 0)])
                last = np.int64(grid.edge_center[min(ends[r] - top, height)])
                if first == last:
                    continue
                # Mirrored rows count upwards.
                begin = min(first, last)
                end = max(first, last)
                bits[begin, byte] ^= bit
                if end < rows:
                    bits[end, byte] ^= bit
                first_row = min(first_row, begin)
                last_row = max(last_row, end)
        for i in range(first_row + 1, min(last_row + 1, rows)):
            for b in range(bits.shape[1]):
                bits[i, b] ^= bits[i - 1, b]


@njit
def _add_segment(
    acc: np.ndarray,
    lane: np.uint64,
    weight: np.int64,
    cell_height: int,
    top_row: np.uint64,
    top_below: np.int32,
    end_row: np.uint64,
    end_below: np.int32,
) -> None:
    """Add a vertical stretch of foreground, `weight` wide, to the differences of a cell column.

    An edge with `below` of its cell row below it changes the covered length by `below` in that row
    and by D in every following row. (Unsigned, so that numba does not test for negative indices.)
    """
    acc[top_row, lane] += weight * top_below
    acc[top_row + np.uint64(1), lane] += weight * (cell_height - top_below)
    acc[end_row, lane] -= weight * end_below
    acc[end_row + np.uint64(1), lane] -= weight * (cell_height - end_below)


@njit
def _add_run(
    acc: np.ndarray, grid: AreaGrid, block: int, begin: np.int64, end: np.int64
) -> tuple[np.int64, np.int64]:
    """Add the part of the foreground run begin..end (pixels) that overlaps a block of cell columns.

    Returns the first and last row of `acc` that contain an edge of the run.
    """
    height = np.int64(grid.y.pixels)
    x = (begin * grid.magic) >> grid.shift
    y = begin - x * height
    last = end - x * height
    first_row = np.int64(grid.edge_row[np.uint64(y)])
    last_row = np.int64(0)
    while True:  # for each source column; most runs lie in one
        y_end = min(last, height)
        top_row = np.int64(grid.edge_row[np.uint64(y)])
        top_below = grid.edge_below[np.uint64(y)]
        end_row = np.int64(grid.edge_row[np.uint64(y_end)])
        end_below = grid.edge_below[np.uint64(y_end)]
        first_row = min(first_row, top_row)
        last_row = max(last_row, end_row)
        lane = grid.column_cell[np.uint64(x)] - 8 * block
        weight = np.int64(grid.column_share[np.uint64(x)])
        rest = np.int64(grid.column_rest[np.uint64(x)])
        while True:  # for each cell column that it overlaps: one, rarely two
            if lane >= 0:
                _add_segment(
                    acc,
                    np.uint64(lane),
                    weight,
                    grid.y.cell,
                    np.uint64(top_row),
                    top_below,
                    np.uint64(end_row),
                    end_below,
                )
            lane += 1
            if rest == 0 or lane == 8:
                break
            weight = min(rest, np.int64(grid.x.cell))
            rest -= weight
        last -= height
        if last <= 0:
            return first_row, last_row
        y = np.int64(0)
        x += 1


@njit
def _mirror_byte(byte: np.int64) -> np.int64:
    """The byte with its bits reversed: neighbours are swapped, then pairs, then halves."""
    byte = (byte & 0x55) << 1 | (byte >> 1) & 0x55
    byte = (byte & 0x33) << 2 | (byte >> 2) & 0x33
    return (byte & 0x0F) << 4 | byte >> 4


@njit
def _flush_block(
    acc: np.ndarray,
    first_row: np.int64,
    last_row: np.int64,
    least: int,
    grid: AreaGrid,
    bits: np.ndarray,
    block: int,
) -> None:
    """Sum the differences down the rows, write one byte per row, and leave `acc` zero.

    Nothing is covered below the last edge, so the sums there are zero without clearing.
    """
    column = block
    if grid.x.mirrored:
        column = bits.shape[1] - 1 - block
    for i in range(first_row, min(last_row + 1, np.int64(grid.y.cells))):
        byte = np.int64(0)
        for lane in range(8):
            acc[i + 1, lane] += acc[i, lane]
        for lane in range(8):
            byte |= (acc[i, lane] >= least) << lane
        for lane in range(8):
            acc[i, lane] = 0
        if grid.x.mirrored:
            byte = _mirror_byte(byte)
        row = i
        if grid.y.mirrored:
            row = grid.y.cells - 1 - i
        bits[row, column] = byte


@njit
def _rasterize_area(
    run_ends: np.ndarray, run_offset: np.ndarray, grid: AreaGrid, acc: np.ndarray, out: np.ndarray
) -> None:
    """Write the bits of all masks by the covered area of each cell.

    Cell columns are processed in blocks of 8, one byte of `out`. Invariant: for cell column
    8·block + lane, `acc[i, lane]` is how much more of cell row i than of row i - 1 is covered by
    the foreground walked so far (so the cost of a run does not depend on its length); it is zero
    between blocks. A source column that overlaps two blocks is walked for each.
    """
    height = np.int64(grid.y.pixels)
    least = (grid.y.cell * grid.x.cell + 1) // 2
    for m in range(out.shape[0]):
        bits = out[m]
        bits[:] = 0
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        run = 1  # the end of the first foreground run that reaches the block
        block = 0
        while run < len(ends):
            if ends[run] == ends[run - 1]:
                run += 2
                continue
            block = max(block, grid.column_cell[ends[run - 1] // height] >> 3)
            if block == bits.shape[1]:
                break
            left = grid.block_begin[block] * height
            right = grid.block_end[block] * height
            next_left = grid.block_begin[block + 1] * height
            first_row = np.int64(grid.y.cells)
            last_row = np.int64(0)
            r = run
            while r < len(ends) and ends[r - 1] < right:
                begin = max(np.int64(ends[r - 1]), left)
                end = min(np.int64(ends[r]), right)
                if ends[r] <= next_left:
                    run = r + 2
                r += 2
                if begin < end:
                    top, bottom = _add_run(acc, grid, block, begin, end)
                    first_row = min(first_row, top)
                    last_row = max(last_row, bottom)
            _flush_block(acc, first_row, last_row, least, grid, bits, block)
            block += 1


def draw_grid(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    y: Axis,
    x: Axis,
    sampling: str,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the masks of one image on the grid of two axes; see `rasterize`. Arguments are checked.

    Returns:
        uint8 (n, rows, ceil(columns / 8)): `out`, or a new array. Bits past the last column are 0.
    """
    run_ends = frozen(run_ends)
    run_offset = frozen(run_offset)
    if out is None:
        out = np.empty((len(run_offset) - 1, y.cells, -(-x.cells // 8)), np.uint8)
    if sampling == "center":
        _rasterize_center(run_ends, run_offset, center_grid(y, x), out)
    else:
        acc = np.zeros((y.cells + 2, 8), np.int64)
        _rasterize_area(run_ends, run_offset, area_grid(y, x), acc, out)
    return out


@njit
def draw_area(
    run_ends: np.ndarray, run_offset: np.ndarray, sides: np.ndarray, out: np.ndarray
) -> None:
    """Draw the masks of one image, sampled by area, on a grid that begins with the image.

    Args:
        run_ends, run_offset: of its masks, see `rasterize`.
        sides: int64 (2, 4), the first four numbers of the axes y and x.
        out: uint8 (n, rows, ceil(columns / 8)), overwritten.
    """
    y = Axis(sides[0, 0], sides[0, 1], sides[0, 2], sides[0, 3], 0, False)
    x = Axis(sides[1, 0], sides[1, 1], sides[1, 2], sides[1, 3], 0, False)
    acc = np.zeros((y.cells + 2, 8), np.int64)
    _rasterize_area(run_ends, run_offset, _area_grid(y, x), acc, out)


@njit
def _rasterize_images(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    masks_of: np.ndarray,
    sides: np.ndarray,
    out: np.ndarray,
) -> None:
    """`draw_area` of the masks of several images, see `draw_images`; `sides_of` makes `sides`."""
    for image in range(len(masks_of) - 1):
        first = masks_of[image]
        last = masks_of[image + 1]
        if first < last:
            runs_of = run_offset[first : last + 1]
            draw_area(run_ends, runs_of, sides[image], out[first:last])


def sides_of(axes: Sequence[tuple[Axis, Axis]]) -> np.ndarray:
    """int64 (k, 2, 4): of the axes y and x of images, the first four numbers."""
    return np.array([(y[:4], x[:4]) for y, x in axes], np.int64).reshape(-1, 2, 4)


def draw_images(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    masks_of: np.ndarray,
    axes: Sequence[tuple[Axis, Axis]],
    sampling: str,
    out: np.ndarray,
) -> None:
    """Draw the masks of several images on the grids of their packs. Arguments are checked.

    Args:
        run_ends, run_offset: of the masks of all images, see `rasterize`.
        masks_of: int64 (k + 1,), image i has the masks ``masks_of[i]`` to ``masks_of[i + 1] - 1``.
        axes: y and x of each image, as `fit_axes` returns them.
        sampling: "area" or "center".
        out: uint8 (n, rows, ceil(columns / 8)), overwritten.
    """
    run_ends = frozen(run_ends)
    run_offset = frozen(run_offset)
    if sampling == "area":
        _rasterize_images(run_ends, run_offset, masks_of, sides_of(axes), out)
        return
    for image, (y, x) in enumerate(axes):
        masks = slice(masks_of[image], masks_of[image + 1])
        runs_of = run_offset[masks.start : masks.stop + 1]
        draw_grid(run_ends, runs_of, y, x, sampling, out[masks])


@lru_cache(maxsize=64)
def covered_pixels(height: int, width: int, fit: str, image_size: int) -> tuple[int, int]:
    """The source pixels, down and across, that the grid of a pack and its canvas cover.

    Args:
        height, width: size of the source image.
        fit: one of FITS.
        image_size: S, which "scale_down" alone needs.
    """
    if fit == "squash":
        return height, width
    longer = max(height, width)
    if fit == "scale_down":
        longer = max(longer, image_size)
    return longer, longer


@lru_cache(maxsize=1024)
def fit_axes(
    height: int, width: int, mask_size: int, fit: str, image_size: int
) -> tuple[Axis, Axis]:
    """The axes, y and x, of the grid that a pack stores; see the module.

    Arguments are checked.
    """
    down, across = covered_pixels(height, width, fit, image_size)
    y = make_axis(height, mask_size, mask_size, down)
    return y, make_axis(width, mask_size, mask_size, across)


@checks_options
def rasterize(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    width: int,
    mask_size: int,
    fit: str = "pad",
    sampling: str = "area",
    out: np.ndarray | None = None,
    image_size: int | None = None,
) -> np.ndarray:
    """Draw the masks of one image on the target grid, as packed bits.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        height, width: size of the source image in pixels, 1 to 65,535, together below 2**31 pixels.
        mask_size: Sm, a multiple of 8 from 8 to 4096.
        fit: "pad", "native" (the same grid as "pad"), "squash" or "scale_down", see the module.
        sampling: "area" or "center", see the module.
        out: uint8 (n, Sm, Sm // 8), C-contiguous, to write into; it is overwritten completely. A
            reused buffer avoids the page faults of a new array, which cost as much as the drawing.
        image_size: S, side of the canvas in pixels, 1 to 16,384, which "scale_down" needs.

    Returns:
        uint8 (n, Sm, Sm // 8), row by row, lowest bit first: `out`, or a new array.

    Raises:
        MaskError: the image is too large, or a mask's run ends decrease or do not end with its
            pixels.
        OptionError: an option, a dtype or a shape is wrong.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> bits = sa1bpack.masks.rasterize(run_ends, run_offset, height=3, width=4, mask_size=8)
        >>> sa1bpack.masks.unpack_bits(bits).astype(int)[0]
        array([[0, 0, 1, 1, 0, 0, 0, 0],
               [0, 0, 1, 1, 0, 0, 0, 0],
               [0, 0, 1, 1, 0, 0, 0, 0],
               [0, 0, 1, 1, 0, 0, 0, 0],
               [1, 1, 0, 0, 0, 0, 0, 0],
               [1, 1, 0, 0, 0, 0, 0, 0],
               [0, 0, 0, 0, 0, 0, 0, 0],
               [0, 0, 0, 0, 0, 0, 0, 0]])
    """
    if whole_number("mask_size", mask_size, 8, MAX_MASK_SIZE) % 8:
        raise OptionError(
            f"mask_size is {mask_size}: choose a multiple of 8 from 8 to {MAX_MASK_SIZE}"
        )
    choice("fit", fit, FITS)
    if fit == "scale_down" and image_size is None:
        raise OptionError('fit="scale_down" needs image_size, the side of the canvas in pixels')
    if image_size is not None:
        whole_number("image_size", image_size, 1, MAX_CANVAS)
    choice("sampling", sampling, SAMPLINGS)
    height, width = check_image(height, width)
    runs = check_image_runs(run_ends, run_offset, height * width)
    check_out(out, len(run_offset) - 1, mask_size, mask_size)
    axes = fit_axes(height, width, mask_size, fit, image_size or 0)
    return draw_grid(*runs, *axes, sampling, out)
