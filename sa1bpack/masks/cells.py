"""Cells of masks on a grid: packed bits to bool and back, taken under a map, and their depth.

The depth of a cell is its distance from the nearest cell outside its mask.

One bit per cell, row by row, lowest bit first: cell (i, j) is bit ``j % 8`` of byte ``(i, j // 8)``
(numpy's ``bitorder="little"``), so that a device unpacks a byte with shifts of 0 to 7.

`fill_cells`, `take_cells` and `take_affine` put masks straight into the place where they belong,
and count their cells. Most rows of most masks are empty: a mask is cleared as a whole, and only
rows with a bit are unpacked, eight cells at a time through a table. What lies beyond the image,
`keep`, stays False.
"""

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.kernels import memcpy, njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import frozen

FRACTION = 32  # fractional bits of a position under an affine map


@checks_options
def pack_bits(masks: np.ndarray) -> np.ndarray:
    """Pack bool (..., Sm, Sm) into uint8 (..., Sm, Sm // 8).

    Raises:
        OptionError: the dtype is not bool, or the last axis is not a multiple of 8.

    Examples:
        >>> mask = np.zeros((1, 8, 8), bool)
        >>> mask[0, 0, :3] = True
        >>> sa1bpack.masks.pack_bits(mask)[0, 0]
        array([7], dtype=uint8)
    """
    if masks.dtype != np.bool_ or masks.ndim == 0 or masks.shape[-1] % 8:
        raise OptionError(
            "masks must be bool with a last axis that is a multiple of 8, "
            f"got {masks.dtype} {masks.shape}"
        )
    return np.packbits(masks, axis=-1, bitorder="little")


@checks_options
def unpack_bits(bits: np.ndarray, width: int | None = None) -> np.ndarray:
    """Unpack uint8 (..., h, ceil(w / 8)) into bool (..., h, w).

    `width` is w, the cells per row; by default all bits of the last axis are cells.

    Raises:
        OptionError: the dtype is not uint8, there is no axis, or rows do not have ceil(width / 8)
            bytes.

    Examples:
        >>> sa1bpack.masks.unpack_bits(np.array([[5]], np.uint8), width=4)
        array([[ True, False,  True, False]])
    """
    if bits.dtype != np.uint8 or bits.ndim == 0:
        raise OptionError(f"bits must be a uint8 array, got {bits.dtype} {bits.shape}")
    if width is not None and bits.shape[-1] != -(-width // 8):
        raise OptionError(f"rows of {bits.shape[-1]} bytes do not match width={width} cells")
    return np.unpackbits(bits, axis=-1, count=width, bitorder="little").view(np.bool_)


# ------------------------------------------------------------------------------ into their places

# uint64 (256,): eight cells of a byte, the lowest bit first (little-endian: byte j is cell j).
_CELLS = frozen(unpack_bits(np.arange(256, dtype=np.uint8)[:, None]).view("<u8")[:, 0])
_ONES = np.uint64(0x0101010101010101)
_TOP = np.uint64(56)


@njit
def _unpack_row(
    line: np.ndarray, columns: int, words: np.ndarray, cells: np.ndarray, out: np.ndarray
) -> np.int64:
    """Unpack the first `columns` cells of a row of bits into `out`.

    Args:
        line: uint8 (b,), the row of bits.
        words, cells: scratch for one row, uint64 and the same memory as uint8.

    Returns:
        Number of cells that are set.
    """
    count = np.uint64(0)
    whole = columns >> 3
    for b in range(whole):
        word = _CELLS[line[b]]
        words[b] = word
        count += (word * _ONES) >> _TOP
    if columns & 7:
        word = _CELLS[line[whole] & np.uint8((1 << (columns & 7)) - 1)]
        words[whole] = word
        count += (word * _ONES) >> _TOP
    # Not out[:columns] = cells[:columns]: what numba checks for that takes seconds to compile.
    memcpy(out.ctypes.data, cells.ctypes.data, columns)
    return np.int64(count)


@njit
def _is_empty(line: np.ndarray) -> bool:
    bits = np.uint8(0)
    for b in range(len(line)):
        bits |= line[b]
    return bool(bits == 0)


@njit
def fill_cells(
    bits: np.ndarray,
    places: np.ndarray,
    keep: tuple[int, int],
    out: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Unpack masks into some rows of a larger array.

    Args:
        bits: uint8 (n, h, ceil(w / 8)), C-contiguous, lowest bit first.
        places: int64 (n,), row of `out` for each mask, 0 to len(out) - 1.
        keep: rows and columns, 0 to h and 0 to w: cells beyond them become 0.
        out: uint8 (k, h, w), C-contiguous; the masks at `places` are overwritten completely.
        counts: int64 (k,), out: the number of cells of each mask, at its place.
    """
    words = np.empty(bits.shape[2], np.uint64)
    cells = words.view(np.uint8)
    for m in range(len(places)):
        mask = out[places[m]]
        mask[:] = 0
        count = np.int64(0)
        for i in range(keep[0]):
            if not _is_empty(bits[m, i]):
                count += _unpack_row(bits[m, i], keep[1], words, cells, mask[i])
        counts[places[m]] = count


@njit
def take_cells(
    masks: np.ndarray,
    packed: bool,
    places: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    keep: tuple[int, int],
    out: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Put selected rows and columns of masks into some rows of a larger array, as `fill_cells`.

    Args:
        masks: uint8 (n, s, t), 0 or 1, or if `packed` (n, s, t / 8), lowest bit first.
        places, keep, out, counts: see `fill_cells`.
        rows: int64 (h,), 0 to s - 1, the row of the grid for each row of the output.
        columns: int64 (w,), 0 to t - 1.
    """
    for m in range(len(places)):
        mask = out[places[m]]
        mask[:] = 0
        count = np.int64(0)
        before = np.int64(-1)  # the row of the grid that was taken last
        in_row = np.int64(0)  # cells in it
        for i in range(keep[0]):
            if rows[i] == before:
                if in_row:
                    memcpy(mask[i].ctypes.data, mask[i - 1].ctypes.data, mask.shape[1])
            else:
                before = rows[i]
                in_row = np.int64(0)
                line = masks[m, before]
                cells = mask[i]
                if not _is_empty(line):
                    for j in range(keep[1]):
                        x = columns[j]
                        cell = (line[x >> 3] >> (x & 7)) & 1 if packed else np.int64(line[x])
                        cells[j] = cell
                        in_row += cell
            count += in_row
        counts[places[m]] = count


@njit
def take_affine(
    masks: np.ndarray,
    packed: bool,
    places: np.ndarray,
    steps: np.ndarray,
    visible: np.ndarray,
    out: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Put cells of masks under an affine map into some rows of a larger array.

    Args:
        masks, packed: see `take_cells`, with s = t.
        places, out, counts: see `fill_cells`.
        steps: int64 (2, 3): cell (i, j) of the output is the cell of the grid at x and y, which are
            [..., 0] j + [..., 1] i + [..., 2] in units of 2**-32 cells; the nearest one if that is
            outside.
        visible: bool (h, w): cells of the output that are not visible are 0.
    """
    for m in range(len(places)):
        mask = out[places[m]]
        grid = masks[m]
        count = np.int64(0)
        side = len(grid)
        for i in range(mask.shape[0]):
            x_row = steps[0, 1] * i + steps[0, 2]
            y_row = steps[1, 1] * i + steps[1, 2]
            for j in range(mask.shape[1]):
                cell = np.int64(0)
                if visible[i, j]:
                    x = min(max((steps[0, 0] * j + x_row) >> FRACTION, 0), side - 1)
                    y = min(max((steps[1, 0] * j + y_row) >> FRACTION, 0), side - 1)
                    cell = (grid[y, x >> 3] >> (x & 7)) & 1 if packed else np.int64(grid[y, x])
                mask[i, j] = cell
                count += cell
        counts[places[m]] = count


# --------------------------------------------------------------------------------------- distances


def squared_distances(masks: np.ndarray) -> np.ndarray:
    """Squared distance of each cell from the nearest cell outside its mask, exactly.

    Along the columns by two scans, then along the rows by the lower envelope of parabolas
    (Felzenszwalb and Huttenlocher, "Distance Transforms of Sampled Functions", 2012).

    Args:
        masks: bool (T, h, w), sides of at most 16,384; beyond the border all is outside.

    Returns:
        int32 (T, h, w), in cells; 0 outside the mask.

    Examples:
        >>> squared_distances(np.ones((1, 3, 3), np.bool_))[0].tolist()
        [[1, 1, 1], [1, 4, 1], [1, 1, 1]]
    """
    squares = np.empty(masks.shape, np.int32)
    _squared_distances(np.ascontiguousarray(masks).view(np.uint8), squares)
    return squares


@njit(error_model="numpy")
def _squared_distances(masks: np.ndarray, squares: np.ndarray) -> None:
    count, height, width = masks.shape
    column = np.empty(width + 2, np.int64)  # with a cell outside at either end
    vertex = np.empty(width + 2, np.int64)
    start = np.empty(width + 3, np.float64)  # from where on a vertex is the nearest
    for m in range(count):
        for x in range(width):
            steps = 0
            for y in range(height):
                steps += 1
                if not masks[m, y, x]:
                    steps = 0
                squares[m, y, x] = steps
            steps = 0
            for y in range(height - 1, -1, -1):
                steps += 1
                if not masks[m, y, x]:
                    steps = 0
                squares[m, y, x] = min(squares[m, y, x], steps)
        for y in range(height):
            column[0] = column[width + 1] = 0
            for x in range(width):
                column[x + 1] = np.int64(squares[m, y, x]) ** 2
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
                squares[m, y, x - 1] = (x - p) * (x - p) + column[p]
