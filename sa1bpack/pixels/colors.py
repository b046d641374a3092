"""Colours of images, changed and normalised row by row, for the CPU.

The operations are those of torchvision's `ColorJitter` on values of 0 to 255, without intermediate
rounding. A row stays in the cache while one operation after the other passes over it.

Each hue is moved by a formula that sorts no channels: of a colour with the largest channel v, the
chroma c and the hue h, in units of 60 degrees, the channels are v - c * clip(min(k, 4 - k), 0, 1),
with k = (h + 5, h + 3, h + 1) modulo 6 (https://en.wikipedia.org/wiki/HSL_and_HSV).
"""

from typing import NamedTuple

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.pixels.resample import Normal

# Kinds of operations on colours.
BRIGHTNESS = 0  # mix with black
CONTRAST = 1  # mix with the mean grey of the image
SATURATION = 2  # mix with the greyscale image
HUE = 3  # turn by a fraction of 360 degrees

# Luma of ITU-R BT.601, as torchvision's rgb_to_grayscale rounds it.
LUMA = (0.2989, 0.587, 0.114)

_RED = np.float32(LUMA[0])
_GREEN = np.float32(LUMA[1])
_BLUE = np.float32(LUMA[2])
_ZERO = np.float32(0)
_ONE = np.float32(1)
_TWO = np.float32(2)
_THREE = np.float32(3)
_FOUR = np.float32(4)
_FIVE = np.float32(5)
_SIX = np.float32(6)
_WHITE = np.float32(255)
_LEAST_CHROMA = np.float32(1e-6)


class ColorOperations(NamedTuple):
    """What is done to the colours of an image, one operation after the other.

    Attributes:
        kinds: int64 (n,); CONTRAST at most once.
        factors: float32 (n,): a factor, or for HUE a fraction of 360 degrees.
    """

    kinds: np.ndarray
    factors: np.ndarray


class Rows(NamedTuple):
    """Rows of an image that are changed at once: the first, and one past the last."""

    start: int
    stop: int


@njit
def _clip(value: np.float32) -> np.float32:
    return min(max(value, _ZERO), _WHITE)


@njit
def _blend(value: np.float32, other: np.float32, factor: np.float32) -> np.float32:
    return _clip(value * factor + (_ONE - factor) * other)


@njit
def _gray(red: np.float32, green: np.float32, blue: np.float32) -> np.float32:
    return _RED * red + _GREEN * green + _BLUE * blue


@njit
def _brighten(red: np.ndarray, green: np.ndarray, blue: np.ndarray, factor: np.float32) -> None:
    for j in range(len(red)):
        red[j] = _clip(red[j] * factor)
        green[j] = _clip(green[j] * factor)
        blue[j] = _clip(blue[j] * factor)


@njit
def _contrast(
    red: np.ndarray, green: np.ndarray, blue: np.ndarray, factor: np.float32, mean: np.float32
) -> None:
    for j in range(len(red)):
        red[j] = _blend(red[j], mean, factor)
        green[j] = _blend(green[j], mean, factor)
        blue[j] = _blend(blue[j], mean, factor)


@njit
def _saturate(red: np.ndarray, green: np.ndarray, blue: np.ndarray, factor: np.float32) -> None:
    for j in range(len(red)):
        gray = _gray(red[j], green[j], blue[j])
        red[j] = _blend(red[j], gray, factor)
        green[j] = _blend(green[j], gray, factor)
        blue[j] = _blend(blue[j], gray, factor)


@njit
def _channel(angle: np.float32, value: np.float32, chroma: np.float32) -> np.float32:
    """One channel of a colour; the angle is -6 to 18, in units of 60 degrees."""
    angle = angle + _SIX if angle < _ZERO else angle
    angle = angle - _SIX if angle >= _SIX else angle
    angle = angle - _SIX if angle >= _SIX else angle
    return value - chroma * min(max(min(angle, _FOUR - angle), _ZERO), _ONE)


@njit(error_model="numpy")
def _turn_hue(red: np.ndarray, green: np.ndarray, blue: np.ndarray, turn: np.float32) -> None:
    for j in range(len(red)):
        r = red[j]
        g = green[j]
        b = blue[j]
        value = max(max(r, g), b)
        chroma = value - min(min(r, g), b)
        # Hue in units of 60 degrees: 0 is red, 2 green, 4 blue. Without chroma it has no effect.
        ahead = b - r if g == value else r - g
        sector = _TWO if g == value else _FOUR
        ahead = g - b if r == value else ahead
        sector = _ZERO if r == value else sector
        hue = sector + ahead / max(chroma, _LEAST_CHROMA) + _SIX * turn
        red[j] = _channel(hue + _FIVE, value, chroma)
        green[j] = _channel(hue + _THREE, value, chroma)
        blue[j] = _channel(hue + _ONE, value, chroma)


@njit
def _operate(
    red: np.ndarray,
    green: np.ndarray,
    blue: np.ndarray,
    operations: ColorOperations,
    count: int,
    mean: np.float32,
) -> None:
    """Do the first `count` operations to a row; `mean` is the mean grey before CONTRAST."""
    for k in range(count):
        kind = operations.kinds[k]
        factor = operations.factors[k]
        if kind == BRIGHTNESS:
            _brighten(red, green, blue, factor)
        elif kind == CONTRAST:
            _contrast(red, green, blue, factor, mean)
        elif kind == SATURATION:
            _saturate(red, green, blue, factor)
        elif kind == HUE:
            _turn_hue(red, green, blue, factor)


@njit
def _add_gray(
    red: np.ndarray, green: np.ndarray, blue: np.ndarray, inside: np.ndarray, sums: np.ndarray
) -> None:
    for j in range(len(red)):
        gray = _gray(red[j], green[j], blue[j])
        sums[j] += gray if inside[j] else _ZERO


@njit
def _copy_row(values: np.ndarray, out: np.ndarray) -> None:
    """Copy a row: `out[:] = values` would compile numba's text of an error, for eight seconds."""
    for j in range(len(out)):
        out[j] = values[j]


@njit
def _sum_gray(
    image: np.ndarray,
    inside: np.ndarray,
    operations: ColorOperations,
    rows: Rows,
    scratch: np.ndarray,
) -> float:
    before = 0
    while before < len(operations.kinds) and operations.kinds[before] != CONTRAST:
        before += 1
    red = scratch[0]
    green = scratch[1]
    blue = scratch[2]
    sums = scratch[3]
    sums[:] = _ZERO
    for i in range(rows.start, rows.stop):
        _copy_row(image[0, i], red)
        _copy_row(image[1, i], green)
        _copy_row(image[2, i], blue)
        _operate(red, green, blue, operations, before, _ZERO)
        _add_gray(red, green, blue, inside[i], sums)
    total = 0.0
    for j in range(len(sums)):
        total += sums[j]
    return total


@njit(error_model="numpy")
def _normalize(values: np.ndarray, inside: np.ndarray, mean: np.float32, std: np.float32) -> None:
    for j in range(len(values)):
        values[j] = (values[j] - mean) / std if inside[j] else _ZERO


@njit
def _change(
    image: np.ndarray,
    inside: np.ndarray,
    operations: ColorOperations,
    gray: np.float32,
    normal: Normal,
    rows: Rows,
) -> None:
    mean = normal.mean
    std = normal.std
    for i in range(rows.start, rows.stop):
        shown = inside[i]
        _operate(image[0, i], image[1, i], image[2, i], operations, len(operations.kinds), gray)
        _normalize(image[0, i], shown, mean[0], std[0])
        _normalize(image[1, i], shown, mean[1], std[1])
        _normalize(image[2, i], shown, mean[2], std[2])


def sum_gray(
    image: np.ndarray, inside: np.ndarray, operations: ColorOperations, rows: Rows
) -> float:
    """The sum of the grey of pixels before CONTRAST is changed. Releases the GIL.

    Args:
        image: float32 (3, H, W), 0 to 255, C-contiguous.
        inside: bool (H, W), C-contiguous: the pixels that count.
        operations: those of the image.
        rows: the rows that count.
    """
    scratch = np.empty((4, image.shape[2]), np.float32)
    return float(_sum_gray(image, inside, operations, rows, scratch))


def change_rows(
    image: np.ndarray,
    inside: np.ndarray,
    operations: ColorOperations,
    gray: float,
    normal: Normal,
    rows: Rows,
) -> None:
    """Change the colours of rows of an image in place, and normalise them. Releases the GIL.

    Args:
        image: float32 (3, H, W), 0 to 255, C-contiguous.
        inside: bool (H, W), C-contiguous; the other pixels become 0.
        operations: those of the image.
        gray: mean grey of the image before CONTRAST.
        normal: how values become numbers; its table is not used.
        rows: the rows to change.
    """
    _change(image, inside, operations, np.float32(gray), normal, rows)
