"""Copies the pixels of one stored image into a batch's canvas: compiled, without the GIL.

A stored image is `height` x `width` pixels, rgb or the planes Y, Cb, Cr of yuv420, with or without
the padding of a canvas; see `sa1bpack.format.image_bytes`. A batch has canvases of one size, zero
beyond the stored pixels: RGB (S, S, 3), or I420, S rows of Y, then Cb and Cr at half the size.
"""

import numpy as np

from sa1bpack.dataset.specs import RGB_OF_YUV, RGB_ON_CANVAS
from sa1bpack.kernels import memcpy, memset, njit
from sa1bpack.loading.batch.stream_copy import stream, stream_end
from sa1bpack.pixels.vectors import PIXELS
from sa1bpack.pixels.yuv420 import rgb_row, row_scratch


@njit
def _put_rows(source, stride, rows, columns, target, target_stride, height):
    """Copy a plane's rows to the top left of a larger plane; zero to their right and below.

    source, target  addresses of uint8; strides are bytes
    columns         bytes copied per row
    height          rows of the target
    """
    if columns == stride == target_stride:
        stream(target, source, rows * stride)
    else:
        row = np.zeros(target_stride, np.uint8)
        address = np.int64(row.ctypes.data)
        for i in range(rows):
            memcpy(address, source + i * stride, columns)
            stream(target + i * target_stride, address, target_stride)
    stream_end()
    memset(target + rows * target_stride, 0, (height - rows) * target_stride)


@njit
def _put_rgb(source, height, width, stride, rows, side, target):
    """Convert the planes of one image into the top left of an RGB canvas, both at addresses."""
    row_bytes = 3 * side
    scratch, row = row_scratch(width), np.zeros(max(row_bytes, 3 * PIXELS), np.uint8)
    for i in range(height):
        rgb_row(source, i, height, width, stride, rows, scratch, row)
        stream(target + i * row_bytes, np.int64(row.ctypes.data), row_bytes)
    stream_end()
    memset(target + height * row_bytes, 0, (side - height) * row_bytes)


@njit
def put_image(how, source, height, width, stride, rows, side, target):
    """Put one image on its canvas.

    how      RGB_ON_CANVAS, YUV_ON_CANVAS or RGB_OF_YUV
    source   address of the image's own bytes
    stride   pixels of a stored row, padding included: `width`, or the side of a stored canvas
    rows     stored rows, padding included
    target   uint8, (side * side * 3,), or (side * side * 3 / 2,) for YUV_ON_CANVAS
    """
    at = np.int64(target.ctypes.data)
    if how == RGB_OF_YUV:
        _put_rgb(source, height, width, stride, rows, side, at)
    elif how == RGB_ON_CANVAS:
        _put_rows(source, 3 * stride, height, 3 * width, at, 3 * side, side)
    else:
        half_stride, half_side = (stride + 1) // 2, side // 2
        plane = (height + 1) // 2, (width + 1) // 2
        _put_rows(source, stride, height, width, at, side, side)
        source, at = source + rows * stride, at + side * side
        for _ in range(2):
            _put_rows(source, half_stride, plane[0], plane[1], at, half_side, half_side)
            source += (rows + 1) // 2 * half_stride
            at += half_side * half_side
