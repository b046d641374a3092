"""Colours of images: jittered, normalised and cast in one pass, after one for the grey mean.

The operations, and their order, are those of `transforms.images.color` and `normalize`; sums for
the grey mean are added in another order.
"""

import torch
import triton
import triton.language as tl

from sa1bpack.transforms.triton.images import _store_pixels

BLOCK = 1024  # pixels of a program


@triton.jit
def _clip(value):
    return tl.minimum(tl.maximum(value, 0.0), 255.0)


@triton.jit
def _gray(red, green, blue, red_luma, green_luma, blue_luma):
    return red_luma * red + green_luma * green + blue_luma * blue


@triton.jit
def _blend(value, other, factor):
    return _clip(value * factor + (1 - factor) * other)


@triton.jit
def _loaded(images, sample, at, plane, wanted, factor, BRIGHTNESS: tl.constexpr):
    """Red, green and blue, brightened."""
    place = images + sample * 3 * plane + at
    red = tl.load(place, mask=wanted, other=0.0)
    green = tl.load(place + plane, mask=wanted, other=0.0)
    blue = tl.load(place + 2 * plane, mask=wanted, other=0.0)
    if BRIGHTNESS:
        red, green, blue = _clip(red * factor), _clip(green * factor), _clip(blue * factor)
    return red, green, blue


@triton.jit(do_not_specialize=["plane"])
def _sum_gray(
    images,
    inside,
    factors,
    sums,
    counts,
    plane,
    red_luma,
    green_luma,
    blue_luma,
    BRIGHTNESS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The grey of the pixels inside, and their number, of each block: float32 (B, blocks)."""
    sample = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    shown = tl.load(inside + sample * plane + at, mask=at < plane, other=0).to(tl.int32) > 0
    factor = tl.load(factors + sample * 4)
    red, green, blue = _loaded(images, sample, at, plane, shown, factor, BRIGHTNESS)
    gray = _gray(red, green, blue, red_luma, green_luma, blue_luma)
    place = sample * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums + place, tl.sum(tl.where(shown, gray, 0.0), 0))
    tl.store(counts + place, tl.sum(shown.to(tl.float32), 0))


@triton.jit
def _hued(base, value, chroma, place: tl.constexpr):
    """One channel of a colour from its hue, in sixths of a turn."""
    k = base + place
    k -= 6 * tl.floor(k / 6)
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(k, 4 - k), 0.0), 1.0)


@triton.jit(do_not_specialize=["plane"])
def _adjust(
    images,
    inside,
    factors,
    means,
    out,
    plane,
    red_luma,
    green_luma,
    blue_luma,
    red_mean,
    green_mean,
    blue_mean,
    red_std,
    green_std,
    blue_std,
    BRIGHTNESS: tl.constexpr,
    CONTRAST: tl.constexpr,
    SATURATION: tl.constexpr,
    HUE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    on_canvas = at < plane
    shown = tl.load(inside + sample * plane + at, mask=on_canvas, other=0).to(tl.int32) > 0
    of = factors + sample * 4
    red, green, blue = _loaded(images, sample, at, plane, shown, tl.load(of), BRIGHTNESS)
    if CONTRAST:
        mean, factor = tl.load(means + sample), tl.load(of + 1)
        red, green, blue = (
            _blend(red, mean, factor),
            _blend(green, mean, factor),
            _blend(blue, mean, factor),
        )
    if SATURATION:
        gray, factor = _gray(red, green, blue, red_luma, green_luma, blue_luma), tl.load(of + 2)
        red, green, blue = (
            _blend(red, gray, factor),
            _blend(green, gray, factor),
            _blend(blue, gray, factor),
        )
    if HUE:
        value = tl.maximum(tl.maximum(red, green), blue)
        chroma = value - tl.minimum(tl.minimum(red, green), blue)
        # Hue in sixths of a turn: 0 is red, 2 green, 4 blue. Without chroma it has no effect.
        ahead = tl.where(green == value, blue - red, red - green)
        ahead = tl.where(red == value, green - blue, ahead)
        sector = tl.where(red == value, 0.0, tl.where(green == value, 2.0, 4.0))
        base = sector + tl.div_rn(ahead, tl.maximum(chroma, 1e-6)) + 6 * tl.load(of + 3)
        red, green, blue = (
            _hued(base, value, chroma, 5),
            _hued(base, value, chroma, 3),
            _hued(base, value, chroma, 1),
        )
    target = out + sample * 3 * plane + at
    _store_pixels(
        target,
        plane,
        on_canvas,
        shown,
        red,
        green,
        blue,
        red_mean,
        green_mean,
        blue_mean,
        red_std,
        green_std,
        blue_std,
    )


def adjust_colors(
    images: torch.Tensor,
    inside: torch.Tensor,
    factors: torch.Tensor,
    used: tuple[bool, bool, bool, bool],
    luma: tuple[float, float, float],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    out: torch.Tensor,
) -> None:
    """Change colours, normalise and cast.

    images   float32 (B, 3, H, W), 0 to 255, contiguous
    inside   bool (B, H, W), contiguous, false for padding, which becomes 0
    factors  float32 (B, 4), contiguous: of brightness, contrast and saturation, and turns of hue
    used     which of the four may change anything
    luma     of R, G, B
    mean     of R, G, B, numbers that are exact in float32; std above 0
    out      (B, 3, H, W) float32, float16 or bfloat16, contiguous; may be `images`
    """
    (samples, _, height, width), device = images.shape, images.device
    plane, inside = height * width, inside.view(torch.uint8)
    grid = triton.cdiv(plane, BLOCK), samples
    brightness, contrast, saturation, hue = used
    means = factors  # not read without contrast
    if contrast:
        sums, counts = (torch.empty(grid[::-1], device=device) for _ in range(2))
        _sum_gray[grid](
            images,
            inside,
            factors,
            sums,
            counts,
            plane,
            *luma,
            BRIGHTNESS=brightness,
            BLOCK=BLOCK,
            enable_fp_fusion=False,
        )
        means = sums.sum(1) / counts.sum(1).clamp(min=1)
    _adjust[grid](
        images,
        inside,
        factors,
        means,
        out,
        plane,
        *luma,
        *mean,
        *std,
        BRIGHTNESS=brightness,
        CONTRAST=contrast,
        SATURATION=saturation,
        HUE=hue,
        BLOCK=BLOCK,
        enable_fp_fusion=False,
    )
