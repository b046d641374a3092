"""Rows of YCbCr 4:2:0 to RGB, in vectors of 16-bit numbers.

The formulas are those of `sa1bpack.pixels.yuv420`. Rows have at least `PIXELS` elements.
"""

import numpy as np

from sa1bpack.kernels import intrinsic, njit, types
from sa1bpack.pixels.vectors import (
    BYTE,
    INT,
    SHORT,
    WORD,
    every,
    in_turn,
    load,
    next_vector,
    store,
    vector,
)


def _part(builder, values, factor: int):
    """round(values * factor / 65536), half upwards: the upper halves of 32-bit products."""
    twice = builder.sext(builder.add(values, values), vector(INT))
    upper = builder.ashr(builder.mul(twice, every(INT, factor)), every(INT, 16))
    upper = builder.trunc(upper, vector(SHORT))
    return builder.ashr(builder.add(upper, every(SHORT, 1)), every(SHORT, 1))


def _green(builder, cb, cr):
    """round((-22554 cb - 46802 cr) / 65536) + cr, whose second factor has 16 bits."""
    cb, cr = (builder.sext(values, vector(INT)) for values in (cb, cr))
    total = builder.add(
        builder.mul(cb, every(INT, -22554)), builder.mul(cr, every(INT, 65536 - 46802))
    )
    total = builder.ashr(builder.add(total, every(INT, 32768)), every(INT, 16))
    return builder.trunc(total, vector(SHORT))


def _clamped(builder, values):
    """Bytes, 0 to 255."""
    for limit, order in (0, "<"), (255, ">"):
        bound = every(SHORT, limit)
        values = builder.select(builder.icmp_signed(order, values, bound), bound, values)
    return builder.trunc(values, vector(BYTE))


@intrinsic
def _sum(typingctx, near, far, target):
    """3 near + far: uint8, uint8 to int16, PIXELS of them at addresses."""

    def generate(context, builder, signature, arguments):
        near, far, target = arguments
        near, far = (builder.zext(load(builder, row, BYTE), vector(SHORT)) for row in (near, far))
        total = builder.add(builder.mul(near, every(SHORT, 3)), far)
        store(builder, total, target)
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD), generate


@intrinsic
def _spread(typingctx, left, middle, right, target):
    """Two columns of each element of `middle`: int16 at addresses, 2 PIXELS to `target`."""

    def generate(context, builder, signature, arguments):
        *sums, target = arguments
        left, middle, right = (load(builder, each, SHORT) for each in sums)
        nearest = builder.mul(middle, every(SHORT, 3))
        columns = []
        for following, rounding in (left, 8), (right, 7):
            total = builder.add(builder.add(nearest, following), every(SHORT, rounding))
            total = builder.lshr(total, every(SHORT, 4))
            columns.append(builder.sub(total, every(SHORT, 128)))
        store(builder, in_turn(builder, *columns), target)
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD, WORD), generate


@intrinsic
def _convert(typingctx, light, cb, cr, target):
    """Convert PIXELS pixels, all at addresses: uint8, int16, int16 to uint8."""

    def generate(context, builder, signature, arguments):
        light, cb, cr, target = arguments
        y = builder.zext(load(builder, light, BYTE), vector(SHORT))
        cb, cr = load(builder, cb, SHORT), load(builder, cr, SHORT)
        # 91881 = 65536 + 26345, 116130 = 2 * 65536 - 14942
        red = builder.add(cr, _part(builder, cr, 26345))
        green = builder.sub(_green(builder, cb, cr), cr)
        blue = builder.add(builder.add(cb, cb), _part(builder, cb, -14942))
        channels = [_clamped(builder, builder.add(y, each)) for each in (red, green, blue)]
        store(builder, in_turn(builder, *channels), target)
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD, WORD), generate


@njit
def spread_chroma(near, far, count, sums, out):
    """One row of chroma per pixel, minus 128: 3/4 of the nearest row and column, 1/4 of the next.
    libjpeg rounds up by 8/16 in even columns and by 7/16 in odd ones.

    near, far  addresses of uint8 (count,): the nearest row and the next nearest
    sums       int16 (count + 2 or more,), scratch
    out        address of int16 (2 * count,)
    """
    middle, k = np.int64(sums.ctypes.data) + 2, 0
    while k < count:
        _sum(near + k, far + k, middle + 2 * k)
        k = next_vector(k, count)
    sums[0], sums[count + 1] = sums[1], sums[count]
    k = 0
    while k < count:
        at = middle + 2 * k
        _spread(at - 2, at, at + 2, out + 4 * k)
        k = next_vector(k, count)


@njit
def ycc_to_rgb(light, cb, cr, count, out):
    """Convert one row of pixels, as `sa1bpack.pixels.yuv420` says. All but `count` are addresses.

    light   of uint8 (count,)
    cb, cr  of int16 (count,), minus 128
    out     of uint8 (3 * count,)
    """
    k = 0
    while k < count:
        _convert(light + k, cb + 2 * k, cr + 2 * k, out + 3 * k)
        k = next_vector(k, count)
