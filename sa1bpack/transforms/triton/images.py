"""Images: planes to RGB; images sampled under maps, normalised and cast in one pass; colours.

The rules and the order of all operations are those of `sa1bpack.pixels`: a triangle filter per
axis. Under axis-aligned maps the filters of all rows and columns are computed first, in float64, by
a kernel of their own. A pixel of the output then takes its k x l pixels of the image, with no image
in between: where an image is reduced, the output has fewer pixels in the same proportion as each
has more to take. Under affine maps, each pixel has filters of its own.

What a program must know of its sample is one row of numbers, float64, or of whole numbers, int64.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from sa1bpack.transforms.backends import FLOATS
from sa1bpack.transforms.geometry import places as places_of
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.images.make import Sampling, most_taps, supports
from sa1bpack.transforms.images.steps import LUMA

BLOCK = tl.constexpr(128)  # filters of a program
PLANE_BLOCK = tl.constexpr(512)  # pixels of a program that converts planes
COLOR_BLOCK = tl.constexpr(1024)  # and of one that changes colours
# pixels of a program that samples
ROWS = tl.constexpr(16)
COLUMNS = tl.constexpr(64)
# Under affine maps: two pixels for each thread of 8 warps, whose numbers fit into its registers.
AFFINE_ROWS = tl.constexpr(8)
AFFINE_WARPS = 8
UNIT = tl.constexpr(2.0**-32)  # of positions, in pixels
FAR = tl.constexpr(2.0**29)

RED, GREEN, BLUE = (tl.constexpr(share) for share in LUMA)

# Numbers of a sample under an axis-aligned map: scale and offset, x and y each; height and width of
# the image; rows and columns of the canvas that it covers; mean and std of R, G, B.
NUMBERS, SIZE, KEEP, NORMAL = (tl.constexpr(n) for n in (14, 4, 6, 8))
# Under an affine map: half the width of the filters, x and y; mean and std. And whole numbers:
# those of `geometry.places`, height and width of the image.
AFFINE_NUMBERS = tl.constexpr(8)
AFFINE_NORMAL = tl.constexpr(2)
PLACES = tl.constexpr(14)
STORED = tl.constexpr(12)


# Programs of all samples are on one axis of the launch: the others have 65,535 at most.


@triton.jit
def _block(count, BLOCK: tl.constexpr):
    """The sample of a program, int64, and which of so many items are its own, int32 (BLOCK,)."""
    blocks = tl.cdiv(count, BLOCK)
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    return (tl.program_id(0) // blocks).to(tl.int64), place


@triton.jit
def tile(height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The image or mask of a program, and the rows and columns of its tile.

    They are int64, int32 (ROWS,) and int32 (COLUMNS,).
    """
    across = tl.cdiv(width, COLUMNS)
    tiles = tl.cdiv(height, ROWS) * across
    own = tl.program_id(0) % tiles
    i = own // across * ROWS + tl.arange(0, ROWS)
    j = own % across * COLUMNS + tl.arange(0, COLUMNS)
    return (tl.program_id(0) // tiles).to(tl.int64), i, j


# ----------------------------------------------------------------------------------------- planes


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


@triton.jit(do_not_specialize=["side"])
def _convert(planes, stored, out, side):
    sample, pixel = _block(side * side, PLANE_BLOCK)
    i = pixel // side
    j = pixel % side
    # Whatever the sizes are, nothing outside the canvas is read.
    height = tl.minimum(tl.load(stored + sample * 2).to(tl.int32), side)
    width = tl.minimum(tl.load(stored + sample * 2 + 1).to(tl.int32), side)
    inside = (i < height) & (j < width)

    half = side // 2
    near = i // 2
    column = j // 2
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


def planes_to_rgb(planes: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Convert canvases, by the formulas of `sa1bpack.pixels.yuv420`.

    Args:
        planes: uint8 (B, S * 3 / 2, S), S even, up to 16384.
        stored: integers (B, 2), height and width of the images.

    Returns:
        uint8 (B, S, S, 3), contiguous; zero beyond `stored`.
    """
    samples = len(planes)
    side = planes.shape[2]
    out = torch.empty((samples, side, side, 3), dtype=torch.uint8, device=planes.device)
    if samples:
        blocks = triton.cdiv(side * side, PLANE_BLOCK.value)
        _convert[(samples * blocks,)](planes.contiguous(), stored.contiguous(), out, side)
    return out


# --------------------------------------------------------------------------------------- sampling


@triton.jit
def _store_channel(target, value, on_canvas, inside, normal):
    """Write a channel, normalised; 0 outside.

    `normal` is the address of its mean; its std is 3 further.
    """
    mean = tl.load(normal).to(tl.float32)
    std = tl.load(normal + 3).to(tl.float32)
    value = tl.where(inside, tl.div_rn(value - mean, std), 0.0)
    tl.store(target, value.to(target.dtype.element_ty), mask=on_canvas)


@triton.jit
def _store(target, plane, red, green, blue, on_canvas, inside, normal):
    """Write the three channels, `plane` apart."""
    _store_channel(target, red, on_canvas, inside, normal)
    _store_channel(target + plane, green, on_canvas, inside, normal + 1)
    _store_channel(target + 2 * plane, blue, on_canvas, inside, normal + 2)


@triton.jit
def _weight(at, pixel, high, support):
    """The weights of a pixel for each output position, before normalisation. All float64."""
    weight = 1 - tl.abs(pixel.to(tl.float64) + 0.5 - at) / support
    return tl.where(pixel < high, weight, 0.0)


@triton.jit
def _range(at, support, length):
    """A position in pixels, and the first pixel under the filter and the one after the last."""
    at = tl.minimum(tl.maximum(at, -FAR), FAR)  # far beyond any image, and still whole numbers
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
def _total(at, low, high, support, taps):
    total = at * 0
    for k in range(taps):
        total += _weight(at, low + k, high, support)
    return tl.where(total > 0, total, 1.0)


@triton.jit(do_not_specialize=["width", "height", "taps"])
def _fill_taps(numbers, filters, width, height, taps):
    """Write the first pixel and the weights of filters; axis 0 is x, axis 1 is y.

    Args:
        numbers: address of float64 numbers, `NUMBERS` per sample.
        filters: float32 (B, 2, 1 + taps, max(width, height)), out: the first pixel, a whole number;
            weights.
    """
    sample, i = _block(tl.maximum(width, height), BLOCK)
    axis = tl.program_id(1)
    wanted = i < tl.where(axis == 0, width, height)
    of = numbers + sample * NUMBERS + axis
    step = tl.load(of)
    length = tl.load(of - axis + SIZE + 1 - axis).to(tl.int32)
    support = tl.minimum(tl.maximum(tl.abs(step), 1.0), FAR)
    at, low, high = _range(step * (i.to(tl.float64) + 0.5) + tl.load(of + 2), support, length)

    count = tl.maximum(width, height)
    target = filters + (sample * 2 + axis) * (1 + taps) * count + i
    tl.store(target, tl.maximum(tl.minimum(low, length - 1), 0).to(tl.float32), mask=wanted)
    total = _total(at, low, high, support, taps)
    for k in range(taps):
        tl.store(target + (1 + k) * count, _share(at, low, k, high, support, total), mask=wanted)


@triton.jit
def add_pixels(c, pixels, inside, r, g, b):
    """Add pixels of weight c to a column's sums."""
    r += c * tl.load(pixels, mask=inside, other=0).to(tl.float32)
    g += c * tl.load(pixels + 1, mask=inside, other=0).to(tl.float32)
    b += c * tl.load(pixels + 2, mask=inside, other=0).to(tl.float32)
    return r, g, b


@triton.jit
def _taps_of(scale, taps):
    """The number of pixels that filters of an axis can have: one where pixels are only copied.

    Copied pixels may be mirrored. `scale` is the address of the scale, two before that of the
    offset.
    """
    step = tl.abs(tl.load(scale))
    offset = tl.load(scale + 2)
    most = tl.ceil(2 * tl.minimum(tl.maximum(step, 1.0), FAR)).to(tl.int32)
    return tl.where((step == 1) & (tl.floor(offset) == offset), 1, tl.minimum(most, taps))


@triton.jit(do_not_specialize=["side", "height", "taps"])
def _sample(images, numbers, filters, out, side, width, height, taps):
    sample, i, j = tile(height, width, ROWS, COLUMNS)
    of = numbers + sample * NUMBERS
    count = tl.maximum(width, height)
    rows = tl.load(of + KEEP).to(tl.int32)
    columns = tl.load(of + KEEP + 1).to(tl.int32)
    on_canvas = (i < height)[:, None] & (j < width)[None, :]
    inside = on_canvas & (i < rows)[:, None] & (j < columns)[None, :]

    x_filters = filters + sample * 2 * (1 + taps) * count + j
    y_filters = filters + (sample * 2 + 1) * (1 + taps) * count + i
    x0 = tl.load(x_filters, mask=j < width, other=0).to(tl.int32)
    y0 = tl.load(y_filters, mask=i < height, other=0).to(tl.int32)
    image = images + sample * side * side * 3
    x_taps = _taps_of(of, taps)
    y_taps = _taps_of(of + 1, taps)
    x_taps = tl.where((tl.min(i, 0) < rows) & (tl.min(j, 0) < columns), x_taps, 0)
    zero = tl.zeros((ROWS, COLUMNS), tl.float32)
    red = zero
    green = zero
    blue = zero
    for k in range(x_taps):
        # A filter may reach beyond the image, without weight.
        x = tl.minimum(x0 + k, side - 1)
        a = tl.load(x_filters + (1 + k) * count, mask=j < width, other=0.0)[None, :]
        r = zero
        g = zero
        b = zero
        for m in range(y_taps):
            y = tl.minimum(y0 + m, side - 1)
            c = tl.load(y_filters + (1 + m) * count, mask=i < height, other=0.0)[:, None]
            r, g, b = add_pixels(c, image + (y[:, None] * side + x[None, :]) * 3, inside, r, g, b)
        red += a * r
        green += a * g
        blue += a * b
    plane = height * width
    target = out + sample * 3 * plane + i[:, None] * width + j[None, :]
    _store(target, plane, red, green, blue, on_canvas, inside, of + NORMAL)


@triton.jit
def stepped(steps, row, column):
    """x and y, int64, by six steps at an address, see `geometry.positions`."""
    x = tl.load(steps) * column + (tl.load(steps + 1) * row + tl.load(steps + 2))
    y = tl.load(steps + 3) * column + (tl.load(steps + 4) * row + tl.load(steps + 5))
    return x, y


@triton.jit
def locate(place, i, j):
    """The x and y of cells in the stored image, int64, and whether they show it.

    By one row, at an address, of `geometry.places`.
    """
    x, y = stepped(place + 2, i.to(tl.int64)[:, None], j.to(tl.int64)[None, :])
    shown = (i < tl.load(place))[:, None] & (j < tl.load(place + 1))[None, :]
    shown &= (x >= tl.load(place + 8)) & (x < tl.load(place + 10))
    shown &= (y >= tl.load(place + 9)) & (y < tl.load(place + 11))
    return x, y, shown


@triton.jit
def _offset(low, k, length, stride):
    """Bytes to pixel k under each filter, within the image whatever its size."""
    return tl.maximum(tl.minimum(low + k, length - 1), 0) * stride


@triton.jit(do_not_specialize=["side", "height", "taps"])
def _sample_affine(images, places, numbers, out, side, width, height, taps):
    sample, i, j = tile(height, width, AFFINE_ROWS, COLUMNS)
    place = places + sample * PLACES
    of = numbers + sample * AFFINE_NUMBERS
    on_canvas = (i < height)[:, None] & (j < width)[None, :]
    x, y, inside = locate(place, i, j)
    inside &= on_canvas

    image = images + sample * side * side * 3
    rows = tl.load(place + STORED)
    columns = tl.load(place + STORED + 1)
    rows = tl.maximum(tl.minimum(rows, side), 0).to(tl.int32)
    columns = tl.maximum(tl.minimum(columns, side), 0).to(tl.int32)
    x_support = tl.load(of)
    y_support = tl.load(of + 1)
    x_at, x_low, x_high = _range(x.to(tl.float64) * UNIT, x_support, columns)
    y_at, y_low, y_high = _range(y.to(tl.float64) * UNIT, y_support, rows)
    any_shown = tl.max(tl.max(inside.to(tl.int32), 1), 0)
    x_taps = tl.minimum(tl.ceil(2 * x_support).to(tl.int32), taps) * any_shown
    y_taps = tl.minimum(tl.ceil(2 * y_support).to(tl.int32), taps) * any_shown
    x_total = _total(x_at, x_low, x_high, x_support, x_taps)
    y_total = _total(y_at, y_low, y_high, y_support, y_taps)
    zero = tl.zeros((AFFINE_ROWS, COLUMNS), tl.float32)
    red = zero
    green = zero
    blue = zero
    # Every filter has two pixels or more. A map that does not reduce has no more than these.
    c_0 = _share(y_at, y_low, 0, y_high, y_support, y_total)
    c_1 = _share(y_at, y_low, 1, y_high, y_support, y_total)
    row_0 = _offset(y_low, 0, rows, side * 3)
    row_1 = _offset(y_low, 1, rows, side * 3)
    for k in range(x_taps):
        a = _share(x_at, x_low, k, x_high, x_support, x_total)
        pixels = image + _offset(x_low, k, columns, 3)
        r, g, b = add_pixels(c_0, pixels + row_0, inside, zero, zero, zero)
        r, g, b = add_pixels(c_1, pixels + row_1, inside, r, g, b)
        for m in range(2, y_taps):
            c = _share(y_at, y_low, m, y_high, y_support, y_total)
            r, g, b = add_pixels(c, pixels + _offset(y_low, m, rows, side * 3), inside, r, g, b)
        red += a * r
        green += a * g
        blue += a * b
    plane = height * width
    target = out + sample * 3 * plane + i[:, None] * width + j[None, :]
    _store(target, plane, red, green, blue, on_canvas, inside, of + AFFINE_NORMAL)


def sample_images(sampling: Sampling, dtype: torch.dtype) -> torch.Tensor:
    """Sample, normalise and cast images.

    Args:
        sampling: the images, and how they are sampled.
        dtype: type of the result, one of `backends.FLOATS`; float32 for any other.

    Returns:
        (B, 3, H, W), zero outside the images.
    """
    frame = sampling.frame
    stored = sampling.stored
    shrinks = sampling.shrinks
    (samples, side) = sampling.images.shape[:2]
    (height, width) = frame.canvas
    kind = dtype if dtype in FLOATS else torch.float32
    device = sampling.images.device
    out = torch.empty((samples, 3, height, width), dtype=kind, device=device)
    if not out.numel():
        return out
    images = sampling.images.contiguous()
    normals = sampling.normal.on(stored.device).flatten().expand(samples, -1)
    taps = most_taps(shrinks, side)
    rows = ROWS if frame.window is None else AFFINE_ROWS
    tiles = triton.cdiv(height, rows.value) * triton.cdiv(width, COLUMNS.value)
    grid = (samples * tiles,)
    if frame.window is not None:
        numbers = torch.cat([supports(frame.maps, shrinks), normals], 1)
        places = torch.cat([places_of(frame, frame.canvas), stored], 1)
        places, numbers = sent([places, numbers], device)
        _sample_affine[grid](
            *(images, places, numbers, out, side, width, height, taps),
            num_warps=AFFINE_WARPS,
            enable_fp_fusion=False,
        )
        return out
    keep = frame.kept(frame.canvas)
    numbers = torch.cat([frame.maps.scale, frame.maps.offset, stored, keep, normals], 1)
    [numbers] = sent([numbers], device)
    count = max(height, width)
    shape = samples, 2, 1 + taps, count
    filters = torch.empty(shape, dtype=torch.float32, device=device)
    _fill_taps[(samples * triton.cdiv(count, BLOCK.value), 2)](
        numbers, filters, width, height, taps, enable_fp_fusion=False
    )
    _sample[grid](images, numbers, filters, out, side, width, height, taps, enable_fp_fusion=False)
    return out


# ---------------------------------------------------------------------------------------- colours


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
def _brightened(images, inside, factors, sample, at, plane):
    """The pixels that are inside; their red, green and blue, brightened."""
    wanted = tl.load(inside + sample * plane + at, mask=at < plane, other=0).to(tl.int32) > 0
    place = images + sample * 3 * plane + at
    factor = tl.load(factors + sample * 4)
    red = _clip(tl.load(place, mask=wanted, other=0.0) * factor)
    green = _clip(tl.load(place + plane, mask=wanted, other=0.0) * factor)
    blue = _clip(tl.load(place + 2 * plane, mask=wanted, other=0.0) * factor)
    return wanted, red, green, blue


@triton.jit
def _sum_gray(images, inside, factors, sums, counts, plane):
    """The grey of the pixels inside, and their number, of each block: float32 (B, blocks)."""
    sample, at = _block(plane, COLOR_BLOCK)
    shown, red, green, blue = _brightened(images, inside, factors, sample, at, plane)
    place = tl.program_id(0)
    tl.store(sums + place, tl.sum(tl.where(shown, _gray(red, green, blue), 0.0), 0))
    tl.store(counts + place, tl.sum(shown.to(tl.float32), 0))


@triton.jit
def _hued(base, value, chroma, place: tl.constexpr):
    """One channel of a colour from its hue, in units of 60 degrees."""
    k = base + place
    k -= 6 * tl.floor(k / 6)
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(k, 4 - k), 0.0), 1.0)


@triton.jit
def _adjust(images, inside, factors, means, normal, out, plane, HUE: tl.constexpr):
    """Change colours and normalise. A factor of 1 changes nothing; a hue is rounded even by 0."""
    sample, at = _block(plane, COLOR_BLOCK)
    shown, red, green, blue = _brightened(images, inside, factors, sample, at, plane)
    of = factors + sample * 4
    mean = tl.load(means + sample)
    factor = tl.load(of + 1)
    red = _blend(red, mean, factor)
    green = _blend(green, mean, factor)
    blue = _blend(blue, mean, factor)
    gray = _gray(red, green, blue)
    factor = tl.load(of + 2)
    red = _blend(red, gray, factor)
    green = _blend(green, gray, factor)
    blue = _blend(blue, gray, factor)
    if HUE:
        value = tl.maximum(tl.maximum(red, green), blue)
        chroma = value - tl.minimum(tl.minimum(red, green), blue)
        # Hue in units of 60 degrees: 0 is red, 2 green, 4 blue. Without chroma it has no effect.
        ahead = tl.where(green == value, blue - red, red - green)
        ahead = tl.where(red == value, green - blue, ahead)
        sector = tl.where(red == value, 0.0, tl.where(green == value, 2.0, 4.0))
        base = sector + tl.div_rn(ahead, tl.maximum(chroma, 1e-6)) + 6 * tl.load(of + 3)
        red = _hued(base, value, chroma, 5)
        green = _hued(base, value, chroma, 3)
        blue = _hued(base, value, chroma, 1)
    target = out + sample * 3 * plane + at
    on_canvas = at < plane
    _store(target, plane, red, green, blue, on_canvas, shown, normal)


def adjust_colors(
    images: torch.Tensor,
    inside: torch.Tensor,
    factors: torch.Tensor,
    used: tuple[bool, bool, bool, bool],
    normal: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Change colours, normalise and cast, as `transforms.images.steps` does.

    Sums for the grey mean are added in another order.

    Args:
        images: float32 (B, 3, H, W), 0 to 255, contiguous; overwritten if `dtype` is float32.
        inside: bool (B, H, W), False for padding, which becomes 0.
        factors: float32 (B, 4), factors of brightness, contrast and saturation, and shift of the
            hue as a fraction of 360 degrees.
        used: which of the four may change anything.
        normal: float32 (2, 3): mean and std of R, G, B; std above 0.
        dtype: type of the result, one of `backends.FLOATS`; float32 for any other.

    Returns:
        (B, 3, H, W).
    """
    kind = dtype if dtype in FLOATS else torch.float32
    out = images if kind == torch.float32 else torch.empty_like(images, dtype=kind)
    if not out.numel():
        return out
    (samples, _, height, width) = images.shape
    device = images.device
    inside = inside.contiguous().view(torch.uint8)
    factors = factors.contiguous()
    blocks = triton.cdiv(height * width, COLOR_BLOCK.value)
    grid = (samples * blocks,)
    means = factors[:, 1].contiguous()  # any finite numbers: without contrast they do not count
    if used[1]:
        empty = partial(torch.empty, (samples, blocks), dtype=torch.float32, device=device)
        sums = empty()
        counts = empty()
        _sum_gray[grid](
            images, inside, factors, sums, counts, height * width, enable_fp_fusion=False
        )
        means = sums.sum(1) / counts.sum(1).clamp(min=1)
    given = images, inside, factors, means, normal.contiguous(), out, height * width
    _adjust[grid](*given, HUE=used[3], enable_fp_fusion=False)
    return out
