"""The choice of masks for a batch that takes fewer than a sample has, at any time of a training."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sa1bpack.arguments import MAX_WORD, choice, numbers_of, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.fields import NUMBER_FIELDS, Field
from sa1bpack.errors import LoaderError, OptionError, UnknownName
from sa1bpack.format.layout import Layout
from sa1bpack.mask_numbers import MASK_NUMBERS, lacks_text
from sa1bpack.masks.relations import thirds_of
from sa1bpack.masks.select import ranked
from sa1bpack.random_words import repeated_ids, stream_words
from sa1bpack.schedules import Schedule, as_schedule
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief

# Choice → the key of the sample that decides it. The last three are drawn.
CHOICES = {
    "largest": "areas",
    "iou": "predicted_ious",
    "stability": "stability_scores",
    "random": "image_id",
    "balanced": "areas",
    "in_turn": "image_id",
}
_DRAWN = ("random", "balanced", "in_turn")
IN_TURN = "in_turn"


class MaskColumns(dict[str, Any]):
    """Columns of the masks of one sample, for a function that weights them.

    columns["area"], columns["bbox"], ...  (m, ...): one row per mask, the names of
                                           `Dataset.mask_column`, in the dataset's coordinates
    columns["image_id"], columns["epoch"]  int

    Another name raises UnknownName, which names the columns that exist.
    """

    def __missing__(self, name: str) -> None:
        raise UnknownName(f"no column {brief(name)}; the columns are {', '.join(self)}")


class MaskWeights:
    """Weights of all masks of a dataset, as a function that weights those of a sample."""

    def __init__(self, ds: Dataset, weights: np.ndarray):
        """
        Args:
            ds: the dataset.
            weights: (T,), one number per mask, in the order of `ds.mask_column`.

        Raises:
            OptionError: `weights` cannot be used, or differ for samples with the same image id.
        """
        self._ids = ds.ids
        self._offsets = ds.mask_offsets
        total = int(self._offsets[-1])
        self._weights = numbers_of("mask_select", weights, total, "mask of the dataset", low=0)
        self._check_repeated()

    def _check_repeated(self) -> None:
        """Raise OptionError if samples with the same image id have different weights."""
        ids = self._ids.ids
        first = self._ids.positions(ids)
        for index in np.flatnonzero(first != np.arange(len(ids))).tolist():
            earlier = int(first[index])
            if not np.array_equal(self._of_sample(earlier), self._of_sample(index)):
                raise OptionError(
                    f"mask_select is an array with different weights for samples {earlier} and "
                    f"{index} of the dataset, which both have image_id {ids[index]}, by which the "
                    "weights of a sample are found: pass a function of its columns, or a dataset "
                    "that has each image id once"
                )

    def _of_sample(self, index: int) -> np.ndarray:
        """(m,): the weights of the masks of a sample, by its index in the dataset."""
        weights: np.ndarray = self._weights[self._offsets[index] : self._offsets[index + 1]]
        return weights

    def __call__(self, columns: MaskColumns) -> np.ndarray:
        """(m,): the weights of a sample's masks."""
        index = int(self._ids.positions(np.array([columns["image_id"]]))[0])
        weights = np.empty(0)
        if index >= 0:
            weights = self._of_sample(index)
        masks = len(columns["area"])
        if len(weights) != masks:
            raise LoaderError(
                f"the sample has {masks} masks, but the array that weights them has "
                f"{len(weights)} for it; a transform that drops masks needs a function of columns"
            )
        return weights


MaskSelect = str | Callable[[MaskColumns], np.ndarray]


@dataclass(frozen=True)
class MaskChoice:
    """The choice of at most `max_masks` masks of a sample, in their original order.

    Attributes:
        max_masks: None keeps all.
        mask_select: "largest": by area. "iou": by predicted IoU. "stability": by stability score.
            The highest first; among equals the lower index comes first, and NaN ranks lowest.
            "random": without replacement. "balanced": as many from each third of the sample's masks
            by area, large, medium and small, as it has; one more from random thirds if max_masks is
            not divisible by 3. "in_turn": as "random", but each time that an image comes again in
            an epoch it has other masks, until all have come, about as many each time. A function of
            `MaskColumns` that returns a weight per mask, (m,): drawn without replacement, each time
            in proportion to the weights of those that are left. Masks with a weight that is 0,
            negative or NaN are never drawn: a sample may have fewer than `max_masks` then, or none.
        seed: seed of the random choice, 0 to 2**64 - 1, which is a function of (seed, epoch,
            image_id, repetition) and of the sample's masks alone, not of the batch, the worker or
            the rank.
        pads: padded arrays always have `max_masks` rows per sample.

    Raises:
        OptionError: a value that cannot be used.
    """

    max_masks: int | None = None
    mask_select: MaskSelect = "largest"
    seed: int = 0
    pads: bool = False

    def __post_init__(self) -> None:
        if self.pads and self.max_masks is None:
            raise OptionError("pad_to_max needs max_masks, which is None")
        if isinstance(self.mask_select, str):
            choice("mask_select", self.mask_select, CHOICES)
        elif not callable(self.mask_select):
            raise OptionError(
                f"mask_select is {type(self.mask_select).__name__}: choose one of "
                f"{', '.join(CHOICES)}, or a function of the columns of a sample's masks; Loader "
                "and make_dataloader also take an array with one weight per mask of the dataset"
            )
        if self.max_masks is not None:
            max_masks = whole_number("max_masks", self.max_masks, 0, 2**31 - 1)
            object.__setattr__(self, "max_masks", max_masks)
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0, MAX_WORD))

    @property
    def draws(self) -> bool:
        """True if masks are drawn, other ones in each epoch."""
        return bool(self.max_masks) and (callable(self.mask_select) or self.mask_select in _DRAWN)

    def keeps_all(self, masks: int | np.ndarray) -> bool:
        """True if all masks of samples with these numbers of masks are kept."""
        if self.max_masks is None:
            return True
        if callable(self.mask_select):  # which may leave out masks that would be few enough
            return not np.any(masks)
        return bool(np.all(masks <= self.max_masks))

    def rows(
        self, sample: Mapping[str, Any], masks: int, epoch: int, repetition: int = 0
    ) -> np.ndarray | None:
        """The masks of a sample to keep, for any values of the scores.

        Args:
            sample: has the key of CHOICES, (masks, ...), and for a random choice `image_id`; for a
                function, all fields that are numbers.
            masks: number of masks of the sample.
            epoch: epoch that the batch belongs to.
            repetition: how often the sample has come before in the epoch.

        Returns:
            int64 (at most max_masks,), ascending; None for all.
        """
        if self.keeps_all(masks):
            return None
        if isinstance(self.mask_select, str) and self.mask_select not in _DRAWN:
            key = CHOICES[self.mask_select]
            if key not in sample:
                raise OptionError(
                    f"mask_select is {brief(self.mask_select)}, but the samples have no {key}: "
                    "their pack has none, or a transform removed them; choose another"
                )
            score = np.asarray(sample[key])
            return np.sort(ranked(score)[: self.max_masks])
        image_id = int(sample["image_id"])
        if self.mask_select == IN_TURN:
            return self._in_turn(image_id, masks, epoch, repetition)
        [drawn_id] = repeated_ids(np.array([image_id]), np.array([repetition])).tolist()
        words = stream_words((self.seed, epoch, drawn_id), masks)
        if callable(self.mask_select):
            weights = _weights(self.mask_select, sample, image_id, masks, epoch)
            order = _by_weight(weights, words)
        elif self.mask_select == "balanced":
            order = _round_robin(thirds_of(sample["areas"]), words)
        else:
            order = np.argsort(words, kind="stable")
        return np.sort(order[: self.max_masks])

    def _in_turn(self, image_id: int, masks: int, epoch: int, repetition: int) -> np.ndarray:
        """The masks of one of the turns of an image, all of which have the same order of masks."""
        assert self.max_masks is not None, "without max_masks all masks are kept"
        if self.max_masks == 0:
            return np.empty(0, np.int64)
        order = np.argsort(stream_words((self.seed, epoch, image_id), masks), kind="stable")
        turns = -(-masks // self.max_masks)
        turn = repetition % turns
        return np.sort(order[turn * masks // turns : (turn + 1) * masks // turns])

    def of_arrays(
        self,
        image_id: int,
        arrays: Mapping[str, np.ndarray],
        rows: np.ndarray,
        scale: np.ndarray,
        repetition: int,
        *,
        epoch: int,
        numbers: Sequence[Field],
    ) -> np.ndarray:
        """The masks of a sample to keep, of those in some rows of arrays.

        Args:
            image_id: image id of the sample.
            arrays: name → array of a shard, or of this sample.
            rows: int64 (m,), rows of the sample's masks.
            scale: float64 (2,), factors of x and y.
            repetition: as in `rows`.
            epoch: epoch that the batch belongs to.
            numbers: those that all masks of the dataset have; arrays may have others.

        Returns:
            int64 (at most max_masks,), the rows to keep.
        """
        if self.keeps_all(len(rows)):
            return rows
        sample: dict[str, Any] = {"image_id": image_id}
        for field in numbers:
            if callable(self.mask_select) or field.sample == CHOICES[self.mask_select]:
                sample[field.sample] = arrays[field.array][rows]
                if field.scaled and (scale != 1).any():
                    with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
                        scales = np.tile(scale, field.columns // 2)
                        sample[field.sample] = sample[field.sample] * scales
        rows_kept: np.ndarray = rows[self.rows(sample, len(rows), epoch, repetition)]
        return rows_kept


def _weights(
    weigh: Callable[[MaskColumns], np.ndarray],
    sample: Mapping[str, Any],
    image_id: int,
    masks: int,
    epoch: int,
) -> np.ndarray:
    """float64 (masks,): the weights that a user's function returns for the masks of a sample."""
    columns = MaskColumns(image_id=image_id, epoch=epoch)
    for field in NUMBER_FIELDS:
        if field.sample in sample:
            columns[field.array] = sample[field.sample]
    subject = f"the masks of image_id {image_id}"
    weights = np.asarray(call_user(weigh, columns, role="mask_select", subject=subject))
    if weights.shape != (masks,) or weights.dtype.kind not in "biuf":
        shown = f"{weights.dtype} {weights.shape}"
        if not weights.ndim:
            shown = brief(weights.item())
        raise OptionError(
            f"mask_select returned {shown} for image_id {image_id}: it must "
            f"return one number per mask, here ({masks},)"
        )
    return weights.astype(np.float64)


def _round_robin(group: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The masks in random order, one of each group after the other, as long as they have any."""
    order = np.lexsort((words, group))
    sizes = np.bincount(group, minlength=1)
    position = np.empty(len(group), np.int64)  # the place of each mask in its group
    position[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.lexsort((words, position))


def _by_weight(weights: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The masks with a weight, in the order in which they are drawn, without replacement.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006: the highest of
    log(u) / w come first, with u uniform in (0, 1).
    """
    weights = np.nan_to_num(np.maximum(weights, 0), nan=0, posinf=np.finfo(np.float64).max)
    weighted = np.flatnonzero(weights)
    weights = weights[weighted]
    words = words[weighted]
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
    with np.errstate(over="ignore"):
        key = np.log(uniform) / weights
    return weighted[np.lexsort((words, -key))]


def _check_ranked(mask_select: str, layout: Layout) -> None:
    """Raise OptionError if masks of this layout lack the number that decides a choice."""
    for number in MASK_NUMBERS:
        if number.key == CHOICES[mask_select] and number.array in layout.absent:
            raise OptionError(
                f"mask_select is {brief(mask_select)}, but "
                f"{lacks_text(number.array, layout.mask_numbers)}; choose another"
            )


_log = logging.getLogger(__name__)

ScheduledSelect = MaskSelect | np.ndarray | Schedule | list[Any]


class MaskSchedule:
    """The MaskChoice of any epoch and step.

    Attributes:
        max_masks: schedule of the most masks to keep of a sample; None keeps all.
        mask_select: schedule of which masks to keep.
        seed, pads: as in MaskChoice.
        schedules: the options that change, by name.
        unlimited: all masks are always kept.
    """

    def __init__(self, max_masks: Any, mask_select: ScheduledSelect, seed: int, pads: bool):
        """The options of a loader that have these names: values, or schedules of them.

        Raises OptionError for values that cannot be used, with the epoch or step of one of several.
        """

        counts = as_schedule("max_masks", max_masks)
        self.max_masks = counts.map(lambda most: MaskChoice(most, pads=pads).max_masks)
        self.mask_select = as_schedule("mask_select", mask_select, functions=False)
        # An array has weights of some dataset, and is checked when that is known.
        known = self.mask_select.map(lambda each: "" if isinstance(each, np.ndarray) else each)
        known.map(lambda each: MaskChoice(None, each or "random", seed))
        self.seed = seed
        self.pads = pads
        options = (("max_masks", self.max_masks), ("mask_select", self.mask_select))
        self.schedules = tuple(option for option in options if not option[1].constant)
        self.unlimited = self.max_masks.constant and self.max_masks.values[0] is None
        self._only: MaskChoice | None = None  # if none of them changes

    def over(self, ds: Dataset, seed: int) -> "MaskSchedule":
        """This schedule for a dataset, to whose masks arrays of weights belong, and with a seed.

        Raises OptionError for an array that does not have one weight per mask of the dataset, and
        for a choice by a number that its masks lack.
        """
        if self.unlimited and self.mask_select != as_schedule("mask_select", "largest"):
            _log.warning("mask_select has no effect: max_masks is None, so all masks are kept")

        def weigh(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return MaskWeights(ds, value)
            if isinstance(value, str):
                _check_ranked(value, ds.layout)
            return value

        return MaskSchedule(self.max_masks, self.mask_select.map(weigh), seed, self.pads)

    def at(self, epoch: int, step: int | None) -> MaskChoice:
        """The choice in an epoch, at a step of it."""
        if self._only is not None:
            return self._only
        choice = MaskChoice(
            max_masks=self.max_masks.at(epoch, step),
            mask_select=self.mask_select.at(epoch, step),
            seed=self.seed,
            pads=self.pads,
        )
        if not self.schedules:
            self._only = choice
        return choice

    def with_sizes(self, sizes: Schedule) -> list[tuple[int, int | None]]:
        """Batch sizes, and most masks per sample, one pair of which makes the largest batch.

        Those that come together, if that is known: one may grow while the other shrinks.
        """
        masks = self.max_masks
        if not (masks.constant or sizes.constant) and masks.by != sizes.by:
            return [(sizes.largest, masks.largest)]
        starts = sorted({*masks.starts, *sizes.starts})
        return [(sizes.at(start, start), masks.at(start, start)) for start in starts]
