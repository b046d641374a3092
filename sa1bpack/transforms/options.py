"""Options of steps and pipelines: numbers, sequences of numbers, sizes."""

from math import isfinite
from numbers import Real
from typing import Any

from sa1bpack.arguments import whole_number
from sa1bpack.masks.window import check_size

MAX_CANVAS = 16384  # pixels along one side, as for the images of a pack


def is_number(value: Any) -> bool:
    """Whether this is a finite real number, of Python or numpy; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def as_numbers(value: Any) -> tuple[float, ...]:
    """The items of a sequence of finite numbers; empty for anything else."""
    try:
        given = tuple(value)
    except TypeError:
        return ()
    return given if all(map(is_number, given)) else ()


def check_sides(name: str, size: Any, most: int) -> tuple[int, int]:
    """Return (height, width) from an option that is one side, for both, or a pair.

    Raises OptionError, with the option's name, unless the sides are whole numbers from 1 to `most`.
    """
    try:
        iter(size)
    except TypeError:
        return (whole_number(name, size, 1, most),) * 2
    return check_size(size, name, most)
