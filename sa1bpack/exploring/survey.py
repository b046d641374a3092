"""Histograms that follow a filter: of some of the shards, read once.

All of SA-1B has 1.1 billion masks. Images are in random order in their tars, so a few shards show
the same as all. Of a pack of up to 20,000 images in 64 shards, or of a selection of as many, every
mask is counted.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sa1bpack.dataset.columns import Columns
from sa1bpack.dataset.condition_values import fulfilled
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import FormatError, StoreError
from sa1bpack.exploring.filters import COUNT, Filter, any_mask, ranged_numbers
from sa1bpack.exploring.shard_parts import ShardParts
from sa1bpack.export.histograms import histogram
from sa1bpack.export.report import MAX_IMAGES, MAX_SHARDS
from sa1bpack.format.problems import reason_of
from sa1bpack.wording import counted

_BINS = 40
_COUNT_TITLE = "Masks per image"
_LOGARITHMIC = ("area",)
_NO_BIN = 255  # of a value that the axis does not have, such as NaN


@dataclass(frozen=True)
class HistogramAxis:
    """The bins of a number, and the bin of each surveyed value.

    Attributes:
        title: what the number is called.
        values: (n,), of all surveyed images or masks.
        edges: float64 (b + 1,); a value on an edge is in the bin above it.
        bins: uint8 (n,): the bin of each value, or 255.
        whole: values are whole numbers.
    """

    title: str
    values: np.ndarray
    edges: np.ndarray
    bins: np.ndarray
    whole: bool

    @classmethod
    def of(cls, title: str, values: np.ndarray, logarithmic: bool) -> "HistogramAxis":
        """The axis of these values."""
        _, edges = histogram(values, _BINS, logarithmic)
        last = len(edges) - 2
        numbers = np.searchsorted(edges, values, side="right") - 1
        numbers[values == edges[-1]] = last
        off_axis = (numbers < 0) | (numbers > last)
        bins = np.where(off_axis, _NO_BIN, numbers).astype(np.uint8)
        return cls(title, values, edges, bins, np.issubdtype(values.dtype, np.integer))

    def counts(self, chosen: np.ndarray) -> list[int]:
        """The number of chosen values in each bin, for bool (n,)."""
        counts = np.bincount(self.bins[chosen], minlength=_NO_BIN + 1)
        within: list[int] = counts[: len(self.edges) - 1].tolist()
        return within


@dataclass
class Survey:
    """What was read of some shards, for histograms.

    Attributes:
        images, masks: numbers of those that were read.
        shards: number of shards that were read.
        coverage: the same in words.
        unreadable: the errors of shards that could not be read.
        axes: "mask_count", and each number of masks that has a range → its axis.
        offsets: int64 (images + 1,): where the masks of each image begin.
        columns: of each shard that was read.
        parts, numbers: the parts of the dataset, and the number of each that was read.
    """

    images: int = 0
    masks: int = 0
    shards: int = 0
    coverage: str = ""
    unreadable: list[str] = field(default_factory=list)
    axes: dict[str, HistogramAxis] = field(default_factory=dict)
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    columns: list[Columns] = field(default_factory=list)
    parts: ShardParts | None = None
    numbers: list[int] = field(default_factory=list)

    def histograms(self, chosen: Filter) -> dict[str, Any]:
        """The numbers in each bin of every axis, of what the rest of a filter leaves.

        An axis does not follow its own range, so that one sees what lies beyond it. `images` is how
        many of the surveyed images meet the whole filter.
        """
        images = self._fulfilling(chosen)
        counted_images = images
        if chosen.count is not None:
            counted_images = images & chosen.count.holds(self.axes[COUNT].values)
        inside = {}
        for bounds in chosen.masks:
            inside[bounds.name] = bounds.holds(self.axes[bounds.name].values)
        of_images = np.repeat(counted_images, np.diff(self.offsets))
        counts = {}
        for name, axis in self.axes.items():
            if name == COUNT:
                continue
            shown = of_images.copy()
            for other, holds in inside.items():
                if other != name:
                    shown &= holds
            counts[name] = axis.counts(shown)
        with_mask = np.ones(self.images, bool)
        if inside:
            with_mask = any_mask(np.logical_and.reduce([*inside.values()]), self.offsets)
        return {
            "counts": {COUNT: self.axes[COUNT].counts(images & with_mask), **counts},
            "images": int(np.count_nonzero(counted_images & with_mask)),
        }

    def _fulfilling(self, chosen: Filter) -> np.ndarray:
        """bool (images,): which of the surveyed images fulfil all conditions."""
        met = np.ones(self.images, bool)
        first = 0
        for number, columns in zip(self.numbers, self.columns, strict=True):
            if self.parts is not None and self.parts.name_features(chosen.conditions):
                columns = self.parts.columns(number, chosen.conditions)
            stop = first + len(columns)
            for condition in chosen.conditions:
                met[first:stop] &= fulfilled(condition, columns)
            first = stop
        return met


def survey_of(dataset: Dataset, parts: ShardParts) -> Survey:
    """Read shards of a dataset, in random order, until they have 20,000 images, at most 64.

    Of a pack at a URL, one shard is read, because it, or its small arrays, are fetched for that.
    Damage does not end the survey.
    """
    survey = Survey(parts=parts)
    names = ranged_numbers(dataset)
    values: dict[str, list[np.ndarray]] = {name: [] for name in names}
    counts: list[np.ndarray] = []
    most = 1 if dataset.pack.sources else MAX_SHARDS
    for part in np.random.default_rng(0).permutation(len(parts)).tolist():
        if survey.shards >= most or survey.images >= MAX_IMAGES:
            break
        try:
            columns = parts.columns(part)
            read = {name: np.array(columns[name]) for name in names}
        except (FormatError, OSError) as error:
            survey.unreadable.append(reason_of(error))
            continue
        except StoreError as error:
            survey.unreadable.append(str(error))
            break
        for name in names:
            values[name].append(read[name])
        counts.append(np.array(columns[COUNT]))
        survey.columns.append(columns)
        survey.numbers.append(part)
        survey.shards += 1
        survey.images += len(columns)
    mask_counts = np.concatenate([*counts, np.empty(0, np.int64)])
    survey.offsets = np.concatenate([[0], np.cumsum(mask_counts)])
    survey.masks = int(survey.offsets[-1])
    survey.axes = {COUNT: HistogramAxis.of(_COUNT_TITLE, mask_counts, logarithmic=False)}
    for name, title in names.items():
        joined = np.concatenate(values[name]) if values[name] else np.empty(0)
        survey.axes[name] = HistogramAxis.of(title, joined, name in _LOGARITHMIC)
    survey.coverage = _coverage(survey, dataset, len(parts))
    return survey


def _coverage(survey: Survey, dataset: Dataset, shards: int) -> str:
    """What the histograms are of, in words."""
    masks = counted(survey.masks, "mask")
    if survey.images == len(dataset):
        return f"{masks} of all {counted(len(dataset), 'image')}"
    images = f"{survey.images:,} of {counted(len(dataset), 'image')}"
    return f"{masks} of {images}, in {survey.shards:,} of {counted(shards, 'shard')}"
