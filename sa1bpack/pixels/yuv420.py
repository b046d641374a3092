"""RGB pixels to planes Y, Cb, Cr with chroma at half the size, and back.

Colours are those of JFIF: full-range BT.601, Y from 0 to 255, Cb and Cr around 128. The arithmetic
is that of libjpeg (`jccolor.c`, `jdcolor.c` and the h2v2 "fancy" upsampling of `jdsample.c`), in
units of 2**-16, so that every implementation can produce the same bytes; docs/format.md has the
formulas. A chroma sample is the mean of 2 x 2 pixels and lies in their middle (as in JPEG and
MPEG-1). If a side is odd, its last row or column is repeated.

This module uses numpy and numba only, so that readers, which never decode a JPEG, need no PIL.
"""

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.kernels import njit


def half(side: int) -> int:
    """Rows or columns of a chroma plane: half a side, rounded up."""
    return (side + 1) // 2


def yuv420_to_rgb(y: np.ndarray, cb: np.ndarray, cr: np.ndarray) -> np.ndarray:
    """Planes to (h, w, 3) uint8 RGB, as libjpeg decodes them.

    y is (h, w), cb and cr are (h / 2, w / 2), halves rounded up, all uint8, without the padding of
    a canvas, which would bleed into the image. Raises OptionError for other shapes or dtypes.
    """
    check_planes(y, cb, cr)
    height, width = y.shape
    source = np.concatenate([plane.reshape(-1) for plane in (y, cb, cr)])
    rgb = np.empty((height, width, 3), np.uint8)
    planes_to_rgb(source, height, width, width, height, width, rgb.reshape(-1))
    return rgb


def check_planes(y: np.ndarray, cb: np.ndarray, cr: np.ndarray) -> None:
    """Raise OptionError if these are not the planes of one image."""
    expected = tuple(half(side) for side in y.shape)
    planes = {"y": y, "cb": cb, "cr": cr}
    if y.ndim != 2 or not y.size or not (cb.shape == cr.shape == expected) or {
        plane.dtype for plane in planes.values()
    } != {np.dtype(np.uint8)}:  # fmt: skip
        found = ", ".join(f"{name} {p.dtype} {p.shape}" for name, p in planes.items())
        raise OptionError(
            f"planes of one image must be uint8 of shapes (h, w) and twice (h / 2, w / 2), halves "
            f"rounded up, not {found}"
        )


@njit(nogil=True, cache=True)
def _chroma_row(near, far, sums, out):
    """One row of chroma per pixel, minus 128: 3/4 of the nearest row and column, 1/4 of the next.
    libjpeg rounds up by 8/16 in even columns and by 7/16 in odd ones.

    near, far  uint8 (c,): the nearest row and the next nearest
    sums       int32 (c + 2,), scratch
    out        int32 (2 * c,)
    """
    count = len(near)
    for j in range(count):
        sums[j + 1] = 3 * np.int32(near[j]) + np.int32(far[j])
    sums[0], sums[count + 1] = sums[1], sums[count]
    for j in range(count):
        out[2 * j] = ((3 * sums[j + 1] + sums[j] + 8) >> 4) - 128
        out[2 * j + 1] = ((3 * sums[j + 1] + sums[j + 2] + 7) >> 4) - 128


@njit(nogil=True, cache=True)
def _convert_row(light, blue, red, out):
    """One row of pixels. light uint8 (w,); blue, red int32 (w or w + 1,); out uint8 (3 * w,)."""
    for j in range(len(light)):
        y, cb, cr = np.int32(light[j]), blue[j], red[j]
        out[3 * j] = min(max(y + ((91881 * cr + 32768) >> 16), 0), 255)
        out[3 * j + 1] = min(max(y + ((-22554 * cb - 46802 * cr + 32768) >> 16), 0), 255)
        out[3 * j + 2] = min(max(y + ((116130 * cb + 32768) >> 16), 0), 255)


@njit(nogil=True, cache=True)
def planes_to_rgb(source, height, width, stride, rows, side, target):
    """Convert the planes of one image into the top left of an RGB canvas, zero to their right.

    source  uint8 (n,): Y in rows of `stride` bytes, `rows` of them including padding; then chroma
    target  uint8 (side * side * 3,), or the first `height` rows of it
    """
    half_stride, half_rows = (stride + 1) // 2, (rows + 1) // 2
    planes, columns = half_rows * half_stride, (width + 1) // 2
    sums = np.empty(columns + 2, np.int32)
    blue, red = np.empty(2 * columns, np.int32), np.empty(2 * columns, np.int32)
    for i in range(height):
        other = min(max(i // 2 + (1 if i % 2 else -1), 0), (height + 1) // 2 - 1)
        near, far = rows * stride + i // 2 * half_stride, rows * stride + other * half_stride
        _chroma_row(source[near : near + columns], source[far : far + columns], sums, blue)
        near, far = near + planes, far + planes
        _chroma_row(source[near : near + columns], source[far : far + columns], sums, red)
        out = target[i * side * 3 : (i + 1) * side * 3]
        _convert_row(source[i * stride : i * stride + width], blue, red, out)
        out[3 * width :] = 0


@njit(nogil=True, cache=True)
def rgbx_to_yuv420(rgbx, y, cb, cr):
    """Convert (h, w) uint32 RGBX, red in the lowest byte, into the top left of planes.

    The planes are C-contiguous and may be larger: the part written is (h, w) of y and (h / 2,
    w / 2) of cb and cr, halves rounded up. The sum of 2 x 2 pixels is rounded once. Written to
    compile to SIMD: one loop per plane, red and blue summed in the two halves of a word.
    """
    h, w = rgbx.shape
    byte = np.uint32(255)
    for i in range(h):
        row, out = rgbx[i], y[i]
        for j in range(w):
            pixel = row[j]
            out[j] = (
                np.uint32(19595) * (pixel & byte)
                + np.uint32(38470) * ((pixel >> np.uint32(8)) & byte)
                + np.uint32(7471) * ((pixel >> np.uint32(16)) & byte)
                + np.uint32(32768)
            ) >> np.uint32(16)
    for i in range((h + 1) // 2):
        upper, lower = rgbx[2 * i], rgbx[min(2 * i + 1, h - 1)]
        blue, red = cb[i], cr[i]
        for j in range(w // 2):
            blue[j], red[j] = _chroma(
                upper[2 * j], upper[2 * j + 1], lower[2 * j], lower[2 * j + 1]
            )
        if w % 2:
            last = w - 1
            blue[w // 2], red[w // 2] = _chroma(upper[last], upper[last], lower[last], lower[last])


@njit(inline="always")
def _chroma(a, b, c, d):
    """Cb and Cr of the sum of four RGBX pixels."""
    two, byte, eight = np.uint32(0x00FF00FF), np.uint32(255), np.uint32(8)
    sums = (a & two) + (b & two) + (c & two) + (d & two)
    green = np.int32(
        ((a >> eight) & byte) + ((b >> eight) & byte)
        + ((c >> eight) & byte) + ((d >> eight) & byte)
    )  # fmt: skip
    red, blue = np.int32(sums & np.uint32(0xFFFF)), np.int32(sums >> np.uint32(16))
    # 128 and a half, minus the lowest bit: as in libjpeg, so that 255.5 does not become 256.
    offset = np.int32((128 << 18) + (1 << 17) - 1)
    return (
        (np.int32(-11059) * red - np.int32(21709) * green + np.int32(32768) * blue + offset)
        >> np.int32(18),
        (np.int32(32768) * red - np.int32(27439) * green - np.int32(5329) * blue + offset)
        >> np.int32(18),
    )
