"""The sizes of a pipeline's results: of the canvas and of the grid of masks, in each batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sa1bpack.arguments import is_number
from sa1bpack.errors import OptionError
from sa1bpack.masks.select import MAX_MASK_SIZE
from sa1bpack.schedules import Schedule, as_schedule
from sa1bpack.transforms.checks import MAX_CANVAS, Sides, check_sides

# (height, width), or one of them for each class of samples.
ClassSides: TypeAlias = Sides | tuple[Sides, ...]

# A side, or (height, width), or one of these for each class; or a schedule of any of them. A list
# is a schedule.
Size: TypeAlias = int | ClassSides | Schedule | list[Any] | Callable[[int], Any] | None


@dataclass(frozen=True)
class SizeSchedules:
    """The sizes of a pipeline's results, (height, width) each, by epoch or step, and by class.

    Attributes:
        canvas: in pixels, of a `ClassSides` each.
        grid: that of the masks, in cells, likewise.
        side: side of the images of a batch in pixels, unless they have a class of aspect.
        cells: side of the grids of masks of a batch.
        of_batch: the canvas is that of the batch; `canvas` is that of one without a class.
        in_proportion: the grid follows the canvas.
    """

    canvas: Schedule
    grid: Schedule
    side: int
    cells: int
    of_batch: bool
    in_proportion: bool

    @classmethod
    def of(cls, size: Size, mask_size: Size, side: int, cells: int) -> "SizeSchedules":
        """Those of the options of a `Pipeline`.

        Args:
            size, mask_size: the options.
            side, cells: sides of the images and of the grids of masks of a batch.

        Raises:
            OptionError: a value that cannot be used.
        """
        canvas = as_schedule("size", side if size is None else size)
        canvas = canvas.map(lambda value: _checked("size", value, MAX_CANVAS))
        if mask_size is None:
            grid = canvas.map(lambda sides: _in_proportion(sides, side, cells))
        else:
            grid = as_schedule("mask_size", mask_size)
        grid = grid.map(lambda value: _checked("mask_size", value, MAX_MASK_SIZE))
        return cls(canvas, grid, side, cells, size is None, mask_size is None)

    def __str__(self) -> str:
        grid = _schedule_text(self.grid)
        if self.in_proportion and not self.grid.constant:
            grid = "in proportion"
        return f"size={_schedule_text(self.canvas)}, mask_size={grid}"

    def at(
        self, epoch: int | None, step: int | None, of_class: int | None, batch_canvas: Sides
    ) -> tuple[Sides, Sides]:
        """The canvas and the grid of a batch.

        Args:
            epoch, step: those of the batch.
            of_class: number of the class of its samples; None: it has none.
            batch_canvas: height and width of its images.

        Raises:
            OptionError: sizes are those of classes, and the batch has none, or another one.
        """
        if not self.of_batch:
            canvas = _of_class("size", self.canvas.at(epoch, step), of_class)
        else:
            canvas = batch_canvas
        if self.of_batch and self.in_proportion:
            grid = _in_proportion(canvas, self.side, self.cells)
            return canvas, check_sides("mask_size", grid, MAX_MASK_SIZE)
        return canvas, _of_class("mask_size", self.grid.at(epoch, step), of_class)

    def change_by(self, unit: str) -> bool:
        """True if a size changes by "epoch", or by "step"."""
        schedules = self.canvas, self.grid
        return any(schedule.by == unit and not schedule.constant for schedule in schedules)


def _is_of_classes(value: Any) -> bool:
    """True for a tuple of pairs, one for each class."""
    return isinstance(value, tuple) and len(value) > 0 and not is_number(value[0])


def _checked(name: str, value: Any, most: int) -> ClassSides:
    """A size, or one of each class. Raises OptionError, with the option's name."""
    if _is_of_classes(value):
        return tuple(check_sides(name, sides, most) for sides in value)
    return check_sides(name, value, most)


def _in_proportion(canvas: ClassSides, side: int, cells: int) -> Any:
    """The grid with as many pixels per cell as in the batch."""
    if _is_of_classes(canvas):
        return tuple(_in_proportion(sides, side, cells) for sides in canvas)  # type: ignore[arg-type]
    return tuple(max(1, length * cells // side) for length in canvas)  # type: ignore[operator]


def _of_class(name: str, value: Any, of_class: int | None) -> Sides:
    """The size of a batch, by its class if sizes are those of classes. Raises OptionError."""
    if not _is_of_classes(value):
        sides: Sides = value
        return sides
    if of_class is None:
        raise OptionError(
            f"{name} has a size for each of {len(value)} classes, but the batch has no "
            "'sample_class': take it from a Loader with bucket_by=Buckets(ds, aspects=[...], "
            "exact=True); derive has none: docs/other-code.md, PixArt, makes features by class"
        )
    if not 0 <= of_class < len(value):
        raise OptionError(
            f"{name} has the sizes of {len(value)} classes, but the batch is of class {of_class}: "
            "pass the sizes of its Buckets"
        )
    sides = value[of_class]
    return sides


def _schedule_text(schedule: Schedule) -> str:
    if schedule.constant:
        return str(schedule.values[0])
    return repr(schedule)
