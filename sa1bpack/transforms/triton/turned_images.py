"""Images under maps that may rotate: sampled, normalised and cast in one pass over the output.

The rule and the order of all operations are those of `sa1bpack.pixels.turn`: positions in whole
numbers, weights in float64 before they are rounded, sums in float32.
"""

from math import ceil

import torch
import triton
import triton.language as tl

from sa1bpack.transforms.triton.images import _store_pixels, _weight

ROWS, COLUMNS = 8, 64  # pixels of a program
WARPS = 8  # two pixels for each thread, whose numbers then fit into its registers
UNIT = tl.constexpr(2.0**-32)  # of positions, in pixels
FAR = tl.constexpr(2.0**29)


@triton.jit
def _range(position, support, length):
    """Position in pixels, and the first pixel under the filter and the one after the last."""
    at = position.to(tl.float64) * UNIT
    at = tl.minimum(tl.maximum(at, -FAR), FAR)
    last = length.to(tl.float64)
    low = tl.minimum(tl.maximum(tl.ceil(at - support - 0.5), 0), last).to(tl.int32)
    high = tl.maximum(tl.minimum(tl.floor(at + support - 0.5) + 1, last), 0).to(tl.int32)
    # A pixel at the very end of the filter has no weight.
    low += ((low < high) & (tl.abs(low.to(tl.float64) + 0.5 - at) >= support)).to(tl.int32)
    high -= ((low < high) & (tl.abs(high.to(tl.float64) - 0.5 - at) >= support)).to(tl.int32)
    return at, low, high


@triton.jit
def _share(at, low, k, high, support, total):
    """The weights of pixel k under each filter."""
    return (_weight(at, low + k, high, support) / total).to(tl.float32)


@triton.jit
def _offset(low, k, length, stride):
    """Bytes to pixel k under each filter, within the image whatever its size."""
    return tl.maximum(tl.minimum(low + k, length - 1), 0) * stride


@triton.jit
def _add(c, pixels, inside, r, g, b):
    """Add pixels of weight c to a column's sums."""
    r += c * tl.load(pixels, mask=inside, other=0).to(tl.float32)
    g += c * tl.load(pixels + 1, mask=inside, other=0).to(tl.float32)
    b += c * tl.load(pixels + 2, mask=inside, other=0).to(tl.float32)
    return r, g, b


@triton.jit
def _total(at, low, high, support, taps):
    total = at * 0
    for k in range(taps):
        total += _weight(at, low + k, high, support)
    return tl.where(total > 0, total, 1.0)


@triton.jit(do_not_specialize=["side", "stored_stride", "height", "width", "taps"])
def _turn(
    images,
    steps,
    support,
    window,
    stored,
    stored_stride,
    keep,
    out,
    side,
    height,
    width,
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
    on_canvas = (i < height)[:, None] & (j < width)[None, :]
    inside = on_canvas & (i < tl.load(keep + sample * 2))[:, None]
    inside &= (j < tl.load(keep + sample * 2 + 1))[None, :]

    of = steps + sample * 6
    row, column = i.to(tl.int64)[:, None], j.to(tl.int64)[None, :]
    x = tl.load(of) * column + (tl.load(of + 1) * row + tl.load(of + 2))
    y = tl.load(of + 3) * column + (tl.load(of + 4) * row + tl.load(of + 5))
    edges = window + sample * 4
    inside &= (x >= tl.load(edges)) & (x < tl.load(edges + 2))
    inside &= (y >= tl.load(edges + 1)) & (y < tl.load(edges + 3))

    image = images + sample * side * side * 3
    rows = tl.load(stored + sample * stored_stride).to(tl.int64)
    columns = tl.load(stored + sample * stored_stride + 1).to(tl.int64)
    rows = tl.maximum(tl.minimum(rows, side), 0).to(tl.int32)
    columns = tl.maximum(tl.minimum(columns, side), 0).to(tl.int32)
    x_support, y_support = tl.load(support + sample * 2), tl.load(support + sample * 2 + 1)
    x_at, x_low, x_high = _range(x, x_support, columns)
    y_at, y_low, y_high = _range(y, y_support, rows)
    shown = tl.max(inside.to(tl.int32), 1)
    any_shown = tl.max(shown, 0)
    x_taps = tl.minimum(tl.ceil(2 * x_support).to(tl.int32), taps) * any_shown
    y_taps = tl.minimum(tl.ceil(2 * y_support).to(tl.int32), taps) * any_shown
    x_total = _total(x_at, x_low, x_high, x_support, x_taps)
    y_total = _total(y_at, y_low, y_high, y_support, y_taps)
    red = tl.zeros((ROWS, COLUMNS), tl.float32)
    green = tl.zeros((ROWS, COLUMNS), tl.float32)
    blue = tl.zeros((ROWS, COLUMNS), tl.float32)
    # Every filter has two pixels or more. A turn that does not reduce has no more than these.
    c_0 = _share(y_at, y_low, 0, y_high, y_support, y_total)
    c_1 = _share(y_at, y_low, 1, y_high, y_support, y_total)
    row_0, row_1 = _offset(y_low, 0, rows, side * 3), _offset(y_low, 1, rows, side * 3)
    for k in range(x_taps):
        a = _share(x_at, x_low, k, x_high, x_support, x_total)
        pixels = image + _offset(x_low, k, columns, 3)
        r = tl.zeros((ROWS, COLUMNS), tl.float32)
        g = tl.zeros((ROWS, COLUMNS), tl.float32)
        b = tl.zeros((ROWS, COLUMNS), tl.float32)
        r, g, b = _add(c_0, pixels + row_0, inside, r, g, b)
        r, g, b = _add(c_1, pixels + row_1, inside, r, g, b)
        for m in range(2, y_taps):
            c = _share(y_at, y_low, m, y_high, y_support, y_total)
            r, g, b = _add(c, pixels + _offset(y_low, m, rows, side * 3), inside, r, g, b)
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


def turn_images(
    images: torch.Tensor,
    steps: torch.Tensor,
    support: torch.Tensor,
    window: torch.Tensor,
    stored: torch.Tensor,
    keep: torch.Tensor,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    shrinks: float,
    out: torch.Tensor,
) -> None:
    """Sample, normalise and cast images.

    images   uint8 (B, S, S, 3), contiguous, S up to 16384
    steps    int64 (B, 2, 3), see `geometry.frame.positions`: from the canvas to stored coordinates
    support  float64 (B, 2), x and y: half the width of the filters, 1 or more
    window   int64 (B, 4), in units of steps: x0, y0, x1, y1; pixels outside become 0
    stored   integers (B, 2): height and width of the stored images, the two adjacent
    keep     int64 (B, 2): rows and columns of the canvas that images may cover; others become 0
    mean     of R, G, B, numbers that are exact in float32; std above 0
    shrinks  no support is larger
    out      (B, 3, H, W) float32, float16 or bfloat16, contiguous
    """
    (samples, side), (height, width) = images.shape[:2], out.shape[2:]
    tiles = triton.cdiv(height, ROWS) * triton.cdiv(width, COLUMNS)
    _turn[(tiles, samples)](
        images,
        steps.contiguous(),
        support.contiguous(),
        window.contiguous(),
        stored,
        stored.stride(0),
        keep,
        out,
        side,
        height,
        width,
        ceil(2 * max(shrinks, 1.0)),
        *mean,
        *std,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
