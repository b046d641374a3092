"""Copies the pixels of one stored image into a batch's canvas: compiled, without the GIL.

A stored image is `height` x `width` pixels, rgb or the planes Y, Cb, Cr of yuv420, with or without
the padding of a canvas; see `sa1bpack.format.image_bytes`. A batch has canvases of one size, zero
beyond the stored pixels: RGB (S, S, 3), or I420, S rows of Y, then Cb and Cr at half the size.
"""

import numpy as np

from sa1bpack.batch.stream_copy import memcpy, memset
from sa1bpack.dataset.specs import RGB_OF_YUV, RGB_ON_CANVAS
from sa1bpack.kernels import njit
from sa1bpack.pixels.yuv420 import planes_to_rgb


@njit(nogil=True, cache=True)
def put_rows(source, start, stride, rows, columns, target, target_start, target_stride, height):
    """Copy a plane's rows to the top left of a larger plane; zero to their right and below.

    source, target  uint8 (n,); `start` and `stride` are bytes
    columns         bytes copied per row
    height          rows of the target
    """
    # Addresses, not slices: those compile into ten times as much code, and index by index is slow.
    source_at = np.int64(source.ctypes.data) + start
    target_at = np.int64(target.ctypes.data) + target_start
    for i in range(height):
        copied = columns if i < rows else 0
        if copied:
            memcpy(target_at + i * target_stride, source_at + i * stride, copied)
        memset(target_at + i * target_stride + copied, 0, target_stride - copied)


@njit(nogil=True, cache=True)
def put_image(how, source, height, width, stride, rows, side, target):
    """Put one image on its canvas.

    how      RGB_ON_CANVAS, YUV_ON_CANVAS or RGB_OF_YUV
    source   uint8 (n,): the image's own bytes
    stride   pixels of a stored row, padding included: `width`, or the side of a stored canvas
    rows     stored rows, padding included
    target   uint8, (side * side * 3,), or (side * side * 3 / 2,) for YUV_ON_CANVAS
    """
    if how == RGB_OF_YUV:
        planes_to_rgb(source, height, width, stride, rows, side, target)
        target[height * side * 3 :] = 0
    elif how == RGB_ON_CANVAS:
        put_rows(source, 0, 3 * stride, height, 3 * width, target, 0, 3 * side, side)
    else:
        half_stride, half_side = (stride + 1) // 2, side // 2
        plane = (height + 1) // 2, (width + 1) // 2
        put_rows(source, 0, stride, height, width, target, 0, side, side)
        start, at = rows * stride, side * side
        for _ in range(2):
            put_rows(
                source, start, half_stride, plane[0], plane[1], target, at, half_side, half_side
            )
            start += (rows + 1) // 2 * half_stride
            at += half_side * half_side
