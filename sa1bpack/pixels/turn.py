"""Images under any affine maps, resampled and normalised in one pass, for the CPU.

The rule is that of `resample`, pixel by pixel: a triangle filter along each axis of the image, cut
off at its edges and normalised. Pixel (i, j) of the output is at x = a j + b i + c, and the filter
along x is as wide as the length of (a, b), but never narrower than a pixel; along y likewise. So a
map that does not rotate yields what `resample` does, and one that reduces nothing interpolates
bilinearly.

Positions are whole numbers of 2**-32 pixels, so that every device takes the same pixels of the
image with the same weights.
"""

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.pixels.resample import Normal

FRACTION = 32  # fractional bits of a position
_ONE = 2.0**-FRACTION
_HALF = np.int64(1) << (FRACTION - 1)
_REST = (np.int64(1) << FRACTION) - 1


@njit
def _fill(position, support, length, weights):
    """The filter at a position: its first pixel, and the number of weights, float32 of each."""
    at = np.float64(position) * _ONE
    low = max(np.int64(np.ceil(at - support - 0.5)), 0)
    high = min(np.int64(np.floor(at + support - 0.5)) + 1, length)
    # A pixel at the very end of the filter has no weight.
    while low < high and abs(low + 0.5 - at) >= support:
        low += 1
    while low < high and abs(high - 0.5 - at) >= support:
        high -= 1
    total = 0.0
    for k in range(low, high):
        total += 1 - abs(k + 0.5 - at) / support
    for k in range(low, high):
        weights[k - low] = np.float32((1 - abs(k + 0.5 - at) / support) / total)
    return low, high - low


@njit
def _pair(position, length):
    """The two pixels next to a position, and their weights: the filter of a pixel's width."""
    moved = position - _HALF
    first, rest = moved >> FRACTION, np.float64(moved & _REST) * _ONE
    if first < 0:
        return np.int64(0), np.int64(0), np.float32(1), np.float32(0)
    if first >= length - 1:
        return length - 1, length - 1, np.float32(1), np.float32(0)
    return first, first + 1, np.float32(1 - rest), np.float32(rest)


@njit
def _wide(image, x, y, support, height, width, x_weights, y_weights):
    """Red, green and blue at a position, by filters of any width."""
    left, across = _fill(x, support[0], width, x_weights)
    top, down = _fill(y, support[1], height, y_weights)
    red = green = blue = np.float32(0)
    for k in range(across):
        r = g = b = np.float32(0)
        for m in range(down):
            c = y_weights[m]
            r += c * np.float32(image[top + m, left + k, 0])
            g += c * np.float32(image[top + m, left + k, 1])
            b += c * np.float32(image[top + m, left + k, 2])
        red += x_weights[k] * r
        green += x_weights[k] * g
        blue += x_weights[k] * b
    return red, green, blue


@njit(error_model="numpy")
def _turn(
    image,
    height,
    width,
    steps,
    support,
    window,
    mean,
    std,
    keep,
    start,
    stop,
    x_weights,
    y_weights,
    out,
):
    narrow = support[0] == 1 and support[1] == 1
    height, width = np.int64(height), np.int64(width)
    for i in range(start, stop):
        x_row, y_row = steps[0, 1] * i + steps[0, 2], steps[1, 1] * i + steps[1, 2]
        for j in range(out.shape[2]):
            x, y = steps[0, 0] * j + x_row, steps[1, 0] * j + y_row
            inside = i < keep[0] and j < keep[1]
            inside = inside and window[0] <= x < window[2] and window[1] <= y < window[3]
            if not inside:
                out[0, i, j] = out[1, i, j] = out[2, i, j] = 0
                continue
            if narrow:
                x0, x1, a0, a1 = _pair(x, width)
                y0, y1, c0, c1 = _pair(y, height)
                p, q, s, t = image[y0, x0], image[y1, x0], image[y0, x1], image[y1, x1]
                red = a0 * (c0 * np.float32(p[0]) + c1 * np.float32(q[0]))
                green = a0 * (c0 * np.float32(p[1]) + c1 * np.float32(q[1]))
                blue = a0 * (c0 * np.float32(p[2]) + c1 * np.float32(q[2]))
                red += a1 * (c0 * np.float32(s[0]) + c1 * np.float32(t[0]))
                green += a1 * (c0 * np.float32(s[1]) + c1 * np.float32(t[1]))
                blue += a1 * (c0 * np.float32(s[2]) + c1 * np.float32(t[2]))
            else:
                red, green, blue = _wide(image, x, y, support, height, width, x_weights, y_weights)
            out[0, i, j] = (red - mean[0]) / std[0]
            out[1, i, j] = (green - mean[1]) / std[1]
            out[2, i, j] = (blue - mean[2]) / std[2]


def turn_rows(
    image: np.ndarray,
    stored: tuple[int, int],
    steps: np.ndarray,
    support: np.ndarray,
    window: np.ndarray,
    values: Normal,
    keep: tuple[int, int],
    rows: tuple[int, int],
    out: np.ndarray,
) -> None:
    """Make some rows of an output. Releases the GIL.

    Args:
        image: uint8 (H, W, 3), C-contiguous; not read beyond `stored`.
        stored: height and width of the image, 1 to H and 1 to W.
        steps: int64 (2, 3): x and y of pixel (i, j), in units of 2**-32 pixels of the image, are
            [..., 0] j + [..., 1] i + [..., 2].
        support: float64 (2,), x and y: half the width of the filters in pixels, 1 or more.
        window: int64 (4,), x0, y0, x1, y1 in units of `steps`: positions outside become 0.
        values: see `Normal`; its table is not used.
        keep: rows and columns of the output that the image may cover; the others become 0.
        rows: the first and the one after the last.
        out: float32 (3, h, w), C-contiguous.
    """
    start, stop = rows
    fits = all(1 <= n <= side for n, side in zip(stored, image.shape, strict=False))
    if not (
        fits
        and 0 <= start <= stop <= out.shape[1]
        and out.shape[0] == image.shape[2] == 3
        and min(support) >= 1
        and out.flags.carray
    ):
        raise ValueError(f"cannot write rows {rows} of {out.shape} from {stored} of {image.shape}")
    image = np.ascontiguousarray(image).view()
    image.flags.writeable = False
    weights = [np.empty(int(2 * s) + 2, np.float32) for s in support]
    _turn(
        image,
        *stored,
        steps,
        support,
        window,
        values.mean,
        values.std,
        keep,
        start,
        stop,
        *weights,
        out,
    )
