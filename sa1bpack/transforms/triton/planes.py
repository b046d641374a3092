"""Canvases of Y, Cb and Cr to RGB, by the formulas of `sa1bpack.pixels.yuv420`."""

import torch
import triton
import triton.language as tl

BLOCK = 512  # pixels of a program


@triton.jit
def _chroma(plane, near, far, column, other, odd, half, inside):
    """Chroma of pixels, minus 128: 3/4 of the nearest row and column, 1/4 of the next."""
    here = 3 * tl.load(plane + near * half + column, mask=inside, other=0).to(tl.int32)
    here += tl.load(plane + far * half + column, mask=inside, other=0).to(tl.int32)
    beside = 3 * tl.load(plane + near * half + other, mask=inside, other=0).to(tl.int32)
    beside += tl.load(plane + far * half + other, mask=inside, other=0).to(tl.int32)
    return ((3 * here + beside + 8 - odd) >> 4) - 128


@triton.jit
def _to_byte(value):
    return tl.minimum(tl.maximum(value, 0), 255).to(tl.uint8)


@triton.jit(do_not_specialize=["stored_stride", "side"])
def _convert(planes, stored, stored_stride, out, side, BLOCK: tl.constexpr):
    sample = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, j = pixel // side, pixel % side
    # Whatever the sizes are, nothing outside the canvas is read.
    height = tl.minimum(tl.load(stored + sample * stored_stride).to(tl.int32), side)
    width = tl.minimum(tl.load(stored + sample * stored_stride + 1).to(tl.int32), side)
    inside = (i < height) & (j < width)

    half = side // 2
    near, column = i // 2, j // 2
    far = tl.minimum(tl.maximum(near + 2 * (i % 2) - 1, 0), (height + 1) // 2 - 1)
    other = tl.minimum(tl.maximum(column + 2 * (j % 2) - 1, 0), (width + 1) // 2 - 1)
    luma = planes + sample * (side * side + 2 * half * half)
    blue_plane = luma + side * side
    y = tl.load(luma + pixel, mask=inside, other=0).to(tl.int32)
    blue = _chroma(blue_plane, near, far, column, other, j % 2, half, inside)
    red = _chroma(blue_plane + half * half, near, far, column, other, j % 2, half, inside)

    target = out + sample * side * side * 3 + pixel * 3
    canvas = pixel < side * side
    r = _to_byte(y + ((91881 * red + 32768) >> 16))
    g = _to_byte(y + ((-22554 * blue - 46802 * red + 32768) >> 16))
    b = _to_byte(y + ((116130 * blue + 32768) >> 16))
    tl.store(target, tl.where(inside, r, 0), mask=canvas)
    tl.store(target + 1, tl.where(inside, g, 0), mask=canvas)
    tl.store(target + 2, tl.where(inside, b, 0), mask=canvas)


def planes_to_rgb(planes: torch.Tensor, stored: torch.Tensor, out: torch.Tensor) -> None:
    """Convert canvases.

    planes  uint8 (B, S * 3 / 2, S), contiguous, S even, up to 16384
    stored  integers (B, 2), height and width of the images, the two of an image adjacent
    out     uint8 (B, S, S, 3), contiguous; zero beyond `stored`
    """
    side = planes.shape[2]
    grid = (triton.cdiv(side * side, BLOCK), len(planes))
    _convert[grid](planes, stored, stored.stride(0), out, side, BLOCK=BLOCK)
