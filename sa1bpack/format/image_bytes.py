"""Where the pixels of an image lie in its bytes, for every layout.

A *canvas* (fit "pad" and "squash") has a fixed number of bytes per sample, zero beyond the stored
height and width. A *flat* image (fit "native") has no padding; `image_offset` says where its bytes
start. Either holds one plane of interleaved RGB, or the planes Y, Cb and Cr in sequence (I420),
each chroma plane with half the rows and columns, rounded up.
"""

from dataclasses import dataclass

import numpy as np

from sa1bpack.format.layout import Layout


@dataclass(frozen=True)
class Plane:
    """One plane of an image.

    name    "rgb", "y", "cb" or "cr"
    start   offset of its first byte from the first byte of the image
    stride  bytes from one row to the next
    shape   stored rows and columns, without padding, and 3 for interleaved RGB
    """

    name: str
    start: int
    stride: int
    shape: tuple[int, ...]

    def view(self, image: np.ndarray) -> np.ndarray:
        """The stored pixels, `shape`, as a view of the bytes of an image, (n,) uint8."""
        strides = (self.stride, 3, 1) if len(self.shape) == 3 else (self.stride, 1)
        return np.ndarray(self.shape, np.uint8, image, self.start, strides)


def half(side):
    """Rows or columns of a chroma plane: half of a side (an int or an array), rounded up."""
    return (side + 1) // 2


def image_nbytes(layout: Layout, height, width):
    """Number of bytes of an image of stored height x width; ints, or arrays of one shape."""
    if not layout.flat:
        height = width = layout.image_size
    if layout.pixels == "rgb":
        return height * width * 3
    return height * width + 2 * half(height) * half(width)


def image_planes(layout: Layout, height: int, width: int) -> tuple[Plane, ...]:
    """The planes of an image of stored height x width, in stored order."""
    rows, columns = (height, width) if layout.flat else (layout.image_size,) * 2
    if layout.pixels == "rgb":
        return (Plane("rgb", 0, columns * 3, (height, width, 3)),)
    chroma = half(rows) * half(columns)
    shape = (half(height), half(width))
    return (
        Plane("y", 0, columns, (height, width)),
        Plane("cb", rows * columns, half(columns), shape),
        Plane("cr", rows * columns + chroma, half(columns), shape),
    )


def canvas_spans(layout: Layout, height: int) -> tuple[tuple[int, int], ...]:
    """(start, stop) byte ranges of a canvas that hold the rows of an image of stored `height`.

    All other bytes are zero, and holes on disk. For the full height the ranges cover the canvas.
    """
    planes = image_planes(layout, height, layout.image_size)
    return tuple((plane.start, plane.start + plane.shape[0] * plane.stride) for plane in planes)


def is_zero_beyond(layout: Layout, image: np.ndarray, height: int, width: int) -> bool:
    """Whether a canvas, (n,) uint8, is zero beyond the stored height and width."""
    whole = image_planes(layout, layout.image_size, layout.image_size)
    stored = image_planes(layout, height, width)
    for plane, part in zip(whole, stored, strict=True):
        pixels = plane.view(image)
        if pixels[part.shape[0] :].any() or pixels[: part.shape[0], part.shape[1] :].any():
            return False
    return True
