"""Schedules: values that change from epoch to epoch, or from step to step.

A schedule is a pure function of one whole number: the epoch, or the step, which is the number of
batches (of all ranks together) since training began, as an uninterrupted run counts them. It is
kept as the numbers at which its value changes, so the largest value is known before training
begins, and equal schedules are equal however they were written.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import xxhash

from sa1bpack.arguments import MAX_WORD, choice, number, whole_number
from sa1bpack.errors import OptionError, UserCodeError
from sa1bpack.keywords import checks_options
from sa1bpack.user_code import call_user, error_text
from sa1bpack.wording import brief

BY = ("epoch", "step")

# Epochs for which a plain function is evaluated.
FUNCTION_EPOCHS = 1000
# Epochs or steps over which a value may change: the values of all of them are computed at once.
MAX_LENGTH = 10_000_000
# A state has a digest of a schedule with more changes than this.
_SHOWN_CHANGES = 16


class Schedule:
    """A value by epoch or by step, constant between the numbers at which it changes.

    Attributes:
        by: "epoch" or "step".
        starts: the numbers at which a value begins, ascending, the first is 0.
        values: the value from each of them on; the last one stays.
    """

    def __init__(
        self, by: str, starts: Sequence[int], values: Sequence[Any], text: str | None = None
    ):
        """Made by the schedules below and by `as_schedule`. `text` is what the user wrote."""
        self.by = choice("by", by, BY)
        self._written = text
        change_starts: list[int] = []
        change_values: list[Any] = []
        for start, value in zip(starts, values, strict=True):
            if not change_values or not _same(change_values[-1], value):
                change_starts.append(int(start))
                change_values.append(value)
        self.starts = tuple(change_starts)
        self.values = tuple(change_values)

    def __call__(self, number: int) -> Any:
        """The value of an epoch, or of a step, 0 or more."""
        return self.values[bisect_right(self.starts, number) - 1]

    def at(self, epoch: int | None, step: int | None) -> Any:
        """The value in this epoch, or at this step; only the one that it depends on is needed."""
        if self.constant:
            return self.values[0]
        number = epoch if self.by == "epoch" else step
        assert number is not None
        return self(number)

    @property
    def constant(self) -> bool:
        """True if there is one value only."""
        return len(self.values) == 1

    @property
    def until(self) -> int:
        """The number from which on the value stays."""
        return self.starts[-1]

    @property
    def largest(self) -> Any:
        """The largest value; None, which stands for no limit, is above all."""
        return None if None in self.values else max(self.values)

    def map(self, make: Callable[[Any], Any]) -> "Schedule":
        """A schedule of `make(value)`. An OptionError names the epoch or step of the value."""
        values = []
        for start, value in zip(self.starts, self.values, strict=True):
            try:
                values.append(make(value))
            except OptionError as error:
                if self.constant:
                    raise
                raise OptionError(f"from {self.by} {start} on, {error}") from None
        return Schedule(self.by, self.starts, values, self._written)

    def __repr__(self) -> str:
        return self._written or self.text

    @property
    def text(self) -> str:
        """The values as a saved state has them, the same for equal schedules.

        It reads `PiecewiseSchedule(20, {1: 30, 2: 40})`, whatever the schedule was written as. Of
        more than 16 changes it has the first, and a digest of all.
        """
        return f"PiecewiseSchedule({self._arguments})"

    @cached_property
    def _arguments(self) -> str:
        first, *later = map(_value_text, self.values)
        changes = [f"{start}: {text}" for start, text in zip(self.starts[1:], later, strict=True)]
        if len(changes) > _SHOWN_CHANGES:
            digest = xxhash.xxh3_64_hexdigest("; ".join(changes).encode())
            changes = [*changes[:2], f"... {len(changes)} changes, {digest}"]
        arguments = [first]
        if changes:
            arguments.append(f"{{{', '.join(changes)}}}")
        if self.by == "step":
            arguments.append("by=step")
        return ", ".join(arguments)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is b
    return bool(a == b)


def _value_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(value).tobytes())
        return f"{value.dtype} {value.shape} {digest}"
    name = getattr(value, "__qualname__", None)
    if callable(value) and name:
        return f"{value.__module__}.{name}"
    return repr(value)


@checks_options
class PiecewiseSchedule(Schedule):
    """Values that hold until the next one: `PiecewiseSchedule(20, {1: 30, 5: 40})`.

    20 in epoch 0, 30 from epoch 1 on, 40 from epoch 5 on. Values may be anything that the option
    takes, such as the names of a choice of masks.

    Examples:
        >>> caps = sa1bpack.PiecewiseSchedule(20, {1: 30, 5: 40})
        >>> [caps(epoch) for epoch in (0, 1, 4, 5, 99)]
        [20, 30, 30, 40, 40]
    """

    def __init__(self, first: Any, changes: Mapping[int, Any], *, by: str = "epoch"):
        """
        Args:
            first: the value from the beginning.
            changes: epoch or step, 1 or more → the value from there on.
            by: "epoch" or "step".

        Raises:
            OptionError: changes are not a mapping from whole numbers.
        """
        if not isinstance(changes, Mapping):
            raise OptionError(
                f"changes is {brief(changes)}: pass a dict, such as {{5: 30}} for 30 from epoch 5 "
                "on"
            )
        value_from = {
            whole_number("a key of changes", start, 1, MAX_WORD): value
            for start, value in changes.items()
        }
        starts = sorted(value_from)
        super().__init__(by, [0, *starts], [first, *(value_from[start] for start in starts)])


@checks_options
class _Curve(Schedule, ABC):
    """Whole numbers from `first` to `last` over some epochs or steps.

    A subclass has `_share`.
    """

    def __init__(
        self,
        first: int,
        last: int,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        multiple: int = 1,
    ):
        """
        Args:
            first: the value in epoch (or at step) 0, a whole number.
            last: the value in epoch `epochs` (or at step `steps`), which then stays.
            epochs, steps: one of the two, 1 to 10,000,000.
            multiple: values are rounded to the nearest multiple of this, halves up.

        Raises:
            OptionError: a value that cannot be used.
        """
        _check_whole("first", first)
        _check_whole("last", last)
        by, length = _length(type(self).__name__, epochs, steps)
        multiple = whole_number("multiple", multiple, 1)
        share = self._share(np.arange(length + 1) / length)
        # Rounded first, so that halves are halves on every machine.
        exact = np.round((first + (last - first) * share) / multiple, 9)
        values = (np.floor(exact + 0.5) * multiple).astype(np.int64)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
        text = f"{type(self).__name__}({first}, {last}, {by}s={length}"
        if multiple > 1:
            text += f", multiple={multiple}"
        super().__init__(by, starts.tolist(), values[starts].tolist(), f"{text})")

    @abstractmethod
    def _share(self, passed: np.ndarray) -> np.ndarray:
        """How much of the change has happened after these fractions of the length, float64 (n,)."""


def _check_whole(name: str, value: Any) -> None:
    """Raise OptionError unless an end of a curve is a whole number, such as 20 or 20.0."""
    if not number(name, value).is_integer():
        raise OptionError(
            f"{name} is {brief(value)}: choose a whole number, to which all values are rounded. "
            "Weights of a Mix count in proportion: choose 90 and 10 for 0.9 and 0.1. A "
            "FunctionSchedule has values of any kind"
        )


class LinearSchedule(_Curve):
    """Whole numbers that change evenly: `LinearSchedule(20, 100, epochs=8)` is 20, 30, 40, ... 100.

    Examples:
        >>> caps = sa1bpack.LinearSchedule(20, 100, epochs=8)
        >>> [caps(epoch) for epoch in (0, 1, 8, 99)]
        [20, 30, 100, 100]
    """

    def _share(self, passed: np.ndarray) -> np.ndarray:
        return passed


class CosineSchedule(_Curve):
    """Whole numbers that change along half a cosine: slowly, fast in the middle, slowly again.

    Examples:
        >>> caps = sa1bpack.CosineSchedule(20, 100, epochs=8)
        >>> [caps(epoch) for epoch in (0, 1, 4, 8)]
        [20, 23, 60, 100]
    """

    def _share(self, passed: np.ndarray) -> np.ndarray:
        return (1 - np.cos(np.pi * passed)) / 2


@checks_options
class FunctionSchedule(Schedule):
    """The values of a function: `FunctionSchedule(lambda epoch: 20 + 10 * epoch, epochs=9)`.

    The function is called when the schedule is made, once for each number below `epochs` (or
    `steps`); the last value stays. So the largest value is known, and neither a pickle nor a state
    has the function itself.

    Examples:
        >>> caps = sa1bpack.FunctionSchedule(lambda epoch: 20 + 10 * epoch, epochs=9)
        >>> caps(3), caps(99), caps.largest
        (50, 100, 100)
    """

    def __init__(
        self, function: Callable[[int], Any], *, epochs: int | None = None, steps: int | None = None
    ):
        """
        Args:
            function: epoch or step → value.
            epochs, steps: one of the two: how many numbers it is called for, 1 to 10,000,000.

        Raises:
            OptionError: a value that cannot be used, or the function fails.
        """
        if not callable(function):
            raise OptionError(
                f"function is {brief(function)}: pass a function of the epoch or the step"
            )
        by, length = _length("FunctionSchedule", epochs, steps)
        values = [_called("function", function, by, number) for number in range(length)]
        super().__init__(by, range(length), values)


def _called(name: str, function: Callable[[int], Any], by: str, number: int) -> Any:
    """The value of a function that is the option of this name. Raises OptionError if it fails."""
    try:
        return call_user(function, number, role=name, subject=f"{by} {number}")
    except UserCodeError as error:
        text = error_text(error.__cause__ or error)
        raise OptionError(
            f"{name} is a function that fails in {by} {number}: {text}. "
            f"It is called in advance with each {by} from 0 on in which its value may change: say "
            "for how many its values are used, as in "
            f"sa1bpack.FunctionSchedule(f, {by}s={number or 1}), or give a list of them"
        ) from error


def _length(schedule: str, epochs: int | None, steps: int | None) -> tuple[str, int]:
    """The unit of a schedule, epoch or step, and its length."""
    if (epochs is None) == (steps is None):
        raise OptionError(f"{schedule} has epochs={epochs} and steps={steps}: give one of them")
    if steps is None:
        return "epoch", whole_number("epochs", epochs, 1, MAX_LENGTH)
    return "step", whole_number("steps", steps, 1, MAX_LENGTH)


# An option that is a whole number, or changes: a schedule, a value per epoch, or a function of it.
WholeNumbers = int | Schedule | list[int] | Callable[[int], int]


def as_schedule(name: str, value: Any, functions: bool = True) -> Schedule:
    """The schedule that an option is.

    An option is a schedule itself, a list with one value per epoch, a function of the epoch, or the
    one value that it always has.

    Args:
        name: name of the option, for messages.
        value: value of the option.
        functions: False: a function is a value, not a schedule.

    Raises:
        OptionError: an empty list, a function that fails, or one that does not stay at a value:
            that still changes in the second half of FUNCTION_EPOCHS.
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, list):
        if not value:
            raise OptionError(f"{name} is an empty list: give one value per epoch; the last stays")
        return Schedule("epoch", range(len(value)), value)
    if not (functions and callable(value)):
        return Schedule("epoch", [0], [value], repr(value))
    epochs = range(FUNCTION_EPOCHS)
    schedule = Schedule("epoch", epochs, [_called(name, value, "epoch", epoch) for epoch in epochs])
    if schedule.until >= FUNCTION_EPOCHS // 2:
        raise OptionError(
            f"{name} is a function that still changes in epoch {schedule.until}: say for how many "
            "epochs its values are used, as in sa1bpack.FunctionSchedule(f, epochs=50)"
        )
    return schedule


def whole_numbers(name: str, value: Any, low: int, high: int | None = None) -> Schedule:
    """`as_schedule` of an option that is a whole number.

    Raises OptionError for a value out of range, naming its epoch or step.
    """
    return as_schedule(name, value).map(partial(whole_number, name, low=low, high=high))
