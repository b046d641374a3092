"""Images under axis-aligned maps: sampled, normalised and cast in one pass over the output.

The rule and the order of all operations are those of `sa1bpack.pixels.resample`: a triangle filter
per axis. The filters of all rows and columns are computed first, in float64, by a kernel of their
own. A pixel of the output then takes its k x l pixels of the image, with no image in between: where
an image is reduced, the output has fewer pixels in the same proportion as each has more to take.
"""

from math import ceil

import torch
import triton
import triton.language as tl

from sa1bpack.transforms.geometry.affine import AxisMaps

MAX_BATCH = 65535  # samples: CUDA's limit for all but the first axis of a grid
BLOCK = 128  # filters of a program
ROWS, COLUMNS = 16, 64  # pixels of a program
FAR = tl.constexpr(2.0**29)


@triton.jit
def _weight(at, pixel, high, support):
    """The weights of a pixel for each output position, before normalisation. All float64."""
    weight = 1 - tl.abs(pixel.to(tl.float64) + 0.5 - at) / support
    return tl.where(pixel < high, weight, 0.0)


@triton.jit(do_not_specialize=["stored_stride", "width", "height", "count", "taps"])
def _fill_taps(
    scale,
    offset,
    stored,
    stored_stride,
    first,
    weights,
    width,
    height,
    count,
    taps,
    BLOCK: tl.constexpr,
):
    """The first pixel and the weights of filters; axis 0 is x, axis 1 is y.

    first    int32 (B, 2, count)
    weights  float32 (B, 2, taps, count)
    """
    sample, axis = tl.program_id(1).to(tl.int64), tl.program_id(2)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = i < tl.where(axis == 0, width, height)
    step = tl.load(scale + sample * 2 + axis)
    length = tl.load(stored + sample * stored_stride + 1 - axis).to(tl.int64)
    at = step * (i.to(tl.float64) + 0.5) + tl.load(offset + sample * 2 + axis)
    # Far beyond any image, and still a whole number.
    at = tl.minimum(tl.maximum(at, -FAR), FAR)
    support = tl.minimum(tl.maximum(tl.abs(step), 1.0), FAR)
    low = tl.maximum(tl.ceil(at - support - 0.5).to(tl.int64), 0)
    high = tl.minimum(tl.floor(at + support - 0.5).to(tl.int64) + 1, length)
    # A pixel at the very end of the filter has no weight.
    for _ in tl.static_range(2):
        low += ((low < high) & (tl.abs(low.to(tl.float64) + 0.5 - at) >= support)).to(tl.int64)
    for _ in tl.static_range(2):
        high -= ((low < high) & (tl.abs(high.to(tl.float64) - 0.5 - at) >= support)).to(tl.int64)

    place = sample * 2 + axis
    begin = tl.maximum(tl.minimum(low, length - 1), 0)
    tl.store(first + place * count + i, begin.to(tl.int32), mask=wanted)
    total = tl.zeros((BLOCK,), tl.float64)
    for k in range(taps):
        total += _weight(at, low + k, high, support)
    total = tl.where(total > 0, total, 1.0)
    for k in range(taps):
        weight = _weight(at, low + k, high, support) / total
        tl.store(weights + (place * taps + k) * count + i, weight.to(tl.float32), mask=wanted)


@triton.jit
def _taps_of(scale, sample, axis, taps):
    """How many pixels the filters of an axis can have."""
    support = tl.maximum(tl.abs(tl.load(scale + sample * 2 + axis)), 1.0)
    return tl.minimum(tl.ceil(2 * tl.minimum(support, FAR)).to(tl.int32), taps)


@triton.jit
def _normalise(value, mean, std, inside):
    return tl.where(inside, tl.div_rn(value - mean, std), 0.0)


@triton.jit
def _store_pixels(
    target,
    plane,
    on_canvas,
    inside,
    red,
    green,
    blue,
    red_mean,
    green_mean,
    blue_mean,
    red_std,
    green_std,
    blue_std,
):
    """Write normalised pixels to three planes, the first of which is at `target`; 0 outside."""
    kind = target.dtype.element_ty
    tl.store(target, _normalise(red, red_mean, red_std, inside).to(kind), mask=on_canvas)
    target += plane
    tl.store(target, _normalise(green, green_mean, green_std, inside).to(kind), mask=on_canvas)
    target += plane
    tl.store(target, _normalise(blue, blue_mean, blue_std, inside).to(kind), mask=on_canvas)


@triton.jit(do_not_specialize=["side", "height", "count", "taps"])
def _sample(
    images,
    scale,
    first,
    weights,
    keep,
    out,
    side,
    width,
    height,
    count,
    taps,
    red_mean,
    green_mean,
    blue_mean,
    red_std,
    green_std,
    blue_std,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(width, COLUMNS)
    top = tl.program_id(0) // across * ROWS
    left = tl.program_id(0) % across * COLUMNS
    i, j = top + tl.arange(0, ROWS), left + tl.arange(0, COLUMNS)
    rows = tl.load(keep + sample * 2)
    columns = tl.load(keep + sample * 2 + 1)
    on_canvas = (i < height)[:, None] & (j < width)[None, :]
    inside = on_canvas & (i < rows)[:, None] & (j < columns)[None, :]

    x_first, y_first = first + sample * 2 * count, first + (sample * 2 + 1) * count
    x_weights = weights + sample * 2 * taps * count
    y_weights = x_weights + taps * count
    x0 = tl.load(x_first + j, mask=j < width, other=0)
    y0 = tl.load(y_first + i, mask=i < height, other=0)
    image = images + sample * side * side * 3
    x_taps, y_taps = _taps_of(scale, sample, 0, taps), _taps_of(scale, sample, 1, taps)
    x_taps = tl.where((top < rows) & (left < columns), x_taps, 0)
    red = tl.zeros((ROWS, COLUMNS), tl.float32)
    green = tl.zeros((ROWS, COLUMNS), tl.float32)
    blue = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(x_taps):
        # A filter may reach beyond the image, without weight.
        x = tl.minimum(x0 + k, side - 1)
        a = tl.load(x_weights + k * count + j, mask=j < width, other=0.0)[None, :]
        r = tl.zeros((ROWS, COLUMNS), tl.float32)
        g = tl.zeros((ROWS, COLUMNS), tl.float32)
        b = tl.zeros((ROWS, COLUMNS), tl.float32)
        for m in range(y_taps):
            y = tl.minimum(y0 + m, side - 1)
            c = tl.load(y_weights + m * count + i, mask=i < height, other=0.0)[:, None]
            place = (y[:, None] * side + x[None, :]) * 3
            r += c * tl.load(image + place, mask=inside, other=0).to(tl.float32)
            g += c * tl.load(image + place + 1, mask=inside, other=0).to(tl.float32)
            b += c * tl.load(image + place + 2, mask=inside, other=0).to(tl.float32)
        red += a * r
        green += a * g
        blue += a * b
    plane = height * width
    target = out + sample * 3 * plane + i[:, None] * width + j[None, :]
    _store_pixels(
        target,
        plane,
        on_canvas,
        inside,
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


def sample_images(
    images: torch.Tensor,
    maps: AxisMaps,
    stored: torch.Tensor,
    keep: torch.Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    shrinks: float,
    out: torch.Tensor,
) -> None:
    """Sample, normalise and cast images.

    images   uint8 (B, S, S, 3), contiguous, S up to 16384
    maps     from the canvas to stored coordinates
    stored   integers (B, 2): height and width of the stored images, the two adjacent
    keep     int64 (B, 2): rows and columns of the canvas that the image covers; others become 0
    mean     of R, G, B, numbers that are exact in float32; std above 0
    shrinks  no map reduces an image by a larger factor
    out      (B, 3, H, W) float32, float16 or bfloat16, contiguous
    """
    (samples, side), (height, width) = images.shape[:2], out.shape[2:]
    scale, offset = maps.scale.contiguous(), maps.offset.contiguous()
    # Of the pixels k + 1/2 at less than s from a point there are at most ceil(2 s).
    taps, count = min(ceil(2 * max(shrinks, 1.0)), side), max(height, width)
    first = torch.empty((samples, 2, count), dtype=torch.int32, device=images.device)
    weights = torch.empty((samples, 2, taps, count), dtype=torch.float32, device=images.device)
    _fill_taps[(triton.cdiv(count, BLOCK), samples, 2)](
        scale,
        offset,
        stored,
        stored.stride(0),
        first,
        weights,
        width,
        height,
        count,
        taps,
        BLOCK=BLOCK,
        enable_fp_fusion=False,
    )
    tiles = triton.cdiv(height, ROWS) * triton.cdiv(width, COLUMNS)
    _sample[(tiles, samples)](
        images,
        scale,
        first,
        weights,
        keep,
        out,
        side,
        width,
        height,
        count,
        taps,
        *mean,
        *std,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        enable_fp_fusion=False,
    )
