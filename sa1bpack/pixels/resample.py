"""Images under axis-aligned maps, resampled and normalised in one pass, for the CPU.

The result is that of PIL's `resize(box=..., resample=BILINEAR)` before rounding: a triangle filter,
widened to the size of the output pixel if the image is reduced, cut off at the edges of the image,
and normalised. A row of the output is made of the few rows of the image under its filter, as floats
in a scratch that stays in the cache, and then pixel by pixel of its columns. Where a map only
copies or mirrors, pixels go through a table instead.
"""

from typing import NamedTuple

import numpy as np

from sa1bpack.kernels import njit


class Taps(NamedTuple):
    """The filter of one axis.

    first    int64 (n,): the first input pixel under the filter of each output pixel
    weights  float32 (k, n): of this and the following input pixels; their sum is 1, or 0 where the
             filter reaches no pixel
    """

    first: np.ndarray
    weights: np.ndarray

    @property
    def copies(self) -> bool:
        """Whether each output pixel is one input pixel."""
        return len(self.weights) == 1


@njit
def _fill_taps(at, support, length, first, weights):
    """Fill the taps of an axis, weights float64 (n, k). Returns how many are in use."""
    used = 1
    for i in range(len(at)):
        low = max(np.int64(np.ceil(at[i] - support - 0.5)), 0)
        high = min(np.int64(np.floor(at[i] + support - 0.5)) + 1, length)
        # A pixel at the very end of the filter has no weight.
        while low < high and abs(low + 0.5 - at[i]) >= support:
            low += 1
        while low < high and abs(high - 0.5 - at[i]) >= support:
            high -= 1
        first[i] = min(low, length - 1)
        total = 0.0
        for k in range(low, high):
            weights[i, k - low] = 1 - abs(k + 0.5 - at[i]) / support
            total += weights[i, k - low]
        for k in range(high - low):
            weights[i, k] /= total
        used = max(used, high - low)
    return used


def make_taps(at: np.ndarray, scale: float, length: int) -> Taps:
    """The filter of one axis.

    at      float64 (n,): centres of the output pixels, in input pixels
    scale   input pixels per output pixel, negative if mirrored
    length  input pixels, 1 or more
    """
    support = max(abs(scale), 1.0)
    first = np.empty(len(at), np.int64)
    weights = np.zeros((len(at), int(min(2 * support + 2, length))))
    used = _fill_taps(at, support, length, first, weights)
    return Taps(first, np.ascontiguousarray(weights[:, :used].T, np.float32))


@njit
def _copy(image, rows, columns, table, keep, start, stop, out):
    """Rows start..stop of an output whose pixels are pixels of the image."""
    for i in range(start, min(stop, keep[0])):
        line = image[rows[i]]
        red, green, blue = out[0, i], out[1, i], out[2, i]
        for j in range(keep[1]):
            x = np.uint64(columns[j])  # unsigned, so that numba does not test for negative indices
            red[j] = table[0, line[x, 0]]
            green[j] = table[1, line[x, 1]]
            blue[j] = table[2, line[x, 2]]


@njit
def _mix_rows(flat, first, weights, i, low, high, line):
    """Bytes low..high of the rows under the filter of row i, into `line`."""
    last = len(flat) - 1
    upper, a = flat[first[i]], weights[0, i]
    if len(weights) == 1:
        for p in range(low, high):
            line[p] = a * np.float32(upper[p])
        return
    # The second row may lie outside, without weight.
    lower, b = flat[min(first[i] + 1, last)], weights[1, i]
    for p in range(low, high):
        line[p] = a * np.float32(upper[p]) + b * np.float32(lower[p])
    for k in range(2, len(weights)):
        more, c = flat[min(first[i] + k, last)], weights[k, i]
        for p in range(low, high):
            line[p] += c * np.float32(more[p])


@njit(error_model="numpy")
def _mix_columns(line, first, weights, columns, mean, std, red, green, blue):
    """The pixels of one row, from `line`, three floats per pixel."""
    one, two = np.uint64(1), np.uint64(2)
    three, four, five = np.uint64(3), np.uint64(4), np.uint64(5)
    if len(weights) == 2:
        for j in range(columns):
            p, a, b = np.uint64(3 * first[j]), weights[0, j], weights[1, j]
            red[j] = (a * line[p] + b * line[p + three] - mean[0]) / std[0]
            green[j] = (a * line[p + one] + b * line[p + four] - mean[1]) / std[1]
            blue[j] = (a * line[p + two] + b * line[p + five] - mean[2]) / std[2]
        return
    for j in range(columns):
        p = np.uint64(3 * first[j])
        r = g = b = np.float32(0)
        for k in range(len(weights)):
            w = weights[k, j]
            r += w * line[p]
            g += w * line[p + one]
            b += w * line[p + two]
            p += three
        red[j] = (r - mean[0]) / std[0]
        green[j] = (g - mean[1]) / std[1]
        blue[j] = (b - mean[2]) / std[2]


@njit
def _resample(flat, y, y_weights, x, x_weights, mean, std, keep, start, stop, line, out):
    """Rows start..stop of an output under any filters. flat: the image, (H, W * 3)."""
    low, high = x[0], x[0]
    for j in range(keep[1]):
        low, high = min(low, x[j]), max(high, x[j])
    low, high = 3 * low, min(3 * (high + len(x_weights)), flat.shape[1])
    for i in range(start, min(stop, keep[0])):
        _mix_rows(flat, y, y_weights, i, low, high, line)
        _mix_columns(line, x, x_weights, keep[1], mean, std, out[0, i], out[1, i], out[2, i])


@njit
def _clear(keep, start, stop, out):
    """Set rows start..stop to 0 where there is no image."""
    for c in range(out.shape[0]):
        for i in range(start, stop):
            out[c, i, keep[1] if i < keep[0] else 0 :] = 0


class Normal(NamedTuple):
    """How bytes become numbers: (value - mean) / std, per channel.

    mean, std  float32 (3,), std above 0
    table      float32 (3, 256): the result for each byte
    """

    mean: np.ndarray
    std: np.ndarray
    table: np.ndarray


def normal(mean: np.ndarray, std: np.ndarray) -> Normal:
    """From mean and std, float32 (3,)."""
    values = np.arange(256, dtype=np.float32)
    return Normal(mean, std, (values - mean[:, None]) / std[:, None])


def resample_rows(
    image: np.ndarray,
    y: Taps,
    x: Taps,
    values: Normal,
    keep: tuple[int, int],
    rows: tuple[int, int],
    out: np.ndarray,
) -> None:
    """Make some rows of an output. Releases the GIL.

    Args:
        image: uint8 (H, W, 3), C-contiguous.
        y, x: for `out`, within the image.
        values: see `Normal`.
        keep: rows and columns of the output that the image covers; the others become 0.
        rows: the first and the one after the last.
        out: float32 (3, h, w), C-contiguous.
    """
    start, stop = rows
    for taps, length, side in zip((y, x), image.shape, out.shape[1:], strict=False):
        if len(taps.first) != side or taps.first.min() < 0 or taps.first.max() >= length:
            raise ValueError(f"filters for {len(taps.first)} of {side} pixels, up to {length}")
    if not (
        0 <= start <= stop <= out.shape[1]
        and keep[0] <= out.shape[1]
        and keep[1] <= out.shape[2]
        and out.shape[0] == image.shape[2] == 3
    ):
        raise ValueError(f"cannot write rows {rows}, {keep} of them, to {out.shape}")
    image = np.ascontiguousarray(image).view()
    image.flags.writeable = False
    _clear(keep, start, stop, out)
    if y.copies and x.copies:
        _copy(image, y.first, x.first, values.table, keep, start, stop, out)
        return
    flat = image.reshape(len(image), -1)
    line = np.zeros(flat.shape[1] + 3 * len(x.weights), np.float32)  # filters may reach beyond
    _resample(flat, *y, *x, values.mean, values.std, keep, start, stop, line, out)
