"""Run ends to packed mask bits at the target grid, without a mask of full size in between.

Geometry. Cell (i, j) of an Sm x Sm grid covers the source rectangle
[i·ky, (i + 1)·ky) x [j·kx, (j + 1)·kx), with ky = kx = max(H, W) / Sm for "pad" and "native" and
ky = H / Sm, kx = W / Sm for "squash". What lies outside the source is background.

All of it is exact in integers: the coordinates of an axis are multiplied by Sm, so that a source
pixel is Sm long and a cell is D = max(H, W) long (or H or W for "squash"). The pixel y then covers
[y·Sm, (y + 1)·Sm), cell i covers [i·D, (i + 1)·D).

- "center" asks for the source pixel under the cell's centre, y = floor((i + 1/2)·ky).
- "area" sets a cell of which at least half is covered: covered·2 >= Dy·Dx.

Bits are packed rows first and the lowest bit first, see `sa1bpack.masks.bits`.
"""

from functools import lru_cache
from operator import index
from typing import NamedTuple

import numpy as np
from numba import njit

from sa1bpack.errors import MaskError, OptionError
from sa1bpack.masks._arrays import MAX_RUN_END, MAX_SIDE, check_offsets, check_runs, read_only

FITS = ("pad", "native", "squash")
SAMPLINGS = ("area", "center")
MAX_MASK_SIZE = 4096


class Grid(NamedTuple):
    """Where the pixels of an H x W source fall on the Sm x Sm cells; tables for the kernels.

    Lengths are in units of 1/Sm source pixel. "Edge" y lies above source row y, 0 to H.

    Attributes:
        cell_height, cell_width: D of each axis.
        magic, shift: position // H is (position * magic) >> shift for every int32 position.
        edge_row: int32 (H + 1,), the cell row that edge y lies in (Sm for an edge at the end).
        edge_below: int32 (H + 1,), how much of that cell row lies below the edge, 1 to D.
        column_cell: int32 (W,), the first cell column that source column x overlaps.
        column_part: int32 (W,), by how much, 1 to Sm.
        block_begin: int64 (Sm // 8 + 1,), the first source column that overlaps cell column 8·b.
        block_end: int64 (Sm // 8,), the first source column right of cell column 8·b + 7.
        center_column: int64 (Sm,), the source column under the centre of cell column j.
        edge_center: int32 (H + 1,), how many cell rows have their centre above edge y.
        column_center: int32 (W,), how many cell columns have their centre left of source column x.
    """

    height: int
    width: int
    mask_size: int
    cell_height: int
    cell_width: int
    magic: int
    shift: int
    edge_row: np.ndarray
    edge_below: np.ndarray
    column_cell: np.ndarray
    column_part: np.ndarray
    block_begin: np.ndarray
    block_end: np.ndarray
    center_column: np.ndarray
    edge_center: np.ndarray
    column_center: np.ndarray


@lru_cache(maxsize=64)  # most of SA-1B's images share a few sizes; an entry takes about 50 kB
def make_grid(height: int, width: int, mask_size: int, fit: str) -> Grid:
    """Return the tables for one image size and grid.

    Raises:
        OptionError: `mask_size` is not a multiple of 8 in 8..4096, or `fit` is unknown.
        MaskError: the image's size is outside what a mask can have.
    """
    if not 8 <= mask_size <= MAX_MASK_SIZE or mask_size % 8:
        raise OptionError(
            f"mask_size must be a multiple of 8 from 8 to {MAX_MASK_SIZE}, got {mask_size}"
        )
    if fit not in FITS:
        raise OptionError(f"fit must be one of {', '.join(FITS)}, got {fit!r}")
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE and height * width <= MAX_RUN_END):
        raise MaskError(
            f"masks of {height}x{width} pixels cannot be used; the limits are "
            f"{MAX_SIDE} a side and {MAX_RUN_END} pixels"
        )
    cell_height, cell_width = (height, width) if fit == "squash" else (max(height, width),) * 2
    # Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, theorem
    # 4.2: exact for 31-bit numerators, and the product stays below 2**63.
    shift = 31 + (height - 1).bit_length()
    magic = -(-(1 << shift) // height)
    edges = np.arange(height + 1) * mask_size
    columns = np.arange(width) * mask_size
    cells = np.arange(mask_size)
    blocks = np.arange(mask_size // 8 + 1) * 8
    column_cell = columns // cell_width
    center_row = (2 * cells + 1) * cell_height // (2 * mask_size)
    center_column = (2 * cells + 1) * cell_width // (2 * mask_size)
    column_part = np.minimum((column_cell + 1) * cell_width - columns, mask_size)
    tables = {
        "edge_row": (edges // cell_height).astype(np.int32),
        "edge_below": (cell_height - edges % cell_height).astype(np.int32),
        "column_cell": column_cell.astype(np.int32),
        "column_part": column_part.astype(np.int32),
        "block_begin": np.minimum(blocks * cell_width // mask_size, width),
        "block_end": np.minimum(-(-blocks[1:] * cell_width // mask_size), width),
        "center_column": center_column,
        "edge_center": np.searchsorted(center_row, np.arange(height + 1)).astype(np.int32),
        "column_center": np.searchsorted(center_column, np.arange(width)).astype(np.int32),
    }
    for table in tables.values():
        table.flags.writeable = False
    return Grid(height, width, mask_size, cell_height, cell_width, magic, shift, **tables)


@njit(nogil=True, cache=True)
def _fill_center(run_ends, run_offset, grid, out):
    """Write the bits of all masks, sampled at the cells' centres.

    Invariant: while the runs are walked, a set bit of `bits` marks a row where its column changes
    between background and foreground; the running XOR down the rows makes that the mask itself.
    """
    height = np.int64(grid.height)
    size = out.shape[1]
    for m in range(out.shape[0]):
        bits = out[m]
        bits[:] = 0
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        if len(ends) < 2 or ends[0] == ends[-1]:
            continue
        run = 1  # the end of the first foreground run that reaches the current column
        first_row, last_row = size, 0
        for j in range(grid.column_center[ends[0] // height], size):
            top = grid.center_column[j] * height
            while run < len(ends) and ends[run] <= top:
                run += 2
            if run >= len(ends) or grid.center_column[j] >= grid.width:
                break
            byte, bit = j >> 3, np.uint8(1 << (j & 7))
            for r in range(run, len(ends), 2):
                if ends[r - 1] >= top + height:
                    break
                begin = grid.edge_center[max(ends[r - 1] - top, 0)]
                end = grid.edge_center[min(ends[r] - top, height)]
                if begin == end:
                    continue
                bits[begin, byte] ^= bit
                if end < size:
                    bits[end, byte] ^= bit
                first_row = min(first_row, begin)
                last_row = max(last_row, end)
        for i in range(first_row + 1, min(last_row + 1, size)):
            for b in range(bits.shape[1]):
                bits[i, b] ^= bits[i - 1, b]


@njit(nogil=True, cache=True)
def _add_segment(acc, lane, weight, cell_height, top_row, top_below, end_row, end_below):
    """Add a vertical stretch of foreground, `weight` wide, to the differences of a cell column.

    An edge with `below` of its cell row below it changes the covered length by `below` in that row
    and by all of D in every row after it. (Unsigned, so that numba tests no index for negatives.)
    """
    lane, top_row, end_row = np.uint64(lane), np.uint64(top_row), np.uint64(end_row)
    acc[top_row, lane] += weight * top_below
    acc[top_row + np.uint64(1), lane] += weight * (cell_height - top_below)
    acc[end_row, lane] -= weight * end_below
    acc[end_row + np.uint64(1), lane] -= weight * (cell_height - end_below)


@njit(nogil=True, cache=True)
def _add_run(acc, grid, block, begin, end):
    """Add the foreground run begin..end, in pixels, as far as it overlaps a block of cell columns.

    Returns the first and the last row of `acc` where an edge of the run lies.
    """
    height = np.int64(grid.height)
    x = (begin * grid.magic) >> grid.shift
    y = begin - x * height
    last = end - x * height
    first_row, last_row = np.int64(grid.edge_row[np.uint64(y)]), np.int64(0)
    while True:  # one source column after the other, most runs lie in one
        y_end = min(last, height)
        top_row, top_below = np.int64(grid.edge_row[np.uint64(y)]), grid.edge_below[np.uint64(y)]
        end_row = np.int64(grid.edge_row[np.uint64(y_end)])
        end_below = grid.edge_below[np.uint64(y_end)]
        first_row, last_row = min(first_row, top_row), max(last_row, end_row)
        lane = grid.column_cell[np.uint64(x)] - 8 * block
        weight = np.int64(grid.column_part[np.uint64(x)])
        rest = grid.mask_size - weight
        while True:  # the cell columns that the source column overlaps: one, seldom two
            if lane >= 0:
                _add_segment(
                    acc, lane, weight, grid.cell_height, top_row, top_below, end_row, end_below
                )
            lane += 1
            if rest == 0 or lane == 8:
                break
            weight = min(rest, np.int64(grid.cell_width))
            rest -= weight
        last -= height
        if last <= 0:
            return first_row, last_row
        y = np.int64(0)
        x += 1


@njit(nogil=True, cache=True)
def _flush_block(acc, first_row, last_row, least, bits, block):
    """Sum the differences down the rows, write one byte a row, and leave `acc` zero.

    What lies below the last edge is not covered, so the sums there are zero without clearing.
    """
    size = bits.shape[0]
    for i in range(first_row, min(last_row + 1, size)):
        byte = 0
        for lane in range(8):
            acc[i + 1, lane] += acc[i, lane]
        for lane in range(8):
            byte |= (acc[i, lane] >= least) << lane
        for lane in range(8):
            acc[i, lane] = 0
        bits[i, block] = byte


@njit(nogil=True, cache=True)
def _fill_area(run_ends, run_offset, grid, acc, out):
    """Write the bits of all masks by the covered area of each cell.

    Cell columns are handled in blocks of 8, one byte of `out`. Invariant: `acc[i, lane]` holds, for
    cell column 8·block + lane, how much more of cell row i than of row i - 1 the foreground walked
    so far covers (so a run costs the same however long it is); it is zero between blocks. A source
    column that overlaps two blocks is walked for each.
    """
    height = np.int64(grid.height)
    least = (grid.cell_height * grid.cell_width + 1) // 2
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
            left, right = grid.block_begin[block] * height, grid.block_end[block] * height
            next_left = grid.block_begin[block + 1] * height
            first_row, last_row = grid.mask_size, 0
            r = run
            while r < len(ends) and ends[r - 1] < right:
                begin, end = max(np.int64(ends[r - 1]), left), min(np.int64(ends[r]), right)
                if ends[r] <= next_left:
                    run = r + 2
                r += 2
                if begin < end:
                    top, bottom = _add_run(acc, grid, block, begin, end)
                    first_row, last_row = min(first_row, top), max(last_row, bottom)
            _flush_block(acc, first_row, last_row, least, bits, block)
            block += 1


def rasterize(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    width: int,
    mask_size: int,
    fit: str = "pad",
    sampling: str = "area",
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Draw the masks of one image on the target grid, as packed bits.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        height, width: of the source image, 1 to 65,535, together below 2**31 pixels.
        mask_size: Sm, a multiple of 8 from 8 to 4096.
        fit: "pad", "native" (the same grid as "pad") or "squash", see the module.
        sampling: "area" or "center", see the module.
        out: uint8 (n, Sm, Sm // 8), C-contiguous, to write into; all of it is written. A buffer
            that is reused saves the page faults of a new array, which cost as much as the drawing.

    Returns:
        uint8 (n, Sm, Sm // 8), rows first, the lowest bit first: `out`, or a new array.

    Raises:
        MaskError: the image is too large, or a mask's run ends fall or do not end with its pixels.
        OptionError: an option, a dtype or a shape is wrong.
    """
    height, width, mask_size = index(height), index(width), index(mask_size)
    grid = make_grid(height, width, mask_size, fit)
    if sampling not in SAMPLINGS:
        raise OptionError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}")
    run_ends = read_only("run_ends", run_ends, np.int32)
    run_offset = read_only("run_offset", run_offset, np.int64)
    check_offsets("run_offset", run_offset, len(run_ends))
    check_runs(run_ends, run_offset, height * width)
    shape = (len(run_offset) - 1, mask_size, mask_size // 8)
    if out is None:
        out = np.empty(shape, np.uint8)
    elif out.dtype != np.uint8 or out.shape != shape or not out.flags.carray:
        raise OptionError(
            f"out must be a writable C-contiguous array of uint8 {shape}, "
            f"got {out.dtype} {out.shape}"
        )
    if sampling == "center":
        _fill_center(run_ends, run_offset, grid, out)
    else:
        # A covered area is at most the cell's; sums on the way to it may wrap round.
        small = grid.cell_height * grid.cell_width < 2**31
        acc = np.zeros((mask_size + 2, 8), np.int32 if small else np.int64)
        _fill_area(run_ends, run_offset, grid, acc, out)
    return out
