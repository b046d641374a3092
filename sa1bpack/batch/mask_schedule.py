"""Which masks are kept, if that changes from epoch to epoch or from step to step."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sa1bpack.batch.collate import fixed_capacity
from sa1bpack.batch.layout import MaskLayout
from sa1bpack.batch.mask_choice import Choose, MaskChoice, MaskWeights
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.schedules import Schedule, as_schedule

_log = logging.getLogger(__name__)

ScheduledChoose = Choose | np.ndarray | Schedule | list[Any]


@dataclass(frozen=True)
class MaskSchedule:
    """The MaskChoice of any epoch and step.

    max_masks  Schedule of the most masks that are kept of a sample; None keeps all
    choose     Schedule of which masks are kept
    seed       of what is drawn
    pads       padded arrays always have as many rows per sample as masks may be kept then
    """

    max_masks: Schedule
    choose: Schedule
    seed: int = 0
    pads: bool = False

    @classmethod
    def of(
        cls, max_masks: Any, choose: ScheduledChoose, seed: int, pads: bool, layout: MaskLayout
    ) -> "MaskSchedule":
        """The schedule of options of a loader, numbers or schedules.

        Raises OptionError for values that cannot be used, with the epoch or step of one of several;
        for `pads` without max_masks, or without a padded layout.
        """
        counts = as_schedule("max_masks", max_masks).map(lambda most: MaskChoice(most).max_masks)
        counts.map(lambda most: fixed_capacity(pads, MaskChoice(most), layout))
        found = cls(counts, as_schedule("choose", choose, functions=False), seed, pads)
        found.choose.map(lambda each: MaskChoice(None, _known(each), seed))
        return found

    def over(self, ds: Dataset, seed: int) -> "MaskSchedule":
        """The same for the masks of a dataset, to which arrays of weights belong, and a seed.

        Raises OptionError for an array that does not have one weight per mask of the dataset.
        """
        if self.unlimited and self.choose != as_schedule("choose", "largest"):
            _log.warning("choose has no effect: max_masks is None, so all masks are kept")
        weigh = partial(_weighing, ds)
        return MaskSchedule(self.max_masks, self.choose.map(weigh), seed, self.pads)

    def at(self, epoch: int, step: int | None) -> MaskChoice:
        """The choice in an epoch, at a step of it."""
        return MaskChoice(self.max_masks.at(epoch, step), self.choose.at(epoch, step), self.seed)

    def capacity(self, choice: MaskChoice) -> int | None:
        """Masks per sample in padded arrays, if all batches have the same; else None."""
        return choice.max_masks if self.pads else None

    @property
    def unlimited(self) -> bool:
        """Whether all masks are kept, always."""
        return self.max_masks.constant and self.max_masks.values[0] is None

    @property
    def constant(self) -> bool:
        """Whether the choice is always the same."""
        return self.max_masks.constant and self.choose.constant

    @property
    def by_step(self) -> bool:
        """Whether it may change within an epoch."""
        return any(each.by == "step" for _, each in self.schedules)

    @property
    def schedules(self) -> tuple[tuple[str, Schedule], ...]:
        """The options that change, by name."""
        found = (("max_masks", self.max_masks), ("choose", self.choose))
        return tuple((name, each) for name, each in found if not each.constant)

    def with_sizes(self, sizes: Schedule) -> Iterator[tuple[int, MaskChoice]]:
        """Batch sizes and choices, one of which makes the largest batch.

        Those that come together, if that is known: one may grow while the other shrinks.
        """
        changing = [each for each in (self.max_masks, sizes) if not each.constant]
        if len({each.by for each in changing}) > 1:
            yield sizes.largest, MaskChoice(self.max_masks.largest)
            return
        largest: dict[int | None, int] = {}
        for start in sorted({start for each in changing for start in each.starts} | {0}):
            most, size = self.max_masks.at(start, start), sizes.at(start, start)
            largest[most] = max(size, largest.get(most, 0))
        for most, size in largest.items():
            yield size, MaskChoice(most)


def _known(choose: Any) -> Choose:
    """What stands for an array of weights where the dataset is not known yet."""
    return "random" if isinstance(choose, np.ndarray) else choose


def _weighing(ds: Dataset, choose: Any) -> Choose:
    return MaskWeights(ds, choose) if isinstance(choose, np.ndarray) else choose
