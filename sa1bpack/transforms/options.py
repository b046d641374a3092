"""Options of steps and pipelines: numbers, pairs of numbers, sizes."""

from math import isfinite
from numbers import Real
from operator import index
from typing import Any

from sa1bpack.errors import OptionError

MAX_CANVAS = 16384  # pixels along one side, as of the images of a pack


def is_number(value: Any) -> bool:
    """Whether this is a finite real number, of Python or of numpy; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def as_numbers(value: Any) -> tuple[float, ...]:
    """What a sequence of finite numbers holds; empty for anything else."""
    try:
        given = tuple(value)
    except TypeError:
        return ()
    return given if all(map(is_number, given)) else ()


def check_sides(name: str, size: Any, most: int) -> tuple[int, int]:
    """(height, width) of an option that is a side or both, of ints or what can stand for them.

    Raises OptionError, with the option's name, if a side is no whole number from 1 to `most`.
    """
    try:
        sides = _whole_numbers(size)
    except TypeError:
        sides = ()
    if len(sides) != 2 or not all(1 <= side <= most for side in sides):
        raise OptionError(
            f"{name} is {size!r}: give a side, or (height, width), of whole numbers from 1 to "
            f"{most}"
        )
    return sides


def _whole_numbers(size: Any) -> tuple[int, ...]:
    """Raises TypeError for what is neither a whole number nor a sequence of them; a bool is not."""
    if isinstance(size, bool):
        raise TypeError
    try:
        return (index(size),) * 2
    except TypeError:
        pass
    given = tuple(size)
    if any(isinstance(side, bool) for side in given):
        raise TypeError
    return tuple(map(index, given))
