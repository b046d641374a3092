"""Filters: ranges and conditions of a query, and the samples that meet them.

A sample meets a filter if its number of masks is in the range of `mask_count`, at least one of its
masks is in the ranges of all numbers of masks, and every condition holds, as for `Dataset.where`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from sa1bpack.dataset.columns import Columns
from sa1bpack.dataset.condition_values import checked_condition, fulfilled, values_of_samples
from sa1bpack.dataset.conditions import Condition, Operand
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

COUNT = "mask_count"
WHERE = "where"  # in a query, the conditions
MAX_CONDITIONS = 20
# Texts in quotes, which may have it, too, and what joins conditions.
_AND = re.compile(r"""("[^"]*"|'[^']*')|\s+and\s+""", re.IGNORECASE)
# Numbers of a sample that the index of a pack has: for others, shards are read.
_IN_THE_INDEX = (COUNT, "image_id")


def ranged_numbers(dataset: Dataset) -> dict[str, str]:
    """Number of a mask that has a range → its title: the area, and what has a chart in a report."""
    titles = {"area": "Mask area"}
    for number in dataset.layout.mask_numbers:
        if number.title:
            titles[number.array] = number.title
    return titles


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both inclusive; NaN is in none."""

    name: str
    low: float = -inf
    high: float = inf

    def holds(self, values: np.ndarray) -> np.ndarray:
        """bool (n,): which of n values are in the range."""
        inside: np.ndarray = (values >= self.low) & (values <= self.high)
        return inside

    @classmethod
    def parse(cls, name: str, text: str) -> "Range":
        """The range that "100:5000", "100:" or ":5000" says. Raises OptionError for another."""
        low, colon, high = text.partition(":")
        try:
            bounds = cls(name, float(low or -inf), float(high or inf))
        except ValueError:
            colon = ""
        if not colon or not bounds.low <= bounds.high:
            raise OptionError(f"{name} is {brief(text)}: write LOW:HIGH, such as 100:5000 or 100:")
        return bounds


@dataclass(frozen=True)
class Filter:
    """Which samples are shown; equal filters show the same ones.

    Attributes:
        count: of the number of masks; None: any.
        masks: of the numbers of masks; at least one mask of a sample is in all of them.
        conditions: all of them hold.
    """

    count: Range | None = None
    masks: tuple[Range, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, query: Mapping[str, str], dataset: Dataset) -> "Filter":
        """The filter of a query: `mask_count=5:&area=100:5000&where=height > 1000 and width > 9`.

        Raises OptionError, naming what there is, for another key or text.
        """
        names = ranged_numbers(dataset)
        count = None
        masks: list[Range] = []
        conditions: list[Condition] = []
        for name, text in sorted(query.items()):
            if name == COUNT:
                count = Range.parse(name, text)
            elif name == WHERE:
                conditions = parse_conditions(text, dataset)
            elif name in names:
                masks.append(Range.parse(name, text))
            else:
                known = ", ".join((COUNT, *names, WHERE))
                raise OptionError(f"there is no filter {brief(name)}: there are {known}")
        return cls(count, tuple(masks), tuple(conditions))

    @property
    def is_empty(self) -> bool:
        """True if every sample meets it."""
        return self == Filter()


def parse_conditions(text: str, dataset: Dataset) -> list[Condition]:
    """The conditions that a text says, with "and" between them; none if it is empty.

    Raises OptionError as `Dataset.where` does, and for more than MAX_CONDITIONS.
    """
    parts = []
    begin = 0
    for match in _AND.finditer(text):
        if match[1] is None:
            parts.append(text[begin : match.start()])
            begin = match.end()
    if text.strip():
        parts.append(text[begin:])
    if len(parts) > MAX_CONDITIONS:
        raise OptionError(f"where has {len(parts)} conditions: write at most {MAX_CONDITIONS}")
    table = values_of_samples(dataset.pack)
    return [checked_condition(part, WHERE, table, "sample") for part in parts]


class FilterSteps:
    """A filter for one dataset: what the index decides, and what the shards must be read for.

    Attributes:
        chosen: the filter.
        reads_shards: True if the index alone does not decide.
    """

    def __init__(self, chosen: Filter, dataset: Dataset):
        self.chosen = chosen
        self._by_index: list[Range | Condition] = []
        self._by_shard: list[Range | Condition] = []
        indexed = {Operand(name) for name in _IN_THE_INDEX}
        if dataset.options.rule is not None:  # how many masks a sample has, its shard alone tells
            indexed.remove(Operand(COUNT))
        for test in (chosen.count, *chosen.conditions):
            if test is None:
                continue
            compared = {Operand(COUNT)}
            if isinstance(test, Condition):
                compared = set(test.operands())
            if compared <= indexed:
                self._by_index.append(test)
            else:
                self._by_shard.append(test)
        self.reads_shards = bool(self._by_shard or chosen.masks)

    def by_index(self, dataset: Dataset) -> np.ndarray | None:
        """bool (n,): the samples of the dataset that may meet the filter; None: all of them."""
        if not self._by_index:
            return None
        met = np.ones(len(dataset), bool)
        for test in self._by_index:
            if isinstance(test, Condition):
                met &= test.holds(lambda operand: dataset.column(operand.name))
            else:
                met &= test.holds(dataset.column(test.name))
        return met

    def by_shard(self, columns: Columns) -> np.ndarray:
        """bool (k,): which of the k samples of one shard meet what the index does not decide."""
        met = np.ones(len(columns), bool)
        for test in self._by_shard:
            if isinstance(test, Condition):
                met &= fulfilled(test, columns)
            else:
                met &= test.holds(columns[test.name])
        if self.chosen.masks:
            inside = np.ones(int(columns["mask_offset"][-1]), bool)
            for bounds in self.chosen.masks:
                inside &= bounds.holds(columns[bounds.name])
            met &= any_mask(inside, columns["mask_offset"])
        return met


def any_mask(inside: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """bool (k,): the samples of which at least one mask is inside.

    Args:
        inside: bool (m,), per mask.
        offsets: int64 (k + 1,), where the masks of each sample begin.
    """
    before = np.zeros(len(inside) + 1, np.int64)
    np.cumsum(inside, out=before[1:])
    has_inside: np.ndarray = before[offsets[1:]] > before[offsets[:-1]]
    return has_inside
