"""Prompts: the cell of each mask that is farthest from a cell outside.

In two passes, as in `sa1bpack.masks.cells.squared_distances`. The first one goes down and up the
columns of a mask: how far, within its column, is each cell from the nearest one outside? The second
one looks left and right along the rows, a step at a time, as far as a cell outside can be nearer
than what is known: the programs of a mask, each with a tile of it, stop when no cell of theirs can
still be the farthest. Of the distances of all cells, nothing is written but the largest.

A cell of a mask takes 9 bytes of the device's memory: 1 is read and 2 are written on the way down,
2 and 2 on the way up, and 2 are read along the rows. The steps read what is then in the cache.
"""

# An annotation of a kernel's argument instructs Triton's compiler: they are not for type checkers.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sa1bpack.transforms.triton.images import tile

# of a program that goes down and up
DOWN_COLUMNS = tl.constexpr(64)
DOWN_WARPS = 1
# of one that goes along the rows
FAR_ROWS = tl.constexpr(8)
FAR_COLUMNS = tl.constexpr(128)
OUT_OF_SIGHT = tl.constexpr(16384)  # cells: no mask is larger, and its square fits into int32


@triton.jit(do_not_specialize=["height", "width"])
def _measure_columns(masks, out, height, width):
    """Write how far each cell is from the nearest one outside in its column.

    Args:
        masks: uint8 (T, h, w), 0 or 1.
        out: int16 (T, h, w), 0 outside the mask.
        height, width: rows and columns, up to 16384.
    """
    blocks = tl.cdiv(width, DOWN_COLUMNS)
    mask = (tl.program_id(0) // blocks).to(tl.int64)
    j = tl.program_id(0) % blocks * DOWN_COLUMNS + tl.arange(0, DOWN_COLUMNS)
    on_grid = j < width
    first = mask * height * width + j
    steps = tl.zeros((DOWN_COLUMNS,), tl.int32)
    for i in range(0, height):
        cell = tl.load(masks + first + i * width, mask=on_grid, other=0)
        steps = tl.where(cell > 0, steps + 1, 0)
        tl.store(out + first + i * width, steps.to(tl.int16), mask=on_grid)
    tl.debug_barrier()
    steps = tl.zeros((DOWN_COLUMNS,), tl.int32)
    for k in range(0, height):
        target = out + first + (height - 1 - k) * width
        above = tl.load(target, mask=on_grid, other=0).to(tl.int32)
        steps = tl.where(above > 0, steps + 1, 0)
        tl.store(target, tl.minimum(above, steps).to(tl.int16), mask=on_grid)


@triton.jit
def _largest(values):
    return tl.max(tl.max(values, 1), 0)


@triton.jit
def _beside(row, column, width, on_grid, step):
    """The squared distance of each cell from one outside in the column that is `step` away."""
    inside = on_grid & ((column >= 0) & (column < width))[None, :]
    near = tl.load(row + column[None, :], mask=inside, other=OUT_OF_SIGHT).to(tl.int32)
    return near * near + step * step


@triton.jit(do_not_specialize=["height", "width"])
def _find_farthest(columns, best, height, width):
    """Find the farthest cell of each mask, of several the first one.

    Args:
        columns: int16 (T, h, w), what `_measure_columns` wrote.
        best: int64 (T,), 0 before; out: squared distance * h * w + (h * w - 1 - cell).
        height, width: rows and columns, up to 16384.
    """
    mask, i, j = tile(height, width, FAR_ROWS, FAR_COLUMNS)
    on_grid = (i < height)[:, None] & (j < width)[None, :]
    cells = height.to(tl.int64) * width
    row = columns + mask * cells + i.to(tl.int64)[:, None] * width
    near = tl.load(row + j[None, :], mask=on_grid, other=0).to(tl.int32)
    edge = tl.minimum(j + 1, width - j)  # beyond the border all is outside
    far = tl.minimum(near * near, (edge * edge)[None, :])
    # What others have found: a cell that is known to be nearer is not the farthest.
    least = (tl.load(best + mask) // cells).to(tl.int32)
    limit = _largest(tl.where(on_grid & (far >= least), far, 0))
    step = limit * 0 + 1
    while step * step < limit:
        far = tl.minimum(far, _beside(row, j - step, width, on_grid, step))
        far = tl.minimum(far, _beside(row, j + step, width, on_grid, step))
        limit = _largest(tl.where(on_grid & (far >= least), far, 0))
        step += 1
    cell = i.to(tl.int64)[:, None] * width + j[None, :]
    key = tl.where(on_grid, far.to(tl.int64) * cells + (cells - 1 - cell), 0)
    tl.atomic_max(best + mask, _largest(key))


def farthest_cells(masks: Tensor) -> tuple[Tensor, Tensor]:
    """The cell of each mask that is farthest from a cell outside, as `prompts.interior_cells`.

    Args:
        masks: bool (T, h, w), sides of at most 16,384.

    Returns:
        int64 (T, 2), x and y; and int64 (T,), the squared distance.
    """
    count, height, width = masks.shape
    best = torch.zeros(count, dtype=torch.int64, device=masks.device)
    cells = height * width
    if masks.numel():
        bytes_of_masks = masks.contiguous().view(torch.uint8)
        columns = torch.empty(masks.shape, dtype=torch.int16, device=masks.device)
        down = (count * triton.cdiv(width, DOWN_COLUMNS.value),)
        _measure_columns[down](bytes_of_masks, columns, height, width, num_warps=DOWN_WARPS)
        tiles = triton.cdiv(height, FAR_ROWS.value) * triton.cdiv(width, FAR_COLUMNS.value)
        _find_farthest[(count * tiles,)](columns, best, height, width)
    cell = cells - 1 - best % cells
    return torch.stack([cell % width, cell // width], 1), best // cells
