"""Masks drawn from their runs under maps that may rotate: a program draws a tile of one mask.

The rule is that of `sa1bpack.masks.window`: a cell has one sample point, or 4 x 4 of them, each in
whole numbers, and each finds its run by bisection. Tiles that lie beyond the columns of a mask, as
most do, are only cleared.
"""

import torch
import triton
import triton.language as tl

from sa1bpack.transforms.triton.cells import _store_cells

ROWS, COLUMNS = 16, 64  # cells of a program

# Of a sample: source height and width; the steps along x, then those along y.
FIELDS = 8


@triton.jit(do_not_specialize=["half", "height", "width"])
def _draw_turned(
    ends,
    offset,
    source,
    owner,
    frames,
    visible,
    out,
    counts,
    half,
    height,
    width,
    POINTS: tl.constexpr,
    FIELDS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    across = tl.cdiv(width, COLUMNS)
    tiles = tl.cdiv(height, ROWS) * across
    place = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    on_grid = (i < height)[:, None] & (j < width)[None, :]

    mask, sample = tl.load(source + place), tl.load(owner + place)
    frame = frames + sample * FIELDS
    source_height, source_width = tl.load(frame), tl.load(frame + 1)
    begin = tl.load(offset + mask, mask=mask >= 0, other=0)
    # Without background after the last foreground: an even number of ends.
    count = (tl.load(offset + mask + 1, mask=mask >= 0, other=0) - begin) // 2 * 2
    ends += begin
    # All foreground is from the first end on, and before the last one.
    low = tl.load(ends, mask=count > 0, other=0).to(tl.int64)
    high = tl.load(ends + count - 1, mask=count > 0, other=0).to(tl.int64)

    shown = (
        tl.load(
            visible + sample * height * width + i[:, None] * width + j[None, :],
            mask=on_grid,
            other=0,
        ).to(tl.int32)
        > 0
    )
    hits = tl.zeros((ROWS, COLUMNS), tl.int32)
    for point in range(POINTS * POINTS):
        row = (i.to(tl.int64) * POINTS + point // POINTS)[:, None]
        column = (j.to(tl.int64) * POINTS + point % POINTS)[None, :]
        x = tl.load(frame + 2) * column + (tl.load(frame + 3) * row + tl.load(frame + 4))
        y = tl.load(frame + 5) * column + (tl.load(frame + 6) * row + tl.load(frame + 7))
        x, y = x >> 32, y >> 32
        position = x * source_height + y
        wanted = shown & (x >= 0) & (x < source_width) & (y >= 0) & (y < source_height)
        wanted &= (position >= low) & (position < high)
        if tl.max(tl.max(wanted.to(tl.int32), 1), 0) > 0:
            # How many ends are at or below the position.
            found = tl.zeros((ROWS, COLUMNS), tl.int64)
            step = half
            while step > 0:
                at = found + step
                end = tl.load(ends + at - 1, mask=wanted & (at <= count), other=0)
                found = tl.where((at <= count) & (end <= position), at, found)
                step = step // 2
            hits += tl.where(wanted, found & 1, 0).to(tl.int32)
    cells = (hits >= (POINTS * POINTS + 1) // 2).to(tl.int32)
    target = out + place * height * width + i[:, None] * width + j[None, :]
    _store_cells(target, on_grid, cells, counts + place)


def draw_turned(
    ends: torch.Tensor,
    offset: torch.Tensor,
    source: torch.Tensor,
    owner: torch.Tensor,
    frames: torch.Tensor,
    visible: torch.Tensor,
    most_ends: int,
    points: int,
    out: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """Draw masks.

    ends       int32 (R,), and
    offset     int64 (T + 1,): the runs of all masks, see `transforms.masks.run_batch.RunBatch`
    source     int64 (n,): the mask, 0 to T - 1, that each mask of the output shows; -1 for none
    owner      int64 (n,): the sample of each
    frames     int64 (B, FIELDS), contiguous
    visible    bool (B, h, w), contiguous: cells that are not become 0
    most_ends  the largest number of run ends of a mask
    points     sample points along a side of a cell; half of all must be foreground
    out        (n, h, w), uint8 or floating-point, contiguous
    counts     int32 (n,), zeros; gets the cells of each mask
    """
    height, width = out.shape[1:]
    half = 1 << most_ends.bit_length() >> 1
    tiles = triton.cdiv(height, ROWS) * triton.cdiv(width, COLUMNS)
    _draw_turned[(len(out) * tiles,)](
        ends,
        offset,
        source,
        owner,
        frames,
        visible.view(torch.uint8),
        out,
        counts,
        half,
        height,
        width,
        POINTS=points,
        FIELDS=FIELDS,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )
