"""Gaussian blur of images: a filter along the columns, then one along the rows.

The weights, and the order in which pixels are added, are those of `sa1bpack.pixels.blur`.
"""

# An annotation of a kernel's argument instructs Triton's compiler: they are not for type checkers.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sa1bpack.transforms.triton.images import tile

# Pixels of a program.
ROWS = tl.constexpr(16)
COLUMNS = tl.constexpr(64)


@triton.jit
def _reflect(position, length):
    """The pixel of an axis that stands at a position, which may be outside."""
    period = tl.maximum(2 * (length - 1), 1)
    position = tl.abs(position) % period
    return tl.minimum(position, period - position)


@triton.jit(do_not_specialize=["height", "taps", "down"])
def _filter(images, weights, covered, out, width, height, taps, down):
    """Filter planes, (B * 3, H, W), along their columns if `down` is 1, along their rows if 0."""
    plane, i, j = tile(height, width, ROWS, COLUMNS)
    sample = plane // 3
    rows = tl.load(covered + sample * 2).to(tl.int32)
    columns = tl.load(covered + sample * 2 + 1).to(tl.int32)
    on_canvas = (i < height)[:, None] & (j < width)[None, :]
    inside = on_canvas & (i < rows)[:, None] & (j < columns)[None, :]
    source = images + plane * height * width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(taps):
        weight = tl.load(weights + sample * taps + k)
        row = tl.where(down == 1, _reflect(i + k - taps // 2, rows), i)
        column = tl.where(down == 1, j, _reflect(j + k - taps // 2, columns))
        pixels = row[:, None] * width + column[None, :]
        total += weight * tl.load(source + pixels, mask=inside, other=0.0)
    target = out + plane * height * width + i[:, None] * width + j[None, :]
    tl.store(target, tl.where(inside, total, 0.0), mask=on_canvas)


def blur_images(images: Tensor, weights: Tensor, covered: Tensor) -> Tensor:
    """Blur images, as `transforms.images.blur` does.

    Args:
        images: float32 (B, 3, H, W), contiguous.
        weights: float32 (B, k), k odd: the filter of either axis.
        covered: int64 (B, 2), rows and columns that an image covers.

    Returns:
        float32 (B, 3, H, W), zero beyond them.
    """
    out = torch.empty_like(images)
    if not out.numel():
        return out
    samples, channels, height, width = images.shape
    rows = torch.empty_like(images)
    covered = covered.contiguous()
    weights = weights.contiguous()
    taps = weights.shape[1]
    tiles = triton.cdiv(height, ROWS.value) * triton.cdiv(width, COLUMNS.value)
    grid = (samples * channels * tiles,)
    for source, target, down in ((images, rows, 1), (rows, out, 0)):
        _filter[grid](
            source,
            weights,
            covered,
            target,
            width,
            height,
            taps,
            down,
            enable_fp_fusion=False,
        )
    return out
