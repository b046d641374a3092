"""Options of steps and pipelines: numbers, sequences of numbers, sizes and their schedules."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sa1bpack.arguments import MAX_WORD, is_number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.masks.raster import MAX_MASK_SIZE
from sa1bpack.masks.window import check_size
from sa1bpack.schedules import Schedule, as_schedule

MAX_CANVAS = 16384  # pixels along one side, as for the images of a pack


def as_numbers(value: Any) -> tuple[float, ...]:
    """The items of a sequence of finite numbers; empty for anything else."""
    try:
        given = tuple(value)
    except TypeError:
        return ()
    return given if all(map(is_number, given)) else ()


def as_range(
    name: str, value: Any, low: float, high: float, around: float = 0.0
) -> tuple[float, float]:
    """The range of a random number, given as its spread around a number or as (low, high).

    Raises OptionError, with the option's name, unless it is within `low` and `high`.
    """
    most = high - around
    if is_number(value) and 0 <= value <= most:
        return max(low, around - value), around + value
    given = as_numbers(value)
    if len(given) != 2 or not low <= given[0] <= given[1] <= high:
        raise OptionError(
            f"{name} is {value!r}: choose a number from 0 to {most:g}, or a range (low, high) of "
            f"{low:g} to {high:g}"
        )
    return given


def check_sides(name: str, size: Any, most: int) -> tuple[int, int]:
    """Return (height, width) from an option that is one side, for both, or a pair.

    Raises OptionError, with the option's name, unless the sides are whole numbers from 1 to `most`.
    """
    if isinstance(size, Iterable):
        return check_size(size, name, most)
    return (whole_number(name, size, 1, most),) * 2


Sides = tuple[int, int]
# A side, or (height, width), or a schedule of either. A list is a schedule.
Size = int | Sides | Schedule | list[Any] | Callable[[int], Any] | None


@dataclass(frozen=True)
class Sizes:
    """Schedules of the canvas and of the mask grid, (height, width) each.

    proportional  whether the grid has as many pixels per cell as in the batch
    """

    canvas: Schedule
    grid: Schedule
    proportional: bool

    @classmethod
    def of(cls, size: Size, mask_size: Size, side: int, cells: int) -> "Sizes":
        """Of a pipeline's options. Raises OptionError for a value that cannot be used.

        side, cells  of the images and of the masks of a batch
        """
        canvas = as_schedule("size", side if size is None else size)
        canvas = canvas.map(lambda each: check_sides("size", each, MAX_CANVAS))
        if mask_size is None:
            grid = canvas.map(lambda each: [max(1, length * cells // side) for length in each])
        else:
            grid = as_schedule("mask_size", mask_size)
        grid = grid.map(lambda each: check_sides("mask_size", each, MAX_MASK_SIZE))
        return cls(canvas, grid, mask_size is None)

    def at(self, epoch: int | None, step: int | None) -> tuple[Sides, Sides]:
        """Canvas and grid in an epoch, at a step; only what they depend on is needed."""
        return self.canvas.at(epoch, step), self.grid.at(epoch, step)

    def change_by(self, by: str) -> bool:
        """Whether any size depends on the epoch, or on the step."""
        return any(not each.constant and each.by == by for each in (self.canvas, self.grid))

    def step_of(self, batch: Mapping) -> int | None:
        """The step of a batch, if any size depends on it.

        Raises OptionError if the batch has none.
        """
        if not self.change_by("step"):
            return None
        if batch.get("global_step") is None:
            raise OptionError(
                "the sizes of the pipeline change by step, but the batch has no 'step': take it "
                "from Loader or make_dataloader, or choose sizes by epoch"
            )
        return whole_number("batch['global_step']", batch["global_step"], 0, MAX_WORD)

    def __str__(self) -> str:
        canvas, grid = (
            str(sides.values[0]) if sides.constant else repr(sides)
            for sides in (self.canvas, self.grid)
        )
        if self.proportional and not self.grid.constant:
            grid = "in proportion"
        return f"size={canvas}, mask_size={grid}"
