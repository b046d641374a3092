"""Which masks of a sample are kept in a batch that takes fewer, at any time of a training."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sa1bpack.arguments import MAX_WORD, choice, numbers_of, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import NUMBER_FIELDS
from sa1bpack.errors import LoaderError, OptionError, UnknownName
from sa1bpack.masks import thirds_of
from sa1bpack.schedules import Schedule, as_schedule
from sa1bpack.wording import brief

# Choice → the key of the sample that decides it. The last two are drawn.
CHOICES = {
    "largest": "areas",
    "iou": "predicted_ious",
    "stability": "stability_scores",
    "random": "image_id",
    "balanced": "areas",
}
_DRAWN = ("random", "balanced")

_FIELDS = {field.array: field for field in NUMBER_FIELDS}
_KEYS = {field.sample: field for field in NUMBER_FIELDS}


class MaskColumns:
    """Columns of the masks of one sample, for a function that weights them.

    columns["area"], columns["bbox"], ...  (m, ...): one row per mask, the names of
                                           `Dataset.mask_column`, in the dataset's coordinates
    columns["image_id"], columns["epoch"]  int
    """

    def __init__(self, sample: Mapping[str, Any], masks: int, epoch: int):
        self._sample, self._masks, self._epoch = sample, masks, epoch

    def __len__(self) -> int:
        return self._masks

    def __getitem__(self, name: str) -> Any:
        """The column of that name. Raises UnknownName naming the columns that exist."""
        if name == "epoch":
            return self._epoch
        key = _FIELDS[name].sample if name in _FIELDS else name
        if key not in self._sample or (key != "image_id" and name not in _FIELDS):
            raise UnknownName(
                f"no column {name!r}; the columns are image_id, epoch, {', '.join(_FIELDS)}"
            )
        return self._sample[key]


class MaskWeights:
    """Weights of all masks of a dataset, as a function that weights those of a sample."""

    def __init__(self, ds: Dataset, weights: np.ndarray):
        """weights: (T,), one number per mask, in the order of `ds.mask_column`."""
        self._ids, self._offsets = ds.ids, ds.mask_offsets
        total = int(self._offsets[-1])
        self._weights = numbers_of("mask_select", weights, total, "mask of the dataset", low=0)

    def __call__(self, columns: MaskColumns) -> np.ndarray:
        """(m,): the weights of a sample's masks."""
        index = int(self._ids.positions(np.array([columns["image_id"]]))[0])
        first, stop = self._offsets[index : index + 2].tolist() if index >= 0 else (0, 0)
        if stop - first != len(columns):
            raise LoaderError(
                f"the sample has {len(columns)} masks, but the array that weights them has "
                f"{stop - first} for it; a transform that drops masks needs a function of columns"
            )
        return self._weights[first:stop]


MaskSelect = str | Callable[[MaskColumns], np.ndarray]


@dataclass(frozen=True)
class MaskChoice:
    """At most `max_masks` masks of a sample, in their original order.

    max_masks    None keeps all
    mask_select  "largest": by area. "iou": by predicted IoU. "stability": by stability score. The
                 highest first; among equals the lower index comes first, and NaN ranks lowest.
                 "random": without replacement. "balanced": as many from each third of the sample's
                 masks by area, large, medium and small, as it has; one more from random thirds if
                 max_masks is not divisible by 3. A function of `MaskColumns` that returns a weight
                 per mask, (m,): drawn without replacement, each time in proportion to the weights
                 of those that are left; weights that are 0, negative or NaN come last, in random
                 order
    seed         of what is drawn, 0 to 2**64 - 1: a function of (seed, epoch, image_id) and of the
                 sample's masks alone, not of the batch, the worker or the rank
    pads         padded arrays always have `max_masks` rows per sample

    Raises OptionError for a value that cannot be used.
    """

    max_masks: int | None = None
    mask_select: MaskSelect = "largest"
    seed: int = 0
    pads: bool = False

    def __post_init__(self):
        if self.pads and self.max_masks is None:
            raise OptionError("pad_to_max needs max_masks, which is None")
        if not callable(self.mask_select):
            if not isinstance(self.mask_select, str):
                raise OptionError(
                    f"mask_select is {type(self.mask_select).__name__}: choose one of "
                    f"{', '.join(CHOICES)}, or a function of the columns of a sample's masks; "
                    "Loader and make_dataloader also take an array with one weight per mask of the "
                    "dataset"
                )
            choice("mask_select", self.mask_select, CHOICES)
        if self.max_masks is not None:
            max_masks = whole_number("max_masks", self.max_masks, 0, 2**31 - 1)
            object.__setattr__(self, "max_masks", max_masks)
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0, MAX_WORD))

    @property
    def capacity(self) -> int | None:
        """Masks per sample in padded arrays, if all batches have the same; else None."""
        return self.max_masks if self.pads else None

    def counts(self, masks: np.ndarray) -> np.ndarray:
        """How many masks are kept, of int64 (n,) mask counts: min(max_masks, masks)."""
        return masks if self.max_masks is None else np.minimum(masks, self.max_masks)

    def rows(self, sample: Mapping, masks: int, epoch: int) -> np.ndarray | None:
        """The masks of a sample to keep, for any values of the scores.

        sample  has `keys`, (masks, ...), and `image_id` for what is drawn

        Returns int64 (max_masks,), ascending; None for all, if the sample has no more than that.
        """
        if self.max_masks is None or masks <= self.max_masks:
            return None
        if isinstance(self.mask_select, str) and self.mask_select not in _DRAWN:
            found = np.asarray(sample[CHOICES[self.mask_select]])
            return np.sort(ranked(found)[: self.max_masks])
        image_id = int(sample["image_id"])
        words = self._words(image_id, masks, epoch)
        if self.mask_select == "random":
            order = np.argsort(words, kind="stable")
        elif self.mask_select == "balanced":
            order = _in_turn(thirds_of(sample["areas"]), words)
        else:
            order = _by_weight(self._weights(sample, image_id, masks, epoch), words)
        return np.sort(order[: self.max_masks])

    def of_arrays(
        self, image_id: int, arrays: Mapping, rows: np.ndarray, scale: np.ndarray, epoch: int
    ) -> np.ndarray:
        """The masks of a sample to keep, of those that are rows of arrays.

        arrays  name → array of a shard, or of this sample
        rows    int64 (m,)
        scale   float64 (2,), of x and y

        Returns int64 (min(max_masks, m),): the rows that are kept.
        """
        if self.max_masks is None or len(rows) <= self.max_masks:
            return rows
        sample: dict[str, Any] = {"image_id": image_id}
        for key in (
            _KEYS if callable(self.mask_select) else {CHOICES[self.mask_select]} & _KEYS.keys()
        ):
            field = _KEYS[key]
            sample[key] = arrays[field.array][rows]
            if field.scaled and (scale != 1).any():
                with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
                    sample[key] = sample[key] * np.tile(scale, field.columns // 2)
        return rows[self.rows(sample, len(rows), epoch)]

    def _words(self, image_id: int, masks: int, epoch: int) -> np.ndarray:
        """uint64 (masks,): random numbers of a sample."""
        # Raw output and stable sorts: numpy guarantees that these never change, unlike
        # `permutation`. SeedSequence does not accept negative numbers.
        entropy = np.random.SeedSequence([self.seed, epoch, image_id % 2**64])
        return np.random.PCG64(entropy).random_raw(masks)

    def _weights(self, sample: Mapping, image_id: int, masks: int, epoch: int) -> np.ndarray:
        """float64 (masks,): the weights that the function returns."""
        assert callable(self.mask_select)
        try:
            found = np.asarray(self.mask_select(MaskColumns(sample, masks, epoch)))
        except Exception as error:
            error.add_note(f"raised by mask_select for the masks of image_id {image_id}")
            raise
        if found.shape != (masks,) or found.dtype.kind not in "biuf":
            shown = f"{found.dtype} {found.shape}" if found.ndim else brief(found.item())
            raise OptionError(
                f"mask_select returned {shown} for image_id {image_id}: it must "
                f"return one number per mask, here ({masks},)"
            )
        return found.astype(np.float64)


def ranked(score: np.ndarray) -> np.ndarray:
    """int64 (m,): the masks from the highest score to the lowest.

    Among equals the lower index comes first, and NaN ranks lowest.
    """
    if score.dtype.kind == "f":
        score = np.where(np.isnan(score), -np.inf, score)
    # Reversed twice: negating the scores would overflow at the lowest integer.
    return len(score) - 1 - np.argsort(score[::-1], kind="stable")[::-1]


def _in_turn(group: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The masks in random order, one of each group in turn as long as they have any."""
    order = np.lexsort((words, group))
    sizes = np.bincount(group, minlength=1)
    turn = np.empty(len(group), np.int64)  # the place of each mask in its group
    turn[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.lexsort((words, turn))


def _by_weight(weights: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The masks in the order in which they are drawn, by weight and without replacement.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006: the highest of
    log(u) / w come first, with u uniform in (0, 1).
    """
    weights = np.nan_to_num(np.maximum(weights, 0), nan=0, posinf=np.finfo(np.float64).max)
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    with np.errstate(divide="ignore", over="ignore"):
        key = np.log(uniform) / weights
    return np.lexsort((words, -key))


_log = logging.getLogger(__name__)

ScheduledSelect = MaskSelect | np.ndarray | Schedule | list[Any]


@dataclass(frozen=True)
class MaskSchedule:
    """The MaskChoice of any epoch and step.

    max_masks    Schedule of the most masks that are kept of a sample; None keeps all
    mask_select  Schedule of which masks are kept
    seed, pads   as in MaskChoice
    """

    max_masks: Schedule
    mask_select: Schedule
    seed: int = 0
    pads: bool = False

    @classmethod
    def of(
        cls, max_masks: Any, mask_select: ScheduledSelect, seed: int, pads: bool
    ) -> "MaskSchedule":
        """The schedule of options of a loader, numbers or schedules.

        Raises OptionError for values that cannot be used, with the epoch or step of one of several.
        """

        def check(each: Any) -> None:
            known = "random" if isinstance(each, np.ndarray) else each  # weights of some dataset
            MaskChoice(None, known, seed)

        counts = as_schedule("max_masks", max_masks)
        counts = counts.map(lambda most: MaskChoice(most, pads=pads).max_masks)
        select = as_schedule("mask_select", mask_select, functions=False)
        select.map(check)
        return cls(counts, select, seed, pads)

    def over(self, ds: Dataset, seed: int) -> "MaskSchedule":
        """The same for the masks of a dataset, to which arrays of weights belong, and a seed.

        Raises OptionError for an array that does not have one weight per mask of the dataset.
        """
        if self.unlimited and self.mask_select != as_schedule("mask_select", "largest"):
            _log.warning("mask_select has no effect: max_masks is None, so all masks are kept")

        def weigh(value: Any) -> MaskSelect:
            return MaskWeights(ds, value) if isinstance(value, np.ndarray) else value

        return replace(self, mask_select=self.mask_select.map(weigh), seed=seed)

    def at(self, epoch: int, step: int | None) -> MaskChoice:
        """The choice in an epoch, at a step of it."""
        return self._first if self.constant else self._at(epoch, step)

    def _at(self, epoch: int, step: int | None) -> MaskChoice:
        most, select = self.max_masks.at(epoch, step), self.mask_select.at(epoch, step)
        return MaskChoice(most, select, self.seed, self.pads)

    @cached_property
    def _first(self) -> MaskChoice:
        return self._at(0, 0)

    @property
    def unlimited(self) -> bool:
        """Whether all masks are kept, always."""
        return self.max_masks.constant and self.max_masks.values[0] is None

    @property
    def constant(self) -> bool:
        """Whether the choice is always the same."""
        return self.max_masks.constant and self.mask_select.constant

    @property
    def schedules(self) -> tuple[tuple[str, Schedule], ...]:
        """The options that change, by name."""
        found = (("max_masks", self.max_masks), ("mask_select", self.mask_select))
        return tuple((name, each) for name, each in found if not each.constant)

    def with_sizes(self, sizes: Schedule) -> Iterator[tuple[int, MaskChoice]]:
        """Batch sizes and choices, one of which makes the largest batch.

        Those that come together, if that is known: one may grow while the other shrinks.
        """
        changing = [each for each in (self.max_masks, sizes) if not each.constant]
        if len({each.by for each in changing}) > 1:
            yield sizes.largest, MaskChoice(self.max_masks.largest, pads=self.pads)
            return
        largest: dict[int | None, int] = {}
        for start in sorted({start for each in changing for start in each.starts} | {0}):
            most, size = self.max_masks.at(start, start), sizes.at(start, start)
            largest[most] = max(size, largest.get(most, 0))
        for most, size in largest.items():
            yield size, MaskChoice(most, pads=self.pads)
