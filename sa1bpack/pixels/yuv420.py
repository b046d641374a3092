"""RGB pixels to planes Y, Cb, Cr with chroma at half the size, and back.

Colours are those of JFIF: full-range BT.601, Y from 0 to 255, Cb and Cr around 128. The arithmetic
is that of libjpeg (`jccolor.c`, `jdcolor.c` and the h2v2 "fancy" upsampling of `jdsample.c`), in
units of 2**-16, so that every implementation can produce the same bytes; docs/format.md has the
formulas. A chroma sample is the mean of 2 x 2 pixels and lies in their middle (as in JPEG and
MPEG-1). If a side is odd, its last row or column is repeated.

This module uses numpy and numba only, so that readers, which never decode a JPEG, need no PIL.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir

from sa1bpack.kernels import intrinsic, memcpy, njit, types

PIXELS = 32  # per vector

WORD = types.uintp  # an address
BYTE, SHORT, INT = (ir.IntType(bits) for bits in (8, 16, 32))


def half(side: int) -> int:
    """Rows or columns of a chroma plane: half a side, rounded up."""
    return (side + 1) // 2


def yuv420_to_rgb(y: np.ndarray, cb: np.ndarray, cr: np.ndarray) -> np.ndarray:
    """Planes to (h, w, 3) uint8 RGB, as libjpeg decodes them.

    y is (h, w), cb and cr are (h / 2, w / 2), halves rounded up, all uint8, without the padding of
    a canvas, which would bleed into the image.
    """
    height, width = y.shape
    source = np.concatenate([plane.reshape(-1) for plane in (y, cb, cr)])
    rgb = np.empty((height, width, 3), np.uint8)
    planes_to_rgb(source, height, width, width, height, width, rgb.reshape(-1))
    return rgb


# ---------------------------------------------------------------------------------------- vectors
# Of LLVM, for loops that numba does not turn into any: its sums of small integers are int64, and
# bytes of several channels it loads and stores one by one. LLVM makes of them what the processor
# has. A row that is no multiple of a vector ends with one that overlaps the vector before it, so it
# must be at least as long as one: see `next_vector`.


def vector(kind: ir.Type, count: int = PIXELS) -> ir.VectorType:
    """The type of a vector of so many integers of a kind: BYTE, SHORT or INT."""
    return ir.VectorType(kind, count)


def every(kind: ir.Type, value: int) -> ir.Constant:
    """A vector of PIXELS times the same value."""
    return ir.Constant(vector(kind), [value] * PIXELS)


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, count: int = PIXELS) -> ir.Value:
    """A vector from any address."""
    return builder.load(builder.inttoptr(address, vector(kind, count).as_pointer()), align=1)


def store(builder: ir.IRBuilder, values: ir.Value, address: ir.Value) -> None:
    """Write a vector to any address."""
    builder.store(values, builder.inttoptr(address, values.type.as_pointer()), align=1)


def shuffled(
    builder: ir.IRBuilder, first: ir.Value, second: ir.Value, indices: Iterable[int]
) -> ir.Value:
    """A vector of these elements of the first vector, and from its length on, of the second."""
    indices = list(indices)
    return builder.shuffle_vector(first, second, ir.Constant(vector(INT, len(indices)), indices))


def interleaved(builder: ir.IRBuilder, *channels: ir.Value) -> ir.Value:
    """A vector of the elements of two or three channels, interleaved."""
    joined = range(2 * PIXELS)
    first = shuffled(builder, channels[0], channels[1], joined)
    last = shuffled(builder, channels[-1], channels[-1], joined)
    order = range(len(channels))
    positions = (channel * PIXELS + k for k in range(PIXELS) for channel in order)
    return shuffled(builder, first, last, positions)


@njit
def next_vector(k: int, count: int) -> int:
    """The start in a row of the vector after the one at `k`; `count` after the last one."""
    if k + PIXELS >= count:
        return count
    return min(k + PIXELS, count - PIXELS)


# ----------------------------------- rows to RGB, in vectors of 16-bit numbers; PIXELS or more long


def _scaled(builder: ir.IRBuilder, values: ir.Value, factor: int) -> ir.Value:
    """round(values * factor / 65536), half upwards: the upper halves of 32-bit products."""
    twice = builder.sext(builder.add(values, values), vector(INT))
    upper = builder.ashr(builder.mul(twice, every(INT, factor)), every(INT, 16))
    upper = builder.trunc(upper, vector(SHORT))
    return builder.ashr(builder.add(upper, every(SHORT, 1)), every(SHORT, 1))


def _green(builder: ir.IRBuilder, cb: ir.Value, cr: ir.Value) -> ir.Value:
    """round((-22554 cb - 46802 cr) / 65536) + cr, whose second factor has 16 bits."""
    cb, cr = (builder.sext(values, vector(INT)) for values in (cb, cr))
    total = builder.add(
        builder.mul(cb, every(INT, -22554)), builder.mul(cr, every(INT, 65536 - 46802))
    )
    total = builder.ashr(builder.add(total, every(INT, 32768)), every(INT, 16))
    return builder.trunc(total, vector(SHORT))


def _clamped(builder: ir.IRBuilder, values: ir.Value) -> ir.Value:
    """Bytes, 0 to 255."""
    for limit, order in (0, "<"), (255, ">"):
        bound = every(SHORT, limit)
        values = builder.select(builder.icmp_signed(order, values, bound), bound, values)
    return builder.trunc(values, vector(BYTE))


@intrinsic
def _sum(typingctx: Any, near: Any, far: Any, target: Any) -> Any:
    """3 near + far: uint8, uint8 to int16, PIXELS of them at addresses."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        near, far, target = arguments
        near, far = (builder.zext(load(builder, row, BYTE), vector(SHORT)) for row in (near, far))
        total = builder.add(builder.mul(near, every(SHORT, 3)), far)
        store(builder, total, target)
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD), generate


@intrinsic
def _spread(typingctx: Any, left: Any, middle: Any, right: Any, target: Any) -> Any:
    """Two columns of each element of `middle`: int16 at addresses, 2 PIXELS to `target`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        *sums, target = arguments
        left, middle, right = (load(builder, address, SHORT) for address in sums)
        nearest = builder.mul(middle, every(SHORT, 3))
        columns = []
        for following, rounding in (left, 8), (right, 7):
            total = builder.add(builder.add(nearest, following), every(SHORT, rounding))
            total = builder.lshr(total, every(SHORT, 4))
            columns.append(builder.sub(total, every(SHORT, 128)))
        store(builder, interleaved(builder, *columns), target)
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD, WORD), generate


@intrinsic
def _convert(typingctx: Any, light: Any, cb: Any, cr: Any, target: Any) -> Any:
    """Convert PIXELS pixels, all at addresses: uint8, int16, int16 to uint8."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        light, cb, cr, target = arguments
        y = builder.zext(load(builder, light, BYTE), vector(SHORT))
        cb = load(builder, cb, SHORT)
        cr = load(builder, cr, SHORT)
        # 91881 = 65536 + 26345, 116130 = 2 * 65536 - 14942
        red = builder.add(cr, _scaled(builder, cr, 26345))
        green = builder.sub(_green(builder, cb, cr), cr)
        blue = builder.add(builder.add(cb, cb), _scaled(builder, cb, -14942))
        channels = [_clamped(builder, builder.add(y, chroma)) for chroma in (red, green, blue)]
        store(builder, interleaved(builder, *channels), target)
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD, WORD), generate


@njit
def _spread_chroma(
    near: np.int64, far: np.int64, count: int, sums: np.ndarray, out: np.int64
) -> None:
    """One row of chroma per pixel, minus 128: 3/4 of the nearest row and column, 1/4 of the next.

    libjpeg rounds up by 8/16 in even columns and by 7/16 in odd ones.

    Args:
        near, far: addresses of uint8 (count,): the nearest row and the next nearest.
        sums: int16 (count + 2 or more,), scratch.
        out: address of int16 (2 * count,).
    """
    middle = np.int64(sums.ctypes.data) + 2
    k = 0
    while k < count:
        _sum(near + k, far + k, middle + 2 * k)
        k = next_vector(k, count)
    sums[0] = sums[1]
    sums[count + 1] = sums[count]
    k = 0
    while k < count:
        address = middle + 2 * k
        _spread(address - 2, address, address + 2, out + 4 * k)
        k = next_vector(k, count)


@njit
def _ycc_to_rgb(light: np.int64, cb: np.int64, cr: np.int64, count: int, out: np.int64) -> None:
    """Convert one row of pixels.

    Args:
        light: address of uint8 (count,), Y.
        cb, cr: addresses of int16 (count,), minus 128.
        out: address of uint8 (3 * count,), RGB.
    """
    k = 0
    while k < count:
        _convert(light + k, cb + 2 * k, cr + 2 * k, out + 3 * k)
        k = next_vector(k, count)


# ------------------------------------------------------------------------------------------- images


@njit
def row_scratch(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The memory that `rgb_row` needs for rows of this width, used again for each."""
    columns = max((width + 1) // 2, PIXELS)
    short = np.empty((2, PIXELS), np.uint8)
    return np.empty(columns + 2, np.int16), np.empty((2, 2 * columns), np.int16), short


@njit
def rgb_row(
    source: np.int64,
    i: int,
    height: int,
    width: int,
    stride: int,
    rows: int,
    scratch: tuple[np.ndarray, np.ndarray, np.ndarray],
    out: np.ndarray,
) -> None:
    """Convert row `i` of the planes of one image.

    Args:
        source: address of uint8: Y in rows of `stride` bytes, `rows` of them including padding;
            then chroma.
        height, width: stored size of the image in pixels.
        scratch: memory that `row_scratch` returned.
        out: uint8 (3 * max(width, PIXELS) or more,): the row as RGB, unchanged or zero after it.
    """
    # Addresses: a slice per row costs more than a vector.
    sums, chroma, short = scratch
    copied = np.int64(short.ctypes.data), np.int64(short.ctypes.data) + PIXELS
    spread = np.int64(chroma.ctypes.data)
    half_stride = (stride + 1) // 2
    half_rows = (rows + 1) // 2
    columns = (width + 1) // 2
    line = 2 * chroma.shape[1]
    next_nearest = i // 2 - 1 + 2 * (i % 2)  # row of chroma: above for even rows, below for odd
    next_nearest = min(max(next_nearest, 0), (height + 1) // 2 - 1)
    for plane in range(2):
        start = source + rows * stride + plane * half_rows * half_stride
        near = start + i // 2 * half_stride
        far = start + next_nearest * half_stride
        if columns < PIXELS:
            for n, row in enumerate((near, far)):
                memcpy(copied[n], row, columns)
                short[n, columns:] = short[n, columns - 1]
            near, far = copied
        _spread_chroma(near, far, max(columns, PIXELS), sums, spread + plane * line)
    light = source + i * stride
    if width < PIXELS:
        memcpy(copied[0], light, width)
        light = copied[0]
    _ycc_to_rgb(light, spread, spread + line, max(width, PIXELS), np.int64(out.ctypes.data))
    if width < PIXELS:
        out[3 * width : 3 * PIXELS] = 0


@njit
def planes_to_rgb(
    source: np.ndarray,
    height: int,
    width: int,
    stride: int,
    rows: int,
    side: int,
    target: np.ndarray,
) -> None:
    """Convert the planes of one image into the top left of an RGB canvas, zero to their right.

    Args:
        source: uint8 (n,), the planes.
        height, width: stored size of the image in pixels.
        stride, rows: as in `rgb_row`.
        side: side of the canvas in pixels.
        target: uint8 (side * side * 3,), or the first `height` rows of it.
    """
    base = np.int64(source.ctypes.data)
    scratch = row_scratch(width)
    row = np.zeros(3 * max(side, PIXELS), np.uint8)
    for i in range(height):
        rgb_row(base, i, height, width, stride, rows, scratch, row)
        memcpy(target.ctypes.data + i * side * 3, row.ctypes.data, 3 * side)


@njit
def rgbx_to_yuv420(rgbx: np.ndarray, y: np.ndarray, cb: np.ndarray, cr: np.ndarray) -> None:
    """Convert (h, w) uint32 RGBX, red in the lowest byte, into the top left of planes.

    The planes are C-contiguous and may be larger: the part written is (h, w) of y and (h / 2,
    w / 2) of cb and cr, halves rounded up. The sum of 2 x 2 pixels is rounded once. Written to
    compile to SIMD: one loop per plane, red and blue summed in the two halves of a word.
    """
    h, w = rgbx.shape
    byte = np.uint32(255)
    for i in range(h):
        row = rgbx[i]
        out = y[i]
        for j in range(w):
            pixel = row[j]
            out[j] = (
                np.uint32(19595) * (pixel & byte)
                + np.uint32(38470) * ((pixel >> np.uint32(8)) & byte)
                + np.uint32(7471) * ((pixel >> np.uint32(16)) & byte)
                + np.uint32(32768)
            ) >> np.uint32(16)
    for i in range((h + 1) // 2):
        upper = rgbx[2 * i]
        lower = rgbx[min(2 * i + 1, h - 1)]
        blue = cb[i]
        red = cr[i]
        for j in range(w // 2):
            blue[j], red[j] = _chroma(
                upper[2 * j], upper[2 * j + 1], lower[2 * j], lower[2 * j + 1]
            )
        if w % 2:
            last = w - 1
            blue[w // 2], red[w // 2] = _chroma(upper[last], upper[last], lower[last], lower[last])


@njit(inline="always")
def _chroma(a: np.uint32, b: np.uint32, c: np.uint32, d: np.uint32) -> tuple[np.int32, np.int32]:
    """Cb and Cr of the sum of four RGBX pixels."""
    two = np.uint32(0x00FF00FF)
    byte = np.uint32(255)
    eight = np.uint32(8)
    sums = (a & two) + (b & two) + (c & two) + (d & two)
    green = np.int32(
        ((a >> eight) & byte)
        + ((b >> eight) & byte)
        + ((c >> eight) & byte)
        + ((d >> eight) & byte)
    )
    red = np.int32(sums & np.uint32(0xFFFF))
    blue = np.int32(sums >> np.uint32(16))
    # 128 and a half, minus the lowest bit: as in libjpeg, so that 255.5 does not become 256.
    offset = np.int32((128 << 18) + (1 << 17) - 1)
    return (
        (np.int32(-11059) * red - np.int32(21709) * green + np.int32(32768) * blue + offset)
        >> np.int32(18),
        (np.int32(32768) * red - np.int32(27439) * green - np.int32(5329) * blue + offset)
        >> np.int32(18),
    )
