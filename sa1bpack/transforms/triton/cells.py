"""Cells of masks from a grid of bits or bools: selected, cropped, cast and counted in one pass."""

import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 16, 128  # cells of a program


@triton.jit(do_not_specialize=["rows_stride", "columns_stride", "cells", "line", "height"])
def _take(
    masks, owner, rows, rows_stride, columns, columns_stride, keep, out, counts,
    cells, line, height, width,
    PACKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
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
    kind = out.dtype.element_ty
    written = found.to(tl.float32).to(kind) if kind.is_floating() else found.to(kind)
    tl.store(target, written, mask=on_grid)
    count = tl.sum(tl.sum(found, 1), 0)
    if count > 0:
        tl.atomic_add(counts + mask, count)


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
        masks.view(torch.uint8), owner, rows, rows.stride(0), columns, columns.stride(0), keep,
        out, counts, masks.shape[1], masks.shape[2], height, width,
        PACKED=masks.dtype == torch.uint8, ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
