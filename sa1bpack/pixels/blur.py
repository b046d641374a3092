"""Gaussian blur of images, for the CPU: a filter along the columns, then one along the rows.

Beyond its edges an image is continued by its mirror image, whose axis is the middle of the last
pixel, as in torchvision (`reflect`); of an image that is smaller than the filter, again and again.
"""

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.pixels.resample import RowBand, clear_rows


@njit
def _reflect(position: int, length: int) -> int:
    """The pixel of an axis of `length` pixels that stands at a position, which may be outside."""
    period = max(2 * (length - 1), 1)
    position = abs(position) % period
    return min(position, period - position)


@njit
def _add_scaled(total: np.ndarray, values: np.ndarray, first: int, weight: np.float32) -> None:
    """Add values from `first` on, times a weight, to as many totals as there are."""
    begin = np.uint64(first)  # unsigned: numba does not test for negative indices
    for j in range(len(total)):
        total[j] += weight * values[begin + np.uint64(j)]


@njit
def _blur(
    plane: np.ndarray, weights: np.ndarray, band: RowBand, line: np.ndarray, out: np.ndarray
) -> None:
    """A band of one channel; `line` is scratch, float32 (kept columns + taps - 1,)."""
    columns = band.kept_columns
    radius = len(weights) // 2
    middle = line[radius : radius + columns]
    for i in range(band.start, min(band.stop, band.kept_rows)):
        line[:] = np.float32(0)
        for k in range(len(weights)):
            if weights[k] != 0:
                row = plane[_reflect(i + k - radius, band.kept_rows)]
                _add_scaled(middle, row, 0, weights[k])
        for k in range(1, radius + 1):
            line[radius - k] = middle[_reflect(-k, columns)]
            line[radius + columns - 1 + k] = middle[_reflect(columns - 1 + k, columns)]
        target = out[i, :columns]
        target[:] = np.float32(0)
        for k in range(len(weights)):
            if weights[k] != 0:
                _add_scaled(target, line, k, weights[k])


def blur_rows(image: np.ndarray, weights: np.ndarray, band: RowBand, out: np.ndarray) -> None:
    """Blur part of an image. Releases the GIL.

    Args:
        image: float32 (3, H, W), C-contiguous; not read outside the rows and columns that are kept.
        weights: float32 (k,), k odd: the filter of either axis.
        band: the band to make; outside the rows and columns that it keeps, it is 0.
        out: float32 (3, H, W), C-contiguous, other memory than `image`.
    """
    clear_rows(band, out)
    if band.kept_columns == 0:
        return
    line = np.empty(band.kept_columns + len(weights) - 1, np.float32)
    for plane, target in zip(image, out, strict=True):
        _blur(plane, weights, band, line, target)
