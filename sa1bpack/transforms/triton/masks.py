"""Masks: drawn from their runs, or taken from a grid of bits or bools; cropped and counted.

The rules are those of `sa1bpack.masks.window`, in the units of `sa1bpack.masks.raster`. Under
axis-aligned maps a program draws a strip of columns of one mask. It finds the run ends of each of
its cell columns by bisection, and then goes down its rows in blocks: by area it walks the run ends,
and adds for every cell what lies below and to the right of them (`transforms.masks.cells`,
without its grids of differences). Most strips of most masks have no run ends, and are only cleared.
Under affine maps a program draws a tile: a cell has one sample point, or 4 x 4 of them, each in
whole numbers, and each finds its run by bisection.

What a program must know of its sample is one row of whole numbers, int64, of `frames`.
"""

# An annotation of a kernel's argument instructs Triton's compiler: they are not for type checkers.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sa1bpack.masks.window import LEVELS
from sa1bpack.masks.window import UNIT as GRID_UNIT
from sa1bpack.transforms.checks import Sides
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.maps import AxisMaps, fixed_steps
from sa1bpack.transforms.masks.cells import UprightAxis
from sa1bpack.transforms.masks.run_batch import Drawing, Taking
from sa1bpack.transforms.triton.images import locate, stepped, tile

Masks = tuple[Tensor, Tensor]

UNIT = tl.constexpr(GRID_UNIT)  # a source pixel is so many times the cells of the output long
# Columns of a program, rows of its blocks.
STRIP = tl.constexpr(32)
STRIP_ROWS = tl.constexpr(64)
DRAW_WARPS = 8  # of such a program: with 4, a thread needs twice the registers
# Cells of a program, affine.
DRAW_ROWS = tl.constexpr(16)
DRAW_COLUMNS = tl.constexpr(64)
TAKE_ROWS = tl.constexpr(16)
TAKE_COLUMNS = tl.constexpr(128)

# Columns of `frames`. Of `_draw`: source height and width; per axis cell, start and mirrored, see
# `masks.raster.Axis`; the least covered area; rows and columns that are kept.
SOURCE_HEIGHT = tl.constexpr(0)
SOURCE_WIDTH = tl.constexpr(1)
CELL_Y = tl.constexpr(2)
START_Y = tl.constexpr(3)
MIRRORED_Y = tl.constexpr(4)
CELL_X = tl.constexpr(5)
START_X = tl.constexpr(6)
MIRRORED_X = tl.constexpr(7)
LEAST_AREA = tl.constexpr(8)
KEPT_ROWS = tl.constexpr(9)
KEPT_COLUMNS = tl.constexpr(10)
AXIS_FIELDS = tl.constexpr(11)
# Of affine maps: `Frame.places`, the steps of cells; to draw, source height and width as well.
STEPS = tl.constexpr(12)
TAKE_FIELDS = tl.constexpr(18)
SOURCE = tl.constexpr(18)
DRAW_FIELDS = tl.constexpr(20)


@triton.jit
def _store_cells(target, on_grid, cells, counter):
    """Write cells, int32, as bytes, and add their number to a counter."""
    tl.store(target, cells.to(tl.uint8), mask=on_grid)
    count = tl.sum(tl.sum(cells, 1), 0)
    if count > 0:
        tl.atomic_add(counter, count)


@triton.jit
def _mask_tile(height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """`tile` of a mask; which of its cells are on the grid, and where they are in the mask."""
    mask, i, j = tile(height, width, ROWS, COLUMNS)
    on_grid = (i < height)[:, None] & (j < width)[None, :]
    return mask, i, j, on_grid, i[:, None] * width + j[None, :]


@triton.jit
def _steps_down(count):
    """The first step of a bisection among so many ends: a power of two above half of them."""
    step = count * 0 + 1
    while step <= count // 2:
        step = step * 2
    return step


@triton.jit
def _ends_before(ends, count, left, right):
    """The number of `count` ascending ends below each of two positions per column, int64."""
    first = left * 0
    last = right * 0
    step = _steps_down(count)
    while step > 0:
        next_first = first + step
        end = tl.load(ends + next_first - 1, mask=next_first <= count, other=0)
        first = tl.where((next_first <= count) & (end < left), next_first, first)
        next_last = last + step
        end_last = tl.load(ends + next_last - 1, mask=next_last <= count, other=0)
        last = tl.where((next_last <= count) & (end_last < right), next_last, last)
        step = step // 2
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
def _most(first, last):
    """The largest number of run ends of a column."""
    return tl.maximum(tl.max(last - first, 0), 0).to(tl.int32)


@triton.jit
def _area(ends, first, last, i, column, frame, height, width):
    """The cells of which at least the least part is covered.

    Args:
        ends: address of the run ends.
        first, last: int64, run ends that decide about each cell column.
        i, column: int32, cell rows and columns before mirroring.
        frame: address of its row of `frames`.
        height, width: rows and columns of the grid.
    """
    source_height = tl.load(frame + SOURCE_HEIGHT)
    cell_y = tl.load(frame + CELL_Y)
    start_y = tl.load(frame + START_Y)
    cell_x = tl.load(frame + CELL_X)
    pixel_x = width * UNIT
    pixel_y = height * UNIT
    right = tl.load(frame + START_X) + (column + 1) * cell_x
    # What the ends so far add to cells: `full` times their part that is inside the image, less
    # `cut` times their part below it.
    full = (first & 1) * cell_x
    cut = full * 0
    covered = tl.zeros((STRIP_ROWS, STRIP), tl.int64)
    for k in range(_most(first, last)):
        index = first + k
        valid = index < last
        end = tl.load(ends + index, mask=valid, other=0).to(tl.int64)
        sign = tl.where(valid, 1 - 2 * (index & 1), 0)
        x = (end.to(tl.int32) // source_height.to(tl.int32)).to(tl.int64)
        edge = right - x * pixel_x
        rest = _clamp(edge - pixel_x, 0, cell_x)
        part = sign * (_clamp(edge, 0, cell_x) - rest)
        full += sign * rest
        cut += part
        edge_row, part_below = _row_of(end - x * source_height, pixel_y, start_y, cell_y, height)
        edge_row = edge_row.to(tl.int32)[None, :]
        part_below = part_below.to(tl.int32)[None, :]
        inner = _below(edge_row, part_below, cell_y.to(tl.int32), i[:, None])
        covered += part.to(tl.int32)[None, :].to(tl.int64) * inner.to(tl.int64)
    row, below = _row_of(start_y * 0, pixel_y, start_y, cell_y, height)
    top = _below(row, below, cell_y, i)
    row, below = _row_of(source_height, pixel_y, start_y, cell_y, height)
    bottom = _below(row, below, cell_y, i)
    covered += full[None, :] * (top - bottom)[:, None] - cut[None, :] * bottom[:, None]
    return covered >= tl.load(frame + LEAST_AREA)


@triton.jit
def _center(ends, first, last, i, left, frame, height):
    """The cells of which the source pixel under the centre is foreground.

    Args:
        ends, first, last, i, frame, height: see `_area`.
        left: int64, first position of the source column of each cell column.
    """
    source_height = tl.load(frame + SOURCE_HEIGHT)
    cell_y = tl.load(frame + CELL_Y)
    start_y = tl.load(frame + START_Y)
    center = 2 * start_y + (2 * i.to(tl.int64) + 1) * cell_y
    y = tl.maximum(center, 0) // (2 * height * UNIT)
    inside = (center >= 0) & (y < source_height)
    y = y.to(tl.int32)
    inside_runs = tl.zeros((STRIP_ROWS, STRIP), tl.int32) + (first & 1).to(tl.int32)[None, :]
    for k in range(_most(first, last)):
        index = first + k
        valid = index < last
        end = tl.load(ends + index, mask=valid, other=0).to(tl.int64)
        row = tl.where(valid, end - left, 2147483647).to(tl.int32)
        inside_runs ^= (row[None, :] <= y[:, None]).to(tl.int32)
    return (inside_runs > 0) & inside[:, None]


@triton.jit
def _find_ends(ends, count, j, column, frame, width, AREA: tl.constexpr):
    """The run ends that decide about each cell column.

    Args:
        ends, count: address of the run ends of a mask, and their number.
        j, column: int32, cell columns, and those before mirroring.
        frame: address of its row of `frames`.
        width: columns of the grid.
        AREA: True for sampling by area, False at the centres.

    Returns:
        All of a strip: the first end, and the one after the last, int64; the first position of the
        source column under the cell column, int64; and whether the column may have foreground.
    """
    source_height = tl.load(frame + SOURCE_HEIGHT)
    source_width = tl.load(frame + SOURCE_WIDTH)
    cell_x = tl.load(frame + CELL_X)
    begin_x = tl.load(frame + START_X) + column * cell_x
    pixel_x = width * UNIT
    may_show = j < tl.minimum(tl.load(frame + KEPT_COLUMNS), width)
    # The first and the last source column under each cell column.
    if AREA:
        left = tl.maximum(begin_x, 0) // pixel_x
        right = (tl.maximum(begin_x + cell_x, 0) + pixel_x - 1) // pixel_x
    else:
        center = 2 * begin_x + cell_x
        left = tl.maximum(center, 0) // (2 * pixel_x)
        right = left + 1
        may_show &= (center >= 0) & (left < source_width)
    left = tl.minimum(left, source_width) * source_height
    first, last = _ends_before(ends, count, left, right * source_height)
    last = tl.where(right < source_width, last, count)
    first = tl.where(j < width, first, 0)
    last = tl.where(j < width, last, 0)
    return first, last, left, may_show


@triton.jit(do_not_specialize=["height"])
def _draw(ends, rows, frames, out, counts, height, width, AREA: tl.constexpr):
    """Draw a strip of columns of a mask under an upright map.

    Args:
        ends: int32 (R,), run ends of all masks.
        rows: int64 (n, 3), for each mask its first end, the number of its ends, and its sample.
        frames: int64 (B, AXIS_FIELDS).
        out, counts: out: the cells, and how many of each mask are set.
        height, width: rows and columns of the grid.
        AREA: True for sampling by area, False at the centres.
    """
    strips = tl.cdiv(width, STRIP)
    mask = (tl.program_id(0) // strips).to(tl.int64)
    j = tl.program_id(0) % strips * STRIP + tl.arange(0, STRIP)
    rows += mask * 3
    ends += tl.load(rows)
    frame = frames + tl.load(rows + 2) * AXIS_FIELDS
    column = tl.where(tl.load(frame + MIRRORED_X) > 0, width - 1 - j, j)
    first, last, left, may_show = _find_ends(ends, tl.load(rows + 1), j, column, frame, width, AREA)
    kept_rows = tl.load(frame + KEPT_ROWS)
    # Otherwise all is background.
    busy = (_most(first, last) > 0) | (tl.max(first & 1, 0) > 0)

    numbers = tl.zeros((STRIP,), tl.int32)
    for top in range(0, height, STRIP_ROWS):
        i = top + tl.arange(0, STRIP_ROWS)
        on_grid = (i < height)[:, None] & (j < width)[None, :]
        target = out + mask * height * width + i[:, None] * width + j[None, :]
        if busy:
            row = tl.where(tl.load(frame + MIRRORED_Y) > 0, height - 1 - i, i)
            if AREA:
                drawn = _area(ends, first, last, row, column, frame, height, width)
            else:
                drawn = _center(ends, first, last, row, left, frame, height)
            cells = (drawn & (may_show[None, :] & (i < kept_rows)[:, None]) & on_grid).to(tl.int32)
            numbers += tl.sum(cells, 0)
            tl.store(target, cells.to(tl.uint8), mask=on_grid)
        else:
            tl.store(target, tl.zeros((STRIP_ROWS, STRIP), tl.uint8), mask=on_grid)
    if busy:
        tl.atomic_add(counts + mask, tl.sum(numbers, 0))


@triton.jit(do_not_specialize=["height"])
def _draw_affine(ends, rows, frames, out, counts, height, width, POINTS: tl.constexpr):
    mask, i, j, on_grid, offset = _mask_tile(height, width, DRAW_ROWS, DRAW_COLUMNS)
    ends += tl.load(rows + mask * 3)
    count = tl.load(rows + mask * 3 + 1)
    frame = frames + tl.load(rows + mask * 3 + 2) * DRAW_FIELDS
    source_height = tl.load(frame + SOURCE)
    source_width = tl.load(frame + SOURCE + 1)
    # All foreground is from the first end on, and before the last one.
    low = tl.load(ends, mask=count > 0, other=0).to(tl.int64)
    high = tl.load(ends + count - 1, mask=count > 0, other=0).to(tl.int64)
    _, _, shown = locate(frame, i, j)
    hits = tl.zeros((DRAW_ROWS, DRAW_COLUMNS), tl.int32)
    for point in range(POINTS * POINTS):
        row = (i.to(tl.int64) * POINTS + point // POINTS)[:, None]
        column = (j.to(tl.int64) * POINTS + point % POINTS)[None, :]
        x, y = stepped(frame + STEPS, row, column)
        x = x >> 32
        y = y >> 32
        pixel = x * source_height + y
        inside = shown & on_grid & (x >= 0) & (x < source_width) & (y >= 0) & (y < source_height)
        inside &= (pixel >= low) & (pixel < high)
        if tl.max(tl.max(inside.to(tl.int32), 1), 0) > 0:
            # How many ends are at or below the pixel.
            before = tl.zeros((DRAW_ROWS, DRAW_COLUMNS), tl.int64)
            step = _steps_down(count)
            while step > 0:
                after = before + step
                end = tl.load(ends + after - 1, mask=inside & (after <= count), other=0)
                before = tl.where((after <= count) & (end <= pixel), after, before)
                step = step // 2
            hits += tl.where(inside, before & 1, 0).to(tl.int32)
    cells = (hits >= (POINTS * POINTS + 1) // 2).to(tl.int32)
    _store_cells(out + mask * height * width + offset, on_grid, cells, counts + mask)


@triton.jit(do_not_specialize=["height", "side"])
def _take(masks, owner, frames, out, counts, height, width, side):
    """Take rows and columns of masks from a grid of bools.

    Args:
        masks: uint8 (T, s, s / 8) bits, or bool (T, s, s).
        owner: int64 (T,), sample of each mask.
        frames: int64 (B, 2 + h + w): rows and columns that are kept, then those of the grid.
        out, counts: out: the cells, and how many of each mask are set.
        height, width, side: rows and columns of the result, side of the grid.
    """
    PACKED: tl.constexpr = masks.dtype.element_ty == tl.uint8
    mask, i, j, on_grid, offset = _mask_tile(height, width, TAKE_ROWS, TAKE_COLUMNS)
    frame = frames + tl.load(owner + mask) * (2 + height + width)
    inside = (i < tl.load(frame))[:, None] & (j < tl.load(frame + 1))[None, :] & on_grid
    y = tl.load(frame + 2 + i, mask=i < height, other=0)
    x = tl.load(frame + 2 + height + j, mask=j < width, other=0)
    line = side // 8 if PACKED else side
    grid = masks + mask * side * line
    source = y[:, None] * line + (x >> 3 if PACKED else x)[None, :]
    cells = tl.load(grid + source, mask=inside, other=0).to(tl.int32)
    if PACKED:
        cells = (cells >> (x & 7).to(tl.int32)[None, :]) & 1
    _store_cells(out + mask * height * width + offset, on_grid, cells, counts + mask)


@triton.jit(do_not_specialize=["height", "side"])
def _take_affine(masks, owner, frames, out, counts, height, width, side):
    PACKED: tl.constexpr = masks.dtype.element_ty == tl.uint8
    mask, i, j, on_grid, offset = _mask_tile(height, width, TAKE_ROWS, TAKE_COLUMNS)
    frame = frames + tl.load(owner + mask) * TAKE_FIELDS
    _, _, shown = locate(frame, i, j)
    x, y = stepped(frame + STEPS, i.to(tl.int64)[:, None], j.to(tl.int64)[None, :])
    x = tl.minimum(tl.maximum(x >> 32, 0), side - 1).to(tl.int32)
    y = tl.minimum(tl.maximum(y >> 32, 0), side - 1).to(tl.int32)
    line = side // 8 if PACKED else side
    source = mask * side * line + y * line + (x >> 3 if PACKED else x)
    cells = tl.load(masks + source, mask=shown & on_grid, other=0).to(tl.int32)
    if PACKED:
        cells = (cells >> (x & 7)) & 1
    _store_cells(out + mask * height * width + offset, on_grid, cells, counts + mask)


def _launched(
    kernel: Any,
    tile_size: Sides,
    shape: tuple[int, int, int],
    arguments: Sequence[Tensor],
    **options: Any,
) -> Masks:
    """The cells of masks, and their numbers, from a kernel.

    Args:
        kernel: the kernel.
        tile_size: rows and columns of a program.
        shape: (n, h, w).
        arguments: those before `out`.
        options: keyword arguments of the kernel.

    Returns:
        Cells, bool (n, h, w), and int32 (n,), how many of each mask are set.
    """
    count, height, width = shape
    out = torch.empty(shape, dtype=torch.uint8, device=arguments[0].device)
    counts = torch.zeros(count, dtype=torch.int32, device=out.device)
    if out.numel():
        tiles = triton.cdiv(height, tile_size[0]) * triton.cdiv(width, tile_size[1])
        kernel[(count * tiles,)](*arguments, out, counts, height, width, **options)
    return out.view(torch.bool), counts


def _drawn(
    kernel: Any, tile_size: Sides, drawing: Drawing, frames: Tensor, **options: Any
) -> Masks:
    """Masks drawn from their runs by a kernel.

    It takes the run ends; int64 (n, 3), first end, number of ends and sample of each row of the
    result, no ends where there is no mask; `frames`.
    """
    owner = drawing.owner
    runs = drawing.runs
    run_offset = runs.host_offset if owner.device.type == "cpu" else runs.run_offset
    rows = owner.new_zeros((len(owner), 3))
    rows[:, 2] = owner
    # Without background after the last foreground: an even number of ends.
    ends = torch.stack([run_offset[:-1], run_offset.diff() & -2], 1)
    rows[:, :2].index_copy_(0, drawing.rows, ends)
    arguments = [runs.run_ends, *sent([rows, frames], runs.run_ends.device)]
    return _launched(kernel, tile_size, drawing.shape, arguments, **options)


def draw_upright(drawing: Drawing) -> Masks:
    """Draw masks from their runs under upright maps.

    Returns bool (n, h, w), the cells of `transforms.draw_runs`; int32 (n,), the set ones of each.
    """
    assert isinstance(drawing.maps, AxisMaps)
    height, width = drawing.size
    scale = drawing.maps.scale
    offset = drawing.maps.offset
    y = UprightAxis(height, scale[:, 1], offset[:, 1], False)
    x = UprightAxis(width, scale[:, 0], offset[:, 0], False)
    # With a side of 2**31 units, cells are 2**21 pixels in total: one unit makes no difference.
    cell_y = y.cell.clamp(max=2**31 - 1)
    cell_x = x.cell.clamp(max=2**31 - 1)
    least_area = (cell_x * cell_y + 1) // 2
    keep = (x.drawn & y.drawn)[:, None] * drawing.keep
    down = [cell_y, y.start, y.mirrored.long()]
    across = [cell_x, x.start, x.mirrored.long()]
    frames = torch.stack([*drawing.sizes.unbind(1), *down, *across, least_area, *keep.unbind(1)], 1)
    area = drawing.sampling == "area"
    options = {"AREA": area, "num_warps": DRAW_WARPS, "enable_fp_fusion": False}
    return _drawn(_draw, (height, STRIP.value), drawing, frames, **options)


def draw_affine(drawing: Drawing) -> Masks:
    """`draw_upright` at the sample points of affine maps."""
    assert drawing.frame is not None
    points = 1 << LEVELS[drawing.sampling]
    steps = fixed_steps(drawing.maps, points).flatten(1)
    frames = torch.cat([drawing.frame.places(drawing.size), steps, drawing.sizes], 1)
    tile_size = DRAW_ROWS.value, DRAW_COLUMNS.value
    return _drawn(_draw_affine, tile_size, drawing, frames, POINTS=points)


def take_upright(taking: Taking) -> Masks:
    """Take cells of masks under upright maps, as `transforms.masks.cells.take` does.

    Returns bool (T, h, w), and int32 (T,), how many cells of each are set.
    """
    columns, rows = taking.columns_and_rows
    return _taken(_take, taking, torch.cat([taking.keep, rows, columns], 1))


def take_affine(taking: Taking) -> Masks:
    """`take_upright` under affine maps."""
    assert taking.maps is not None and taking.frame is not None
    steps = fixed_steps(taking.maps).flatten(1)
    return _taken(_take_affine, taking, torch.cat([taking.frame.places(taking.size), steps], 1))


def _taken(kernel: Any, taking: Taking, frames: Tensor) -> Masks:
    """Masks taken from their grids by a kernel: it takes the masks, their owner and `frames`."""
    masks = taking.masks.contiguous()
    arguments = [masks, *sent([taking.owner, frames], masks.device)]
    tile_size = TAKE_ROWS.value, TAKE_COLUMNS.value
    return _launched(kernel, tile_size, taking.shape, arguments, side=masks.shape[1])
