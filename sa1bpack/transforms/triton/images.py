"""Images: planes to RGB; images sampled under maps, normalised and cast in one pass.

The rules and the order of all operations are those of `sa1bpack.pixels`: a triangle filter per
axis. Under axis-aligned maps the filters of all rows and columns are computed first, in float64, by
a kernel of their own. A pixel of the output then takes its k x l pixels of the image, with no image
in between: where an image is reduced, the output has fewer pixels in the same proportion as each
has more to take. Under affine maps, each pixel has filters of its own.

What a program must know of its sample is one row of numbers, float64, or of whole numbers, int64.
"""

# An annotation of a kernel's argument instructs Triton's compiler: they are not for type checkers.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sa1bpack.transforms.backends import FLOATS
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.images.resample import Sampling, most_taps, supports
from sa1bpack.transforms.maps import AxisMaps

BLOCK = tl.constexpr(128)  # filters of a program
PLANE_BLOCK = tl.constexpr(512)  # pixels of a program that converts planes
# Pixels of a program that samples.
ROWS = tl.constexpr(16)
COLUMNS = tl.constexpr(64)
# Under affine maps: two pixels for each thread of 8 warps, whose numbers fit into its registers.
AFFINE_ROWS = tl.constexpr(8)
AFFINE_WARPS = 8
UNIT = tl.constexpr(2.0**-32)  # of positions, in pixels
FAR = tl.constexpr(2.0**29)

# Numbers of a sample under an axis-aligned map: scale and offset, x and y each; height and width of
# the image; rows and columns of the canvas that it covers; mean and std of R, G, B.
SIZE = tl.constexpr(4)
KEEP = tl.constexpr(6)
NORMAL = tl.constexpr(8)
NUMBERS = tl.constexpr(14)
# Under an affine map: half the width of the filters, x and y; mean and std.
AFFINE_NORMAL = tl.constexpr(2)
AFFINE_NUMBERS = tl.constexpr(8)
# And whole numbers: those of `Frame.places`, height and width of the image.
STORED = tl.constexpr(12)
PLACES = tl.constexpr(14)


# Programs of all samples are on one axis of the launch: the others have 65,535 at most.


@triton.jit
def block(count, BLOCK: tl.constexpr):
    """The sample of a program, int64, and the numbers of its block, int32 (BLOCK,), of 0..count."""
    blocks = tl.cdiv(count, BLOCK)
    numbers = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    return (tl.program_id(0) // blocks).to(tl.int64), numbers


@triton.jit
def tile(height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The image or mask of a program, and the rows and columns of its tile.

    They are int64, int32 (ROWS,) and int32 (COLUMNS,).
    """
    across = tl.cdiv(width, COLUMNS)
    tiles = tl.cdiv(height, ROWS) * across
    number = tl.program_id(0) % tiles
    i = number // across * ROWS + tl.arange(0, ROWS)
    j = number % across * COLUMNS + tl.arange(0, COLUMNS)
    return (tl.program_id(0) // tiles).to(tl.int64), i, j


# ----------------------------------------------------------------------------------------- planes


@triton.jit
def _chroma(plane, near, far, column, other, odd, half, inside):
    """Chroma of pixels, minus 128: 3/4 of the nearest row and column, 1/4 of the next."""
    nearest = 3 * tl.load(plane + near * half + column, mask=inside, other=0).to(tl.int32)
    nearest += tl.load(plane + far * half + column, mask=inside, other=0).to(tl.int32)
    beside = 3 * tl.load(plane + near * half + other, mask=inside, other=0).to(tl.int32)
    beside += tl.load(plane + far * half + other, mask=inside, other=0).to(tl.int32)
    return ((3 * nearest + beside + 8 - odd) >> 4) - 128


@triton.jit
def _to_byte(value):
    return tl.minimum(tl.maximum(value, 0), 255).to(tl.uint8)


@triton.jit(do_not_specialize=["rows", "columns"])
def _convert(planes, stored, out, rows, columns):
    sample, pixel = block(rows * columns, PLANE_BLOCK)
    i = pixel // columns
    j = pixel % columns
    # Whatever the sizes are, nothing outside the canvas is read.
    height = tl.minimum(tl.load(stored + sample * 2).to(tl.int32), rows)
    width = tl.minimum(tl.load(stored + sample * 2 + 1).to(tl.int32), columns)
    inside = (i < height) & (j < width)

    half = columns // 2
    chroma = half * (rows // 2)
    near = i // 2
    column = j // 2
    far = tl.minimum(tl.maximum(near + 2 * (i % 2) - 1, 0), (height + 1) // 2 - 1)
    other = tl.minimum(tl.maximum(column + 2 * (j % 2) - 1, 0), (width + 1) // 2 - 1)
    luma = planes + sample * (rows * columns + 2 * chroma)
    blue_plane = luma + rows * columns
    y = tl.load(luma + pixel, mask=inside, other=0).to(tl.int32)
    blue = _chroma(blue_plane, near, far, column, other, j % 2, half, inside)
    red = _chroma(blue_plane + chroma, near, far, column, other, j % 2, half, inside)

    target = out + sample * rows * columns * 3 + pixel * 3
    canvas = pixel < rows * columns
    r = _to_byte(y + ((91881 * red + 32768) >> 16))
    g = _to_byte(y + ((-22554 * blue - 46802 * red + 32768) >> 16))
    b = _to_byte(y + ((116130 * blue + 32768) >> 16))
    tl.store(target, tl.where(inside, r, 0), mask=canvas)
    tl.store(target + 1, tl.where(inside, g, 0), mask=canvas)
    tl.store(target + 2, tl.where(inside, b, 0), mask=canvas)


def planes_to_rgb(planes: Tensor, stored: Tensor) -> Tensor:
    """Convert canvases, by the formulas of `sa1bpack.pixels.yuv420`.

    Args:
        planes: uint8 (B, H * 3 / 2, W), H and W even, up to 16384.
        stored: integers (B, 2), height and width of the images.

    Returns:
        uint8 (B, H, W, 3), contiguous; zero beyond `stored`.
    """
    samples = len(planes)
    rows = planes.shape[1] * 2 // 3
    columns = planes.shape[2]
    out = torch.empty((samples, rows, columns, 3), dtype=torch.uint8, device=planes.device)
    if samples:
        blocks = triton.cdiv(rows * columns, PLANE_BLOCK.value)
        _convert[(samples * blocks,)](planes.contiguous(), stored.contiguous(), out, rows, columns)
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
def store_channels(target, plane, red, green, blue, on_canvas, inside, normal):
    """Write the three channels, `plane` apart."""
    _store_channel(target, red, on_canvas, inside, normal)
    _store_channel(target + plane, green, on_canvas, inside, normal + 1)
    _store_channel(target + 2 * plane, blue, on_canvas, inside, normal + 2)


@triton.jit
def _weight(center, pixel, high, support):
    """The weights of a pixel for each output position, before normalisation. All float64."""
    weight = 1 - tl.abs(pixel.to(tl.float64) + 0.5 - center) / support
    return tl.where(pixel < high, weight, 0.0)


@triton.jit
def _range(center, support, length):
    """A position in pixels, and the first pixel under the filter and the one after the last."""
    center = tl.minimum(tl.maximum(center, -FAR), FAR)  # beyond any image, still whole numbers
    last = length.to(tl.float64)
    low = tl.minimum(tl.maximum(tl.ceil(center - support - 0.5), 0), last).to(tl.int32)
    high = tl.maximum(tl.minimum(tl.floor(center + support - 0.5) + 1, last), 0).to(tl.int32)
    # A pixel at the very end of the filter has no weight.
    low += ((low < high) & (tl.abs(low.to(tl.float64) + 0.5 - center) >= support)).to(tl.int32)
    high -= ((low < high) & (tl.abs(high.to(tl.float64) - 0.5 - center) >= support)).to(tl.int32)
    return center, low, high


@triton.jit
def _share(center, low, k, high, support, total):
    """The weights of pixel k under each filter."""
    return (_weight(center, low + k, high, support) / total).to(tl.float32)


@triton.jit
def _total(center, low, high, support, taps):
    """The sum of the weights of each filter; 1 if it reaches no pixel."""
    total = center * 0
    for k in range(taps):
        total += _weight(center, low + k, high, support)
    return tl.where(total > 0, total, 1.0)


@triton.jit(do_not_specialize=["width", "height", "taps"])
def _fill_taps(numbers, filters, width, height, taps):
    """Write the first pixel and the weights of filters; axis 0 is x, axis 1 is y.

    Args:
        numbers: address of float64 numbers, `NUMBERS` per sample.
        filters: float32 (B, 2, 1 + taps, max(width, height)), out: the first pixel, a whole number;
            weights.
    """
    sample, i = block(tl.maximum(width, height), BLOCK)
    axis = tl.program_id(1)
    on_canvas = i < tl.where(axis == 0, width, height)
    of = numbers + sample * NUMBERS + axis
    step = tl.load(of)
    length = tl.load(of - axis + SIZE + 1 - axis).to(tl.int32)
    support = tl.minimum(tl.maximum(tl.abs(step), 1.0), FAR)
    center, low, high = _range(step * (i.to(tl.float64) + 0.5) + tl.load(of + 2), support, length)

    count = tl.maximum(width, height)
    target = filters + (sample * 2 + axis) * (1 + taps) * count + i
    tl.store(target, tl.maximum(tl.minimum(low, length - 1), 0).to(tl.float32), mask=on_canvas)
    total = _total(center, low, high, support, taps)
    for k in range(taps):
        share = _share(center, low, k, high, support, total)
        tl.store(target + (1 + k) * count, share, mask=on_canvas)


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


@triton.jit(do_not_specialize=["image_rows", "image_columns", "height", "taps"])
def _sample(images, numbers, filters, out, image_rows, image_columns, width, height, taps):
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
    image = images + sample * image_rows * image_columns * 3
    x_taps = _taps_of(of, taps)
    y_taps = _taps_of(of + 1, taps)
    x_taps = tl.where((tl.min(i, 0) < rows) & (tl.min(j, 0) < columns), x_taps, 0)
    zero = tl.zeros((ROWS, COLUMNS), tl.float32)
    red = zero
    green = zero
    blue = zero
    for k in range(x_taps):
        # A filter may reach beyond the image, without weight.
        x = tl.minimum(x0 + k, image_columns - 1)
        a = tl.load(x_filters + (1 + k) * count, mask=j < width, other=0.0)[None, :]
        r = zero
        g = zero
        b = zero
        for m in range(y_taps):
            y = tl.minimum(y0 + m, image_rows - 1)
            c = tl.load(y_filters + (1 + m) * count, mask=i < height, other=0.0)[:, None]
            pixels = image + (y[:, None] * image_columns + x[None, :]) * 3
            r, g, b = add_pixels(c, pixels, inside, r, g, b)
        red += a * r
        green += a * g
        blue += a * b
    plane = height * width
    target = out + sample * 3 * plane + i[:, None] * width + j[None, :]
    store_channels(target, plane, red, green, blue, on_canvas, inside, of + NORMAL)


@triton.jit
def stepped(steps, row, column):
    """x and y, int64, by six steps at an address, see `maps.positions`."""
    x = tl.load(steps) * column + (tl.load(steps + 1) * row + tl.load(steps + 2))
    y = tl.load(steps + 3) * column + (tl.load(steps + 4) * row + tl.load(steps + 5))
    return x, y


@triton.jit
def locate(places, i, j):
    """The x and y of cells in the stored image, int64, and whether they show it.

    By one row, at an address, of `Frame.places`.
    """
    x, y = stepped(places + 2, i.to(tl.int64)[:, None], j.to(tl.int64)[None, :])
    shown = (i < tl.load(places))[:, None] & (j < tl.load(places + 1))[None, :]
    shown &= (x >= tl.load(places + 8)) & (x < tl.load(places + 10))
    shown &= (y >= tl.load(places + 9)) & (y < tl.load(places + 11))
    return x, y, shown


@triton.jit
def _offset(low, k, length, stride):
    """Bytes to pixel k under each filter, within the image whatever its size."""
    return tl.maximum(tl.minimum(low + k, length - 1), 0) * stride


@triton.jit
def _affine_filters(position, support, length, taps):
    """The filters of an axis: centres, first pixels, ends, and the sums of their weights."""
    center, low, high = _range(position.to(tl.float64) * UNIT, support, length)
    return center, low, high, _total(center, low, high, support, taps)


@triton.jit
def _affine_taps(support, taps, any_shown):
    """The number of pixels that filters of an axis can have; 0 if nothing is shown."""
    return tl.minimum(tl.ceil(2 * support).to(tl.int32), taps) * any_shown


@triton.jit(do_not_specialize=["image_rows", "image_columns", "height", "taps"])
def _sample_affine(images, places, numbers, out, image_rows, image_columns, width, height, taps):
    sample, i, j = tile(height, width, AFFINE_ROWS, COLUMNS)
    places += sample * PLACES
    numbers += sample * AFFINE_NUMBERS
    on_canvas = (i < height)[:, None] & (j < width)[None, :]
    x, y, inside = locate(places, i, j)
    inside &= on_canvas

    images += sample * image_rows * image_columns * 3
    rows = tl.maximum(tl.minimum(tl.load(places + STORED), image_rows), 0).to(tl.int32)
    columns = tl.maximum(tl.minimum(tl.load(places + STORED + 1), image_columns), 0).to(tl.int32)
    x_support = tl.load(numbers)
    y_support = tl.load(numbers + 1)
    any_shown = tl.max(tl.max(inside.to(tl.int32), 1), 0)
    x_taps = _affine_taps(x_support, taps, any_shown)
    y_taps = _affine_taps(y_support, taps, any_shown)
    x, x_low, x_high, x_total = _affine_filters(x, x_support, columns, x_taps)
    y, y_low, y_high, y_total = _affine_filters(y, y_support, rows, y_taps)
    zero = tl.zeros((AFFINE_ROWS, COLUMNS), tl.float32)
    red = zero
    green = zero
    blue = zero
    # Every filter has two pixels or more. A map that does not reduce has no more than these.
    c_0 = _share(y, y_low, 0, y_high, y_support, y_total)
    c_1 = _share(y, y_low, 1, y_high, y_support, y_total)
    row_0 = _offset(y_low, 0, rows, image_columns * 3)
    row_1 = _offset(y_low, 1, rows, image_columns * 3)
    for k in range(x_taps):
        a = _share(x, x_low, k, x_high, x_support, x_total)
        pixels = images + _offset(x_low, k, columns, 3)
        r, g, b = add_pixels(c_0, pixels + row_0, inside, zero, zero, zero)
        r, g, b = add_pixels(c_1, pixels + row_1, inside, r, g, b)
        for m in range(2, y_taps):
            c = _share(y, y_low, m, y_high, y_support, y_total)
            row_m = _offset(y_low, m, rows, image_columns * 3)
            r, g, b = add_pixels(c, pixels + row_m, inside, r, g, b)
        red += a * r
        green += a * g
        blue += a * b
    plane = height * width
    target = out + sample * 3 * plane + i[:, None] * width + j[None, :]
    store_channels(target, plane, red, green, blue, on_canvas, inside, numbers + AFFINE_NORMAL)


def sample_images(sampling: Sampling, dtype: torch.dtype) -> Tensor:
    """Sample, normalise and cast images.

    Args:
        sampling: the images, and how they are sampled.
        dtype: type of the result, one of `backends.FLOATS`; float32 for any other.

    Returns:
        (B, 3, H, W), zero outside the images.
    """
    images = sampling.images
    kind = dtype if dtype in FLOATS else torch.float32
    shape = (len(images), 3, *sampling.frame.canvas)
    out = torch.empty(shape, dtype=kind, device=images.device)
    if not out.numel():
        return out
    if isinstance(sampling.frame.maps, AxisMaps):
        _launch_upright(sampling, out)
    else:
        _launch_affine(sampling, out)
    return out


def _launch_upright(sampling: Sampling, out: Tensor) -> None:
    """Fill `out` by axis-aligned maps."""
    frame = sampling.frame
    images = sampling.images
    samples, image_rows, image_columns = images.shape[:3]
    height, width = frame.canvas
    keep = frame.kept(frame.canvas)
    maps = frame.maps
    assert isinstance(maps, AxisMaps)
    columns = [maps.scale, maps.offset, sampling.stored, keep, _normals(sampling)]
    [numbers] = sent([torch.cat(columns, 1)], images.device)
    taps = most_taps(sampling.shrinks, max(image_rows, image_columns))
    count = max(height, width)
    filters = torch.empty((samples, 2, 1 + taps, count), dtype=torch.float32, device=images.device)
    _fill_taps[(samples * triton.cdiv(count, BLOCK.value), 2)](
        numbers, filters, width, height, taps, enable_fp_fusion=False
    )
    tiles = triton.cdiv(height, ROWS.value) * triton.cdiv(width, COLUMNS.value)
    _sample[(samples * tiles,)](
        images.contiguous(),
        numbers,
        filters,
        out,
        image_rows,
        image_columns,
        width,
        height,
        taps,
        enable_fp_fusion=False,
    )


def _launch_affine(sampling: Sampling, out: Tensor) -> None:
    """Fill `out` by maps that may rotate or shear."""
    frame = sampling.frame
    images = sampling.images
    samples, image_rows, image_columns = images.shape[:3]
    height, width = frame.canvas
    numbers = torch.cat([supports(frame.maps, sampling.shrinks), _normals(sampling)], 1)
    places = torch.cat([frame.places(frame.canvas), sampling.stored], 1)
    places, numbers = sent([places, numbers], images.device)
    tiles = triton.cdiv(height, AFFINE_ROWS.value) * triton.cdiv(width, COLUMNS.value)
    taps = most_taps(sampling.shrinks, max(image_rows, image_columns))
    _sample_affine[(samples * tiles,)](
        images.contiguous(),
        places,
        numbers,
        out,
        image_rows,
        image_columns,
        width,
        height,
        taps,
        num_warps=AFFINE_WARPS,
        enable_fp_fusion=False,
    )


def _normals(sampling: Sampling) -> Tensor:
    """float32 (B, 6): mean and std of R, G, B, for each sample."""
    normal = sampling.normal.on(sampling.stored.device)
    return normal.flatten().expand(len(sampling.stored), -1)
