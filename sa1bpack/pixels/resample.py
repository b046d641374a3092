"""Images under maps, resampled and normalised in one pass, for the CPU.

Under an axis-aligned map the result is that of PIL's `resize(box=..., resample=BILINEAR)` before
rounding: a triangle filter, widened to the size of the output pixel if the image is reduced, cut
off at the edges of the image, and normalised. A row of the output is made of the few rows of the
image under its filter, as floats in a scratch that stays in the cache, and then pixel by pixel of
its columns. Where a map only copies or mirrors, pixels go through a table instead.

Under any affine map the rule is the same, pixel by pixel. Pixel (i, j) of the output is at x = a j
+ b i + c, and the filter along x is as wide as the length of (a, b), but never narrower than a
pixel; along y likewise. So a map that does not rotate yields the same, and one that reduces nothing
interpolates bilinearly. Positions are whole numbers of 2**-32 pixels, so that every device takes
the same pixels of the image with the same weights.
"""

from typing import NamedTuple

import numpy as np

from sa1bpack.kernels import njit

FRACTION = 32  # fractional bits of a position
_ONE = 2.0**-FRACTION
_HALF = np.int64(1) << (FRACTION - 1)
_REST = (np.int64(1) << FRACTION) - 1


class RowBand(NamedTuple):
    """Rows of an output that are made at once.

    Attributes:
        start, stop: the first of them, and one past the last.
        kept_rows, kept_columns: the part of the output that the image covers; the rest is 0.
    """

    start: int
    stop: int
    kept_rows: int
    kept_columns: int


class Normal(NamedTuple):
    """The conversion of bytes to numbers: (value - mean) / std, per channel.

    Attributes:
        mean, std: float32 (3,), std above 0.
        table: float32 (3, 256): the result for each byte.
    """

    mean: np.ndarray
    std: np.ndarray
    table: np.ndarray


def normal(mean: np.ndarray, std: np.ndarray) -> Normal:
    """The Normal of a mean and a std, float32 (3,)."""
    values = np.arange(256, dtype=np.float32)
    return Normal(mean, std, (values - mean[:, None]) / std[:, None])


# ------------------------------------------------------------------------------------ axis-aligned


class Taps(NamedTuple):
    """The filter of one axis.

    Attributes:
        first: int64 (n,): the first input pixel under the filter of each output pixel.
        weights: float32 (k, n), k >= 2: weights of this and the following input pixels; their sum
            is 1, or 0 where the filter reaches no pixel.
        copies: each output pixel is one input pixel.
    """

    first: np.ndarray
    weights: np.ndarray
    copies: bool


@njit
def _fill(
    center: float, support: float, length: int | np.int64, weights: np.ndarray
) -> tuple[np.int64, np.int64]:
    """The filter center a position in pixels: its first pixel, and how many weights it has.

    Args:
        support: half the width of the filter in pixels.
        length: input pixels of the axis.
        weights: float32 or float64 (k,), out: the weights.
    """
    low = max(np.int64(np.ceil(center - support - 0.5)), np.int64(0))
    high = min(np.int64(np.floor(center + support - 0.5)) + 1, np.int64(length))
    # A pixel center the very end of the filter has no weight.
    while low < high and abs(low + 0.5 - center) >= support:
        low += 1
    while low < high and abs(high - 0.5 - center) >= support:
        high -= 1
    total = 0.0
    for k in range(low, high):
        total += 1 - abs(k + 0.5 - center) / support
    for k in range(low, high):
        weights[k - low] = (1 - abs(k + 0.5 - center) / support) / total
    return low, high - low


@njit
def _fill_taps(
    centers: np.ndarray, support: float, length: int, first: np.ndarray, weights: np.ndarray
) -> np.int64:
    """Fill the taps of an axis, weights float64 (n, k). Returns how many are in use."""
    used = np.int64(1)
    for i in range(len(centers)):
        low, count = _fill(centers[i], support, length, weights[i])
        first[i] = min(low, length - 1)
        used = max(used, count)
    return used


def make_taps(centers: np.ndarray, scale: float, length: int) -> Taps:
    """The filter of one axis.

    Args:
        centers: float64 (n,): centres of the output pixels, in input pixels.
        scale: input pixels per output pixel, negative if mirrored.
        length: input pixels, 1 or more.
    """
    support = max(abs(scale), 1.0)
    first = np.empty(len(centers), np.int64)
    weights = np.zeros((len(centers), int(max(min(2 * support + 2, length), 2))))
    used = _fill_taps(centers, support, length, first, weights)
    weights = np.ascontiguousarray(weights[:, : max(used, 2)].T, np.float32)
    return Taps(first, weights, used == 1)


@njit
def _copy(
    image: np.ndarray, y: Taps, x: Taps, table: np.ndarray, band: RowBand, out: np.ndarray
) -> None:
    """The part of an output whose pixels are pixels of the image."""
    for i in range(band.start, min(band.stop, band.kept_rows)):
        line = image[y.first[i]]
        red = out[0, i]
        green = out[1, i]
        blue = out[2, i]
        for j in range(band.kept_columns):
            p = np.uint64(x.first[j])  # unsigned: numba does not test for negative indices
            red[j] = table[0, line[p, 0]]
            green[j] = table[1, line[p, 1]]
            blue[j] = table[2, line[p, 2]]


@njit
def _mix_rows(flat: np.ndarray, y: Taps, i: int, low: int, high: int, line: np.ndarray) -> None:
    """Bytes low..high of the rows under the filter of row i, into `line`."""
    first = y.first[i]
    weights = y.weights
    last = len(flat) - 1
    upper = flat[first]
    a = weights[0, i]
    # The second row may lie outside, without weight.
    lower = flat[min(first + 1, last)]
    b = weights[1, i]
    for p in range(low, high):
        line[p] = a * np.float32(upper[p]) + b * np.float32(lower[p])
    for k in range(2, len(weights)):
        more = flat[min(first + k, last)]
        c = weights[k, i]
        for p in range(low, high):
            line[p] += c * np.float32(more[p])


@njit(error_model="numpy")
def _mix_columns(
    line: np.ndarray, taps: Taps, columns: int, normal: Normal, out: np.ndarray, i: int
) -> None:
    """The pixels of row i, from `line`, three floats per pixel."""
    first = taps.first
    weights = taps.weights
    mean = normal.mean
    std = normal.std
    red = out[0, i]
    green = out[1, i]
    blue = out[2, i]
    # Offsets in `line`, unsigned: numba does not test for negative indices.
    pixel = np.uint64(3)
    green_at = np.uint64(1)
    blue_at = np.uint64(2)
    if len(weights) == 2:
        for j in range(columns):
            p = np.uint64(3 * first[j])
            a = weights[0, j]
            b = weights[1, j]
            red[j] = (a * line[p] + b * line[p + pixel] - mean[0]) / std[0]
            green[j] = (a * line[p + green_at] + b * line[p + pixel + green_at] - mean[1]) / std[1]
            blue[j] = (a * line[p + blue_at] + b * line[p + pixel + blue_at] - mean[2]) / std[2]
        return
    for j in range(columns):
        p = np.uint64(3 * first[j])
        r = g = b = np.float32(0)
        for k in range(len(weights)):
            w = weights[k, j]
            r += w * line[p]
            g += w * line[p + green_at]
            b += w * line[p + blue_at]
            p += pixel
        red[j] = (r - mean[0]) / std[0]
        green[j] = (g - mean[1]) / std[1]
        blue[j] = (b - mean[2]) / std[2]


@njit
def _resample(
    flat: np.ndarray,
    y: Taps,
    x: Taps,
    normal: Normal,
    band: RowBand,
    line: np.ndarray,
    out: np.ndarray,
) -> None:
    """A band of an output under any filters.

    Args:
        flat: the image, (H, W * 3).
        y, x: filters of rows and columns.
        normal, band, out: as in `resample_rows`.
        line: float32, scratch for one row.
    """
    low = x.first[0]
    high = x.first[0]
    for j in range(band.kept_columns):
        low = min(low, x.first[j])
        high = max(high, x.first[j])
    low = 3 * low
    high = min(3 * (high + len(x.weights)), flat.shape[1])
    for i in range(band.start, min(band.stop, band.kept_rows)):
        _mix_rows(flat, y, i, low, high, line)
        _mix_columns(line, x, band.kept_columns, normal, out, i)


@njit
def clear_rows(band: RowBand, out: np.ndarray) -> None:
    """Set rows start..stop of float32 (3, h, w) to 0 where there is no image."""
    for c in range(out.shape[0]):
        for i in range(band.start, band.stop):
            if i < band.kept_rows:
                out[c, i, band.kept_columns :] = 0
            else:
                out[c, i] = 0


def resample_rows(
    image: np.ndarray, y: Taps, x: Taps, normal: Normal, band: RowBand, out: np.ndarray
) -> None:
    """Make part of an output under an axis-aligned map. Releases the GIL.

    Args:
        image: uint8 (H, W, 3), C-contiguous, writable.
        y, x: filters of the rows and columns of `out`, within the image.
        normal: how bytes become numbers.
        band: the band to make.
        out: float32 (3, h, w), C-contiguous.
    """
    clear_rows(band, out)
    if y.copies and x.copies:
        _copy(image, y, x, normal.table, band, out)
        return
    flat = image.reshape(len(image), -1)
    line = np.zeros(flat.shape[1] + 3 * len(x.weights), np.float32)  # filters may reach beyond
    _resample(flat, y, x, normal, band, line, out)


# ------------------------------------------------------------------------------------------ affine


class AffinePlaces(NamedTuple):
    """The places of the pixels of an output in an image.

    Attributes:
        steps: int64 (2, 3): x and y of pixel (i, j), in units of 2**-32 pixels of the image, are
            [..., 0] j + [..., 1] i + [..., 2].
        support: float64 (2,), x and y: half the width of the filters in pixels, 1 or more.
        window: int64 (4,), x0, y0, x1, y1 in units of `steps`: positions outside become 0.
    """

    steps: np.ndarray
    support: np.ndarray
    window: np.ndarray


@njit
def _pair(
    position: np.int64, length: np.int64
) -> tuple[np.int64, np.int64, np.float32, np.float32]:
    """The two pixels next to a position, and their weights: the filter of a pixel's width."""
    moved = position - _HALF
    first = moved >> FRACTION
    rest = np.float64(moved & _REST) * _ONE
    if first < 0:
        return np.int64(0), np.int64(0), np.float32(1), np.float32(0)
    if first >= length - 1:
        return length - 1, length - 1, np.float32(1), np.float32(0)
    return first, first + 1, np.float32(1 - rest), np.float32(rest)


@njit
def _narrow(
    image: np.ndarray, x: np.int64, y: np.int64, height: np.int64, width: np.int64
) -> tuple[np.float32, np.float32, np.float32]:
    """Red, green and blue at a position, by filters of a pixel's width."""
    x0, x1, a0, a1 = _pair(x, width)
    y0, y1, c0, c1 = _pair(y, height)
    p = image[y0, x0]
    q = image[y1, x0]
    s = image[y0, x1]
    t = image[y1, x1]
    red = a0 * (c0 * np.float32(p[0]) + c1 * np.float32(q[0]))
    green = a0 * (c0 * np.float32(p[1]) + c1 * np.float32(q[1]))
    blue = a0 * (c0 * np.float32(p[2]) + c1 * np.float32(q[2]))
    red += a1 * (c0 * np.float32(s[0]) + c1 * np.float32(t[0]))
    green += a1 * (c0 * np.float32(s[1]) + c1 * np.float32(t[1]))
    blue += a1 * (c0 * np.float32(s[2]) + c1 * np.float32(t[2]))
    return red, green, blue


@njit
def _wide(
    image: np.ndarray,
    x: np.int64,
    y: np.int64,
    height: np.int64,
    width: np.int64,
    support: np.ndarray,
    weights: np.ndarray,
) -> tuple[np.float32, np.float32, np.float32]:
    """Red, green and blue at a position, by filters of any width.

    Args:
        image: uint8 (H, W, 3).
        x, y: position in units of `AffinePlaces.steps`.
        height, width: size of the image in pixels.
        support: as in `AffinePlaces`.
        weights: scratch (2, n).
    """
    left, across = _fill(np.float64(x) * _ONE, support[0], width, weights[0])
    top, down = _fill(np.float64(y) * _ONE, support[1], height, weights[1])
    red = green = blue = np.float32(0)
    for k in range(across):
        r = g = b = np.float32(0)
        for m in range(down):
            c = weights[1, m]
            r += c * np.float32(image[top + m, left + k, 0])
            g += c * np.float32(image[top + m, left + k, 1])
            b += c * np.float32(image[top + m, left + k, 2])
        red += weights[0, k] * r
        green += weights[0, k] * g
        blue += weights[0, k] * b
    return red, green, blue


@njit(error_model="numpy")
def _resample_affine(
    image: np.ndarray,
    stored: tuple[int, int],
    places: AffinePlaces,
    normal: Normal,
    band: RowBand,
    weights: np.ndarray,
    out: np.ndarray,
) -> None:
    steps = places.steps
    support = places.support
    window = places.window
    mean = normal.mean
    std = normal.std
    narrow = support[0] == 1 and support[1] == 1
    height = np.int64(stored[0])
    width = np.int64(stored[1])
    for i in range(band.start, band.stop):
        x_row = steps[0, 1] * i + steps[0, 2]
        y_row = steps[1, 1] * i + steps[1, 2]
        for j in range(out.shape[2]):
            x = steps[0, 0] * j + x_row
            y = steps[1, 0] * j + y_row
            inside = i < band.kept_rows and j < band.kept_columns
            inside = inside and window[0] <= x < window[2] and window[1] <= y < window[3]
            if not inside:
                out[0, i, j] = out[1, i, j] = out[2, i, j] = 0
                continue
            if narrow:
                red, green, blue = _narrow(image, x, y, height, width)
            else:
                red, green, blue = _wide(image, x, y, height, width, support, weights)
            out[0, i, j] = (red - mean[0]) / std[0]
            out[1, i, j] = (green - mean[1]) / std[1]
            out[2, i, j] = (blue - mean[2]) / std[2]


def resample_affine_rows(
    image: np.ndarray,
    stored: tuple[int, int],
    places: AffinePlaces,
    normal: Normal,
    band: RowBand,
    out: np.ndarray,
) -> None:
    """Make part of an output under an affine map. Releases the GIL.

    Args:
        image: uint8 (H, W, 3), C-contiguous; not read beyond `stored`.
        stored: height and width of the image, 1 to H and 1 to W.
        places: places of the pixels of `out` in the image.
        normal: how bytes become numbers; its table is not used.
        band: the band to make; of the rows and columns that it keeps, only those inside the window
            of `places` are not 0.
        out: float32 (3, h, w), C-contiguous.
    """
    widest = min(int(2 * max(places.support)) + 2, max(stored))
    weights = np.empty((2, widest), np.float32)
    _resample_affine(image, stored, places, normal, band, weights, out)
