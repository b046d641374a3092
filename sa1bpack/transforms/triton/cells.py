"""Cells of masks from a grid of bits or bools: selected, cropped, cast and counted in one pass."""

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 16, 128  # cells of a program


@triton.jit
def _store_cells(target, on_grid, cells, counter):
    """Write cells, int32, as whatever type the target has, and add their number to a counter."""
    kind = target.dtype.element_ty
    written = cells.to(tl.float32).to(kind) if kind.is_floating() else cells.to(kind)
    tl.store(target, written, mask=on_grid)
    count = tl.sum(tl.sum(cells, 1), 0)
    if count > 0:
        tl.atomic_add(counter, count)


@triton.jit(do_not_specialize=["rows_stride", "columns_stride", "cells", "line", "height"])
def _take(
    masks,
    owner,
    rows,
    rows_stride,
    columns,
    columns_stride,
    keep,
    out,
    counts,
    cells,
    line,
    height,
    width,
    PACKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """cells: rows of a grid; line: bytes of one of them."""
    across = tl.cdiv(width, COLUMNS)
    tiles = tl.cdiv(height, ROWS) * across
    mask, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    mask = mask.to(tl.int64)
    sample = tl.load(owner + mask)
    on_grid = (i < height)[:, None] & (j < width)[None, :]
    inside = (i < tl.load(keep + sample * 2))[:, None]
    inside &= (j < tl.load(keep + sample * 2 + 1))[None, :]
    inside &= on_grid
    y = tl.load(rows + sample * rows_stride + i, mask=i < height, other=0)
    x = tl.load(columns + sample * columns_stride + j, mask=j < width, other=0)
    at = x >> 3 if PACKED else x
    place = mask * cells * line + y[:, None] * line + at[None, :]
    found = tl.load(masks + place, mask=inside, other=0).to(tl.int32)
    if PACKED:
        found = (found >> (x & 7).to(tl.int32)[None, :]) & 1
    target = out + mask * height * width + i[:, None] * width + j[None, :]
    _store_cells(target, on_grid, found, counts + mask)


def take_cells(
    masks: torch.Tensor,
    owner: torch.Tensor,
    rows: torch.Tensor,
    columns: torch.Tensor,
    keep: torch.Tensor,
    out: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Select rows and columns of masks.

    masks    bool (T, s, s), or bits uint8 (T, s, s / 8), contiguous
    owner    int64 (T,), the sample of each
    rows     int64 (B, h), columns int64 (B, w), 0 to s - 1: of the grid, for each of the output.
             The numbers of a sample are adjacent.
    keep     int64 (B, 2): rows and columns of the output that the image covers; cells beyond them
             become 0
    out      (T, h, w), uint8 or floating-point, contiguous
    counts   int32 (T,), zeros; gets the cells of each mask
    """
    height, width = out.shape[1:]
    tiles = triton.cdiv(height, ROWS) * triton.cdiv(width, COLUMNS)
    _take[(len(masks) * tiles,)](
        masks.view(torch.uint8),
        owner,
        rows,
        rows.stride(0),
        columns,
        columns.stride(0),
        keep,
        out,
        counts,
        masks.shape[1],
        masks.shape[2],
        height,
        width,
        PACKED=masks.dtype == torch.uint8,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )


@triton.jit(do_not_specialize=["cells", "line", "height", "width"])
def _take_turned(
    masks,
    owner,
    steps,
    visible,
    out,
    counts,
    cells,
    line,
    height,
    width,
    PACKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """cells: rows of a grid; line: bytes of one of them."""
    across = tl.cdiv(width, COLUMNS)
    tiles = tl.cdiv(height, ROWS) * across
    mask, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    sample = tl.load(owner + mask)
    on_grid = (i < height)[:, None] & (j < width)[None, :]
    at = i[:, None] * width + j[None, :]
    shown = on_grid & (
        tl.load(visible + sample * height * width + at, mask=on_grid, other=0).to(tl.int32) > 0
    )
    of = steps + sample * 6
    row, column = i.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
    x = (tl.load(of) * column + (tl.load(of + 1) * row + tl.load(of + 2))) >> 32
    y = (tl.load(of + 3) * column + (tl.load(of + 4) * row + tl.load(of + 5))) >> 32
    x = tl.minimum(tl.maximum(x, 0), cells - 1).to(tl.int32)
    y = tl.minimum(tl.maximum(y, 0), cells - 1).to(tl.int32)
    place = y * line + (x >> 3 if PACKED else x)
    found = tl.load(masks + mask * cells * line + place, mask=shown, other=0).to(tl.int32)
    if PACKED:
        found = (found >> (x & 7)) & 1
    _store_cells(out + mask * height * width + at, on_grid, found, counts + mask)


def take_turned(
    masks: torch.Tensor,
    owner: torch.Tensor,
    steps: torch.Tensor,
    visible: torch.Tensor,
    out: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Take cells of masks under maps that may rotate.

    masks    bool (T, s, s), or bits uint8 (T, s, s / 8), contiguous
    owner    int64 (T,), the sample of each
    steps    int64 (B, 2, 3), contiguous, see `geometry.frame.positions`: from cells of the output
             to those of the grid, the nearest one if that is outside
    visible  bool (B, h, w), contiguous: cells that are not become 0
    out      (T, h, w), uint8 or floating-point, contiguous
    counts   int32 (T,), zeros; gets the cells of each mask
    """
    height, width = out.shape[1:]
    tiles = triton.cdiv(height, ROWS) * triton.cdiv(width, COLUMNS)
    _take_turned[(len(masks) * tiles,)](
        masks.view(torch.uint8),
        owner,
        steps,
        visible.view(torch.uint8),
        out,
        counts,
        masks.shape[1],
        masks.shape[2],
        height,
        width,
        PACKED=masks.dtype == torch.uint8,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
