"""Colours of images, changed, normalised and cast in one pass, after one for the mean grey.

The operations, and the order of their additions, are those of `sa1bpack.pixels.colors`. What a
program must know of its image is one row of kinds and factors.
"""

# An annotation of a kernel's argument instructs Triton's compiler: they are not for type checkers.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sa1bpack.pixels.colors import BRIGHTNESS, CONTRAST, HUE, LUMA, SATURATION
from sa1bpack.transforms.backends import FLOATS
from sa1bpack.transforms.images.colors import ColorChange
from sa1bpack.transforms.triton.images import block, store_channels

BLOCK = tl.constexpr(1024)  # pixels of a program
RED, GREEN, BLUE = (tl.constexpr(share) for share in LUMA)
BRIGHTEN = tl.constexpr(BRIGHTNESS)
CONTRASTED = tl.constexpr(CONTRAST)
SATURATE = tl.constexpr(SATURATION)
TURN = tl.constexpr(HUE)
NOTHING = tl.constexpr(-1)  # in place of the kind of an operation that is not done


@triton.jit
def _clip(value):
    return tl.minimum(tl.maximum(value, 0.0), 255.0)


@triton.jit
def _gray(red, green, blue):
    return RED * red + GREEN * green + BLUE * blue


@triton.jit
def _blend(value, other, factor):
    return _clip(value * factor + (1 - factor) * other)


@triton.jit
def _channel(angle, value, chroma):
    """One channel of a colour; the angle is in units of 60 degrees."""
    angle -= 6 * tl.floor(angle / 6)
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(angle, 4 - angle), 0.0), 1.0)


@triton.jit
def _turned(red, green, blue, turn):
    """Colours with their hue turned by a fraction of 360 degrees."""
    value = tl.maximum(tl.maximum(red, green), blue)
    chroma = value - tl.minimum(tl.minimum(red, green), blue)
    # Hue in units of 60 degrees: 0 is red, 2 green, 4 blue. Without chroma it has no effect.
    ahead = tl.where(green == value, blue - red, red - green)
    ahead = tl.where(red == value, green - blue, ahead)
    sector = tl.where(red == value, 0.0, tl.where(green == value, 2.0, 4.0))
    hue = sector + tl.div_rn(ahead, tl.maximum(chroma, 1e-6)) + 6 * turn
    red = _channel(hue + 5, value, chroma)
    green = _channel(hue + 3, value, chroma)
    blue = _channel(hue + 1, value, chroma)
    return red, green, blue


@triton.jit
def _operated(red, green, blue, kind, factor, mean):
    """Colours after one operation; `mean` is the mean grey of the image."""
    if kind == BRIGHTEN:
        red = _clip(red * factor)
        green = _clip(green * factor)
        blue = _clip(blue * factor)
    if kind == CONTRASTED:
        red = _blend(red, mean, factor)
        green = _blend(green, mean, factor)
        blue = _blend(blue, mean, factor)
    if kind == SATURATE:
        gray = _gray(red, green, blue)
        red = _blend(red, gray, factor)
        green = _blend(green, gray, factor)
        blue = _blend(blue, gray, factor)
    if kind == TURN:
        red, green, blue = _turned(red, green, blue, factor)
    return red, green, blue


@triton.jit
def _loaded(images, inside, sample, pixel, plane):
    """The pixels that are inside; their red, green and blue."""
    shown = tl.load(inside + sample * plane + pixel, mask=pixel < plane, other=0).to(tl.int32) > 0
    source = images + sample * 3 * plane + pixel
    red = tl.load(source, mask=shown, other=0.0)
    green = tl.load(source + plane, mask=shown, other=0.0)
    blue = tl.load(source + 2 * plane, mask=shown, other=0.0)
    return shown, red, green, blue


@triton.jit
def _sum_gray(images, inside, kinds, factors, sums, counts, plane, COUNT: tl.constexpr):
    """The grey before CONTRAST of the pixels inside, and their number: float32 (B, blocks)."""
    sample, pixel = block(plane, BLOCK)
    shown, red, green, blue = _loaded(images, inside, sample, pixel, plane)
    before = 1
    for k in tl.static_range(COUNT):
        kind = tl.load(kinds + sample * COUNT + k).to(tl.int32)
        before = tl.where(kind == CONTRASTED, 0, before)
        kind = tl.where(before == 1, kind, NOTHING)
        factor = tl.load(factors + sample * COUNT + k)
        red, green, blue = _operated(red, green, blue, kind, factor, 0.0)
    number = tl.program_id(0)
    tl.store(sums + number, tl.sum(tl.where(shown, _gray(red, green, blue), 0.0), 0))
    tl.store(counts + number, tl.sum(shown.to(tl.float32), 0))


@triton.jit
def _adjust(images, inside, kinds, factors, means, normal, out, plane, COUNT: tl.constexpr):
    """Change colours and normalise."""
    sample, pixel = block(plane, BLOCK)
    shown, red, green, blue = _loaded(images, inside, sample, pixel, plane)
    mean = tl.load(means + sample)
    for k in tl.static_range(COUNT):
        kind = tl.load(kinds + sample * COUNT + k).to(tl.int32)
        factor = tl.load(factors + sample * COUNT + k)
        red, green, blue = _operated(red, green, blue, kind, factor, mean)
    target = out + sample * 3 * plane + pixel
    store_channels(target, plane, red, green, blue, pixel < plane, shown, normal)


def adjust_colors(
    images: Tensor,
    inside: Tensor,
    change: ColorChange,
    normal: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Change colours, normalise and cast, as `transforms.images.colors` does.

    Sums for the grey mean are added in another order.

    Args:
        images: float32 (B, 3, H, W), 0 to 255, contiguous; overwritten if `dtype` is float32.
        inside: bool (B, H, W), False for padding, which becomes 0.
        change: what is done, on the device of the images.
        normal: float32 (2, 3): mean and std of R, G, B; std above 0.
        dtype: type of the result, one of `backends.FLOATS`; float32 for any other.

    Returns:
        (B, 3, H, W).
    """
    kind = dtype if dtype in FLOATS else torch.float32
    out = images if kind == torch.float32 else torch.empty_like(images, dtype=kind)
    if not out.numel():
        return out
    samples, _, height, width = images.shape
    plane = height * width
    inside = inside.contiguous().view(torch.uint8)
    kinds = change.kinds.contiguous()
    factors = change.factors.contiguous()
    count = kinds.shape[1]
    blocks = triton.cdiv(plane, BLOCK.value)
    grid = (samples * blocks,)
    means = factors[:, 0].contiguous()  # any finite numbers: without contrast they do not count
    if change.has_contrast:
        sums = torch.empty((samples, blocks), dtype=torch.float32, device=images.device)
        counts = torch.empty_like(sums)
        _sum_gray[grid](
            images, inside, kinds, factors, sums, counts, plane, COUNT=count, enable_fp_fusion=False
        )
        means = sums.sum(1) / counts.sum(1).clamp(min=1)
    _adjust[grid](
        images,
        inside,
        kinds,
        factors,
        means,
        normal.contiguous(),
        out,
        plane,
        COUNT=count,
        enable_fp_fusion=False,
    )
    return out
