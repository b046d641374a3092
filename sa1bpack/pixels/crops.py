"""Windows of an image with float pixels, resampled, and the cells of a mask in them: compiled.

The filter is that of `sa1bpack.pixels.resample`: a triangle per axis, widened where the window is
reduced, of the pixels within the image alone.
"""

from typing import NamedTuple

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.pixels.resample import Taps, make_taps


class Window(NamedTuple):
    """A window of an image, and the output that it becomes.

    Attributes:
        x0, y0: its corner in pixels of the image; it may lie outside.
        step_x, step_y: pixels of the image per pixel of the output, above 0.
        width, height: pixels of the image from its corner that have content, which may be
            fractions: a pixel has it if its centre does.
    """

    x0: float
    y0: float
    step_x: float
    step_y: float
    width: float
    height: float


@njit
def _mix(
    plane: np.ndarray, y: Taps, x: Taps, i: int, low: int, high: int, line: np.ndarray
) -> None:
    """The columns low..high of the rows under the filter of output row i, into `line`."""
    last = len(plane) - 1
    first = y.first[i]
    for p in range(low, high):
        line[p] = 0
    for k in range(len(y.weights)):
        weight = y.weights[k, i]
        row = plane[min(first + k, last)]
        for p in range(low, high):
            line[p] += weight * row[p]


@njit
def _crop(
    image: np.ndarray,
    mask: np.ndarray,
    y: Taps,
    x: Taps,
    rows: np.ndarray,
    columns: np.ndarray,
    fill: np.ndarray,
    fills: bool,
    out: np.ndarray,
    cells: np.ndarray,
) -> None:
    """See `crop`.

    Args:
        rows: int64 (h,), row of `mask` of each output row; -1: no image is there.
        columns: int64 (w,), likewise.
        fills: pixels outside the mask become `fill`.
    """
    height, width = cells.shape
    for i in range(height):
        for j in range(width):
            inside = rows[i] >= 0 and columns[j] >= 0
            cells[i, j] = inside and mask[rows[i], columns[j]]
    low = x.first[0]
    high = x.first[0]
    for j in range(width):
        low = min(low, x.first[j])
        high = max(high, x.first[j])
    high = min(high + len(x.weights), image.shape[2])
    line = np.zeros(image.shape[2] + len(x.weights), np.float32)  # filters may reach beyond
    for c in range(image.shape[0]):
        outside = fill[c] if fills else np.float32(0)
        for i in range(height):
            if rows[i] < 0:
                out[c, i] = outside
                continue
            _mix(image[c], y, x, i, low, high, line)
            for j in range(width):
                if columns[j] < 0 or (fills and not cells[i, j]):
                    out[c, i, j] = outside
                    continue
                value = np.float32(0)
                for k in range(len(x.weights)):
                    value += x.weights[k, j] * line[x.first[j] + k]
                out[c, i, j] = value


def crop(
    image: np.ndarray,
    mask: np.ndarray,
    window: Window,
    fill: np.ndarray | None,
    out: np.ndarray,
    cells: np.ndarray,
) -> None:
    """Make one crop. Releases the GIL.

    Args:
        image: float32 (3, H, W), C-contiguous.
        mask: uint8 (m, n), 0 or 1: cells of a grid over the image.
        window: the window.
        fill: float32 (3,), what pixels outside the mask become; None: they stay, and those outside
            the image are 0.
        out: float32 (3, h, w), out.
        cells: uint8 (h, w), out: the mask at the centres of the pixels.
    """
    height, width = cells.shape
    rows, y = _axis(window.y0, window.step_y, window.height, height, image.shape[1], mask.shape[0])
    columns, x = _axis(window.x0, window.step_x, window.width, width, image.shape[2], mask.shape[1])
    fills = fill is not None
    if fill is None:
        fill = np.zeros(3, np.float32)
    _crop(image, mask, y, x, rows, columns, fill, fills, out, cells)


def _axis(
    start: float, step: float, content: float, count: int, length: int, cells: int
) -> tuple[np.ndarray, Taps]:
    """The cell of each output pixel along an axis, -1 outside the content, and its filter.

    Args:
        start, step: position of the window, and pixels per output pixel.
        content: pixels that have content.
        count: number of output pixels.
        length: pixels of the image, all of them.
        cells: cells of the mask along it.
    """
    centers = start + step * (np.arange(count) + 0.5)
    pixels = min(max(int(np.ceil(content - 0.5)), 1), length)
    taps = make_taps(centers, step, pixels)
    cell = np.clip(np.floor(centers * (cells / length)), 0, cells - 1).astype(np.int64)
    cell[(centers < 0) | (centers >= content)] = -1
    return cell, taps
