"""Lists of numbers in JSON → one array, read by compiled code.

Polygons have hundreds of coordinates each. As objects of Python they take most of the time that a
record takes, and none of them is needed.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from sa1bpack.kernels import njit

_MOST_DIGITS = 18  # that fit into int64
_MAX_EXACT = 2**53 - 1
_POWERS_OF_TEN = np.array([10.0**exponent for exponent in range(23)])  # those that are exact

_COMMA, _MINUS, _POINT, _ZERO, _NINE, _OPENING, _CLOSING = b",-.09[]"

_decode_lists = msgspec.json.Decoder(list[list[float]]).decode


@njit
def _after_space(text: np.ndarray, position: int) -> int:
    """The position of the first byte from a position on that is no space."""
    while text[position] == 32 or 9 <= text[position] <= 13:
        position += 1
    return position


@njit
def _read_number(text: np.ndarray, position: int) -> tuple[int, float]:
    """Read a number; returns the position after it, -1 if that is left to others, and its value.

    It is exact if its digits and its power of ten are: one division then rounds correctly.
    """
    is_negative = text[position] == _MINUS
    if is_negative:
        position += 1
    first = position
    digits = np.int64(0)
    while _ZERO <= text[position] <= _NINE:
        digits = 10 * digits + (np.int64(text[position]) - _ZERO)
        position += 1
    length = position - first
    decimals = 0
    if text[position] == _POINT:
        position += 1
        first = position
        while _ZERO <= text[position] <= _NINE:
            digits = 10 * digits + (np.int64(text[position]) - _ZERO)
            position += 1
        decimals = position - first
        length += decimals
    if length == 0 or length > _MOST_DIGITS or digits > _MAX_EXACT:
        return -1, 0.0
    value = digits / _POWERS_OF_TEN[decimals]
    if is_negative and (digits > 0 or decimals > 0):  # -0 is an integer, and has no sign
        value = -value
    return position, value


@njit
def _read_lists(text: np.ndarray, lists: int, values: np.ndarray, list_offset: np.ndarray) -> bool:
    """Read lists of numbers; False if there is something else, or a number that is not exact here.

    Args:
        text: uint8 (n,), valid JSON of the lists, with commas between them, and a zero byte.
        lists: how many they are.
        values: float64, takes their numbers; long enough.
        list_offset: int64 (lists + 1,), takes where the numbers of each begin and end.
    """
    position = 0
    count = 0
    list_offset[0] = 0
    for number in range(lists):
        position = _after_space(text, position)
        if text[position] != _OPENING:
            return False
        position = _after_space(text, position + 1)
        while text[position] != _CLOSING:
            position, values[count] = _read_number(text, position)
            if position < 0:
                return False
            count += 1
            position = _after_space(text, position)
            if text[position] == _COMMA:
                position = _after_space(text, position + 1)
            elif text[position] != _CLOSING:  # an exponent
                return False
        list_offset[number + 1] = count
        position = _after_space(text, position + 1)
        if text[position] == _COMMA:
            position += 1
    return True


def number_lists(lists: Sequence[msgspec.Raw]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of lists, given as valid JSON each.

    Returns:
        float64 (n,), those of all lists, as Python's `float` makes them of their digits; and int64
        (lists + 1,), where those of each begin and end.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: something is no list of numbers.
    """
    text = b",".join(lists)
    values = np.empty(text.count(b",") + 1)
    list_offset = np.empty(len(lists) + 1, np.int64)
    ended = np.frombuffer(text + b"\0", np.uint8)
    if _read_lists(ended, len(lists), values, list_offset):
        return values[: list_offset[-1]], list_offset
    decoded = _decode_lists(b"[%b]" % text)
    list_offset[0] = 0
    np.cumsum([*map(len, decoded)], out=list_offset[1:])
    return np.array([number for numbers in decoded for number in numbers], np.float64), list_offset
