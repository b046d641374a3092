"""Masks drawn from their runs: a program draws a strip of columns of one mask.

The rules are those of `sa1bpack.masks.window`, in the units of `sa1bpack.masks.grid`; the method
for the area rule is that of `sa1bpack.transforms.masks.upright`, without its grids of differences.
A program finds the run ends of each of its cell columns by bisection, and then goes down its rows
in blocks: it walks the run ends, and adds for every cell what lies below and to the right of them.
Most strips of most masks have no run ends, and are only cleared.
"""

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 64, 32  # cells of a block

# Of a sample: source height and width; per axis cell, start and mirrored, see `masks.grid.Axis`;
# the least covered area; rows and columns that are kept.
FIELDS = 11


@triton.jit
def _ends_before(ends, count, left, right, half):
    """How many of `count` ascending ends are below each of two positions per column, int64.

    half  a power of two above count / 2
    """
    first, last = left * 0, right * 0
    while half > 0:
        at = first + half
        end = tl.load(ends + at - 1, mask=at <= count, other=0)
        first = tl.where((at <= count) & (end < left), at, first)
        at_last = last + half
        end_last = tl.load(ends + at_last - 1, mask=at_last <= count, other=0)
        last = tl.where((at_last <= count) & (end_last < right), at_last, last)
        half = half // 2
    return first, last


@triton.jit
def _clamp(value, low, high):
    return tl.minimum(tl.maximum(value, low), high)


@triton.jit
def _below(row, below, cell, i):
    """The part of cell row i below an edge that lies in `row`, with `below` of that below it."""
    return tl.where(i < row, 0, tl.where(i == row, below, cell))


@triton.jit
def _row_of(edge, pixel, start, cell, cells):
    """The cell row of source edges, int32, and how much of it lies below them, int64."""
    position = _clamp(edge * pixel - start, 0, cells * cell)
    # The quotient is at most 4096: off by one at most, which the rest tells.
    row = (position.to(tl.float32) / cell.to(tl.float32)).to(tl.int64)
    rest = position - row * cell
    row += (rest >= cell).to(tl.int64) - (rest < 0).to(tl.int64)
    return row, cell - (position - row * cell)


@triton.jit
def _area(
    ends,
    first,
    last,
    most,
    i,
    right,
    height,
    cells_y,
    pixel_y,
    start_y,
    cell_y,
    pixel_x,
    cell_x,
    least,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Whether at least `least` of cells is covered.

    first, last  int64, of the run ends that decide about each cell column; `most` of them at most
    i            int32: the cell rows
    right        int64: where each cell column ends
    height       int64, of the source
    others       of the axes, see `_draw`
    """
    # What the ends so far add to cells: `full` times their part that is inside the image, less
    # `cut` times their part below it.
    full = (first & 1) * cell_x
    cut = full * 0
    covered = tl.zeros((ROWS, COLUMNS), tl.int64)
    for k in range(most):
        index = first + k
        valid = index < last
        end = tl.load(ends + index, mask=valid, other=0).to(tl.int64)
        sign = tl.where(valid, 1 - 2 * (index & 1), 0)
        x = (end.to(tl.int32) // height.to(tl.int32)).to(tl.int64)
        edge = right - x * pixel_x
        rest = _clamp(edge - pixel_x, 0, cell_x)
        part = sign * (_clamp(edge, 0, cell_x) - rest)
        full += sign * rest
        cut += part
        edge_row, part_below = _row_of(end - x * height, pixel_y, start_y, cell_y, cells_y)
        edge_row, part_below = edge_row.to(tl.int32)[None, :], part_below.to(tl.int32)[None, :]
        inner = _below(edge_row, part_below, cell_y.to(tl.int32), i[:, None])
        covered += part.to(tl.int32)[None, :].to(tl.int64) * inner.to(tl.int64)
    row, below = _row_of(start_y * 0, pixel_y, start_y, cell_y, cells_y)
    top = _below(row, below, cell_y, i)
    row, below = _row_of(height, pixel_y, start_y, cell_y, cells_y)
    bottom = _below(row, below, cell_y, i)
    covered += full[None, :] * (top - bottom)[:, None] - cut[None, :] * bottom[:, None]
    return covered >= least


@triton.jit
def _center(
    ends,
    first,
    last,
    most,
    i,
    left,
    height,
    pixel_y,
    start_y,
    cell_y,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Whether the source pixel under the centre of cells is foreground.

    left    int64: the first position of the source column of each cell column
    others  see `_area`
    """
    center = 2 * start_y + (2 * i.to(tl.int64) + 1) * cell_y
    y = tl.maximum(center, 0) // (2 * pixel_y)
    inside = (center >= 0) & (y < height)
    y = y.to(tl.int32)
    found = tl.zeros((ROWS, COLUMNS), tl.int32) + (first & 1).to(tl.int32)[None, :]
    for k in range(most):
        index = first + k
        valid = index < last
        end = tl.load(ends + index, mask=valid, other=0).to(tl.int64)
        row = tl.where(valid, end - left, 2147483647).to(tl.int32)
        found ^= (row[None, :] <= y[:, None]).to(tl.int32)
    return (found > 0) & inside[:, None]


@triton.jit(do_not_specialize=["half", "height"])
def _draw(
    ends,
    offset,
    source,
    owner,
    frames,
    out,
    counts,
    half,
    height,
    width,
    UNIT: tl.constexpr,
    FIELDS: tl.constexpr,
    AREA: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    strips = tl.cdiv(width, COLUMNS)
    place = (tl.program_id(0) // strips).to(tl.int64)
    j = tl.program_id(0) % strips * COLUMNS + tl.arange(0, COLUMNS)

    mask = tl.load(source + place)
    frame = frames + tl.load(owner + place) * FIELDS
    begin = tl.load(offset + mask, mask=mask >= 0, other=0)
    # Without background after the last foreground: an even number of ends.
    count = (tl.load(offset + mask + 1, mask=mask >= 0, other=0) - begin) // 2 * 2
    ends += begin
    source_height, source_width = tl.load(frame), tl.load(frame + 1)
    cell_y, start_y, mirror_y = tl.load(frame + 2), tl.load(frame + 3), tl.load(frame + 4)
    cell_x, start_x, mirror_x = tl.load(frame + 5), tl.load(frame + 6), tl.load(frame + 7)
    least, rows, columns = tl.load(frame + 8), tl.load(frame + 9), tl.load(frame + 10)
    pixel_y, pixel_x = cell_y * 0 + height * UNIT, cell_x * 0 + width * UNIT

    # Cell columns before mirroring; the first and the last source column under each of them.
    column = tl.where(mirror_x > 0, width - 1 - j, j)
    begin_x = start_x + column * cell_x
    wanted = j < tl.minimum(columns, width)
    if AREA:
        left = tl.maximum(begin_x, 0) // pixel_x
        right = (tl.maximum(begin_x + cell_x, 0) + pixel_x - 1) // pixel_x
    else:
        center = 2 * begin_x + cell_x
        left = tl.maximum(center, 0) // (2 * pixel_x)
        right = left + 1
        wanted &= (center >= 0) & (left < source_width)
    left = tl.minimum(left, source_width) * source_height
    first, last = _ends_before(ends, count, left, right * source_height, half)
    last = tl.where(right < source_width, last, count)
    first, last = tl.where(j < width, first, 0), tl.where(j < width, last, 0)
    most = tl.maximum(tl.max(last - first, 0), 0).to(tl.int32)
    # Otherwise all is background.
    busy = (most > 0) | (tl.max(first & 1, 0) > 0)

    kind = out.dtype.element_ty
    numbers = tl.zeros((COLUMNS,), tl.int32)
    for top in range(0, height, ROWS):
        i = top + tl.arange(0, ROWS)
        if busy:
            row = tl.where(mirror_y > 0, height - 1 - i, i)
            if AREA:
                found = _area(
                    ends,
                    first,
                    last,
                    most,
                    row,
                    begin_x + cell_x,
                    source_height,
                    height,
                    pixel_y,
                    start_y,
                    cell_y,
                    pixel_x,
                    cell_x,
                    least,
                    ROWS,
                    COLUMNS,
                )
            else:
                found = _center(
                    ends,
                    first,
                    last,
                    most,
                    row,
                    left,
                    source_height,
                    pixel_y,
                    start_y,
                    cell_y,
                    ROWS,
                    COLUMNS,
                )
            on_grid = (i < height)[:, None] & (j < width)[None, :]
            cells = (found & (wanted[None, :] & (i < rows)[:, None]) & on_grid).to(tl.int32)
            numbers += tl.sum(cells, 0)
            written = cells.to(tl.float32).to(kind) if kind.is_floating() else cells.to(kind)
            target = out + place * height * width + i[:, None] * width + j[None, :]
            tl.store(target, written, mask=on_grid)
        else:
            on_grid = (i < height)[:, None] & (j < width)[None, :]
            target = out + place * height * width + i[:, None] * width + j[None, :]
            tl.store(target, tl.zeros((ROWS, COLUMNS), kind), mask=on_grid)
    if busy:
        tl.atomic_add(counts + place, tl.sum(numbers, 0))


def draw_runs(
    ends: torch.Tensor,
    offset: torch.Tensor,
    source: torch.Tensor,
    owner: torch.Tensor,
    frames: torch.Tensor,
    most_ends: int,
    unit: int,
    area: bool,
    out: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Draw masks.

    ends       int32 (R,), and
    offset     int64 (T + 1,): the runs of all masks, see `transforms.runs.RunBatch`
    source     int64 (n,): the mask, 0 to T - 1, that each mask of the output shows; -1 for none
    owner      int64 (n,): the sample of each
    frames     int64 (B, FIELDS), contiguous
    most_ends  the largest number of run ends of a mask
    unit       of the axes: a source pixel is `unit` times the cells of the output long
    area       the rule: by the covered area, otherwise by the centre
    out        (n, h, w), uint8 or floating-point, contiguous
    counts     int32 (n,), zeros; gets the cells of each mask
    """
    height, width = out.shape[1:]
    half = 1 << most_ends.bit_length() >> 1
    _draw[(len(out) * triton.cdiv(width, COLUMNS),)](
        ends,
        offset,
        source,
        owner,
        frames,
        out,
        counts,
        half,
        height,
        width,
        UNIT=unit,
        FIELDS=FIELDS,
        AREA=area,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        enable_fp_fusion=False,
    )
