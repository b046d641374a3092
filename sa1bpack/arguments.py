"""Checks of single arguments: numbers, choices, flags, sizes, parts of a job, alike everywhere.

Each takes the name of the argument, for its message, and returns the value as Python's own type.
"""

import operator
import re
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from math import inf, isfinite
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

# Seeds, epochs and image ids of random choices: what 64 bits hold.
MAX_WORD = 2**64 - 1

LEAST_SECONDS = 1e-3
# 23 days: a queue between processes waits with poll(), whose milliseconds have 31 bits.
MAX_SECONDS = min(2_000_000, threading.TIMEOUT_MAX)

# Part K of N of a job, (K, N), as a job array or several machines share the work.
Share = tuple[int, int]
ALL: Share = (1, 1)

Item = TypeVar("Item")

_PREFIXES = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGTP]?)(i?)B\s*")


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int: an int, or what stands for one (of numpy, of torch), but no bool.

    Raises OptionError unless low <= value <= high; a `high` of None is no limit.
    """
    number = None
    with suppress(TypeError):
        if not isinstance(value, bool | np.bool_):  # numpy before 2.1 takes its own for numbers
            number = operator.index(value)
    if number is None or number < low or (high is not None and number > high):
        limits = f"from {low} to {high}"
        if high is None:
            limits = f"of at least {low}"
        raise OptionError(f"{name} is {brief(value)}: choose a whole number {limits}")
    return number


def choice(name: str, value: Any, choices: Collection[str]) -> str:
    """`value`, one of the choices. Raises OptionError if it is none."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} is {brief(value)}: choose one of {', '.join(choices)}")
    return value


def flag(name: str, value: Any) -> bool:
    """A bool, from one of numpy as well. Raises OptionError for anything else."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} is {brief(value)}: choose True or False")
    return bool(value)


def is_number(value: Any) -> bool:
    """True for a finite real number, of Python or numpy; a bool is not."""
    with suppress(OverflowError):  # of an int beyond all floats
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    return False


def number(
    name: str, value: Any, low: float | None = None, high: float | None = None, why: str = ""
) -> float:
    """A number as a float.

    Args:
        name: name of the argument, for the message.
        value: its value.
        low, high: limits, None for none; there is no lower one without an upper one.
        why: the reason for a limit, for the message.

    Raises:
        OptionError: the number is not finite, or not low <= number <= high.
    """
    too_low = low is not None and is_number(value) and value < low
    too_high = high is not None and is_number(value) and value > high
    if is_number(value) and not too_low and not too_high:
        return float(value)
    limits = ""
    if low is not None:
        limits = f" from {low} to {high}"
    elif high is not None:
        limits = f" of at most {high}"
    raise OptionError(f"{name} is {brief(value)}: choose a number{limits}{why}")


def numbers_of(name: str, value: Any, count: int, owner: str, low: float = -inf) -> np.ndarray:
    """An array of numbers (count,), one per `owner`: "sample" or "mask".

    Raises OptionError for another shape or a type that is no number, and unless all of them are
    finite and at least `low`.
    """
    numbers = np.asarray(value)
    if numbers.shape != (count,) or numbers.dtype.kind not in "biuf":
        shown = f"{numbers.dtype} {numbers.shape}" if numbers.ndim else brief(value)
        raise OptionError(f"{name} is {shown}: give an array, one number per {owner}, ({count},)")
    refused = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= low)))
    if len(refused):
        first = refused[0]
        least = "" if low == -inf else f" of at least {low}"
        raise OptionError(
            f"{name} must be finite numbers{least}; {owner} {first} has {numbers[first]}"
        )
    return numbers


def bytes_of(name: str, value: Any) -> int:
    """A number of bytes: a whole number, or a text with a unit, such as "500 GB".

    Raises OptionError unless it is one, of at least 1.
    """
    if not isinstance(value, str):
        return whole_number(name, value, 1)
    size = 0.0
    if match := _SIZE.fullmatch(value):
        count, prefix, binary = match.groups()
        base = 1024 if binary else 1000
        size = float(count) * base ** _PREFIXES.index(prefix.upper())
    if size < 1:
        raise OptionError(f"{name} is {brief(value)}: choose a size such as '500 GB' or '1.5 TB'")
    return int(size)


def items_of(value: Any) -> Any:
    """An option that takes several items, of which None is none, as an empty tuple."""
    return () if value is None else value


def part_of_job(value: Any) -> Share:
    """(K, N), the K-th of N parts of a job, as ints.

    Raises OptionError unless it is a tuple of two whole numbers, K from 1 to N.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise OptionError(f"part is {brief(value)}: choose (K, N), for the K-th of N parts")
    count = whole_number("part", value[1], 1)
    return whole_number("part", value[0], 1, count), count


def share_of(items: Sequence[Item], part: Share) -> Sequence[Item]:
    """The items of the K-th of N parts of a job: every N-th, from the K-th on."""
    number, count = part
    return items[number - 1 :: count]
