"""Classes of samples: batches that have samples of one class alone, and where they come.

The samples of each class are cut into batches in the order in which they come in the epoch, and a
batch comes where its last sample does: so an order that goes by shards still does. What is left of
each class comes at the end.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import xxhash

from sa1bpack.arguments import is_number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.indices import SampleClass
from sa1bpack.loading.order.orders import Latest, Order
from sa1bpack.schedules import Schedule
from sa1bpack.wording import brief, counted

MAX_CLASSES = 65_535
LEAST_SIDE = 8  # a pair such as (4, 3) is a ratio
MAX_SIDE = 16_384  # of the size of a class, as of a canvas of a pipeline

Sides = tuple[int, int]  # height and width

_CHUNK = 1 << 20

_log = logging.getLogger("sa1bpack")


class Aspects(NamedTuple):
    """What the option `aspects` says.

    Attributes:
        ratios: float64 (k,), height / width of each class.
        sizes: (height, width) in pixels of each class; None: not given.
    """

    ratios: np.ndarray
    sizes: tuple[Sides, ...] | None


def parse_aspects(aspects: Any) -> Aspects:
    """The option `aspects`: numbers, pairs, or a mapping from number to pair.

    Raises OptionError for anything else, and for a class that comes twice.
    """
    ratios: list[Any]
    sizes: list[Sides] | None = None
    if isinstance(aspects, Mapping):
        sizes = [_sides(size) for size in aspects.values()]
        ratios = [_number(key) for key in aspects]
    elif isinstance(aspects, str) or not hasattr(aspects, "__iter__"):
        raise _bad_aspects(aspects)
    else:
        items = list(aspects)
        ratios = items
        if items and not is_number(items[0]):
            sizes = [_sides(size) for size in items]
            ratios = [height / width for height, width in sizes]
    for ratio in ratios:
        if not is_number(ratio) or not 1e-3 <= ratio <= 1e3:
            raise _bad_aspects(aspects)
    if not 1 <= len(ratios) <= MAX_CLASSES:
        raise OptionError(f"aspects has {len(ratios)} classes: give 1 to {MAX_CLASSES}")
    if len(set(ratios)) < len(ratios):
        raise OptionError(f"aspects is {brief(aspects)}: a ratio of height / width comes twice")
    return Aspects(np.array(ratios, np.float64), None if sizes is None else tuple(sizes))


def _bad_aspects(aspects: Any) -> OptionError:
    return OptionError(
        f"aspects is {brief(aspects)}: give a list of ratios height / width, each 0.001 to 1000, "
        "or of pairs (height, width) in pixels, or a dict from ratio to pair"
    )


def _number(key: Any) -> Any:
    """A ratio that is a key of a mapping: public tables have them as text."""
    try:
        return float(key)
    except (TypeError, ValueError):
        return key


def _sides(size: Any) -> Sides:
    """Height and width in pixels. Raises OptionError for anything else."""
    try:
        height, width = size
    except (TypeError, ValueError):
        raise OptionError(
            f"aspects has the size {brief(size)}: give (height, width) in pixels"
        ) from None
    sides = []
    for side in (height, width):
        if isinstance(side, float) and side.is_integer():
            side = int(side)
        sides.append(whole_number("a side of a size of aspects", side, 1, MAX_SIDE))
    if min(sides) < LEAST_SIDE:
        raise OptionError(
            f"aspects has {brief(size)}, which is a size in pixels, and has a side of less than "
            f"{LEAST_SIDE}: a ratio is one number, height / width"
        )
    return sides[0], sides[1]


def nearest(ratios: np.ndarray, aspects: np.ndarray) -> np.ndarray:
    """uint16 (n,): for each aspect, float64 (n,), the class whose ratio differs least from it.

    Of two that differ alike, the smaller ratio.

    Args:
        ratios: float64 (k,), the ratios of the classes, in any order.
        aspects: float64 (n,).
    """
    order = np.argsort(ratios, kind="stable")
    ascending = ratios[order]
    middles = (ascending[1:] + ascending[:-1]) / 2
    position = np.searchsorted(middles, aspects, side="left")
    return order[position].astype(np.uint16)


def canvases_of(
    numbers: np.ndarray, stored: np.ndarray, count: int, multiple: int, most: int
) -> tuple[Sides, ...]:
    """For each class, (height, width) of a canvas that holds all stored images of it.

    Args:
        numbers: uint16 (n,), class of each sample.
        stored: int32 (n, 2), height and width of the stored images.
        count: number of classes.
        multiple: sides are multiples of this, but for
        most: the largest side.
    """
    sides = np.ones((count, 2), np.int64)
    np.maximum.at(sides, numbers, stored.astype(np.int64))
    sides = np.minimum(-(-sides // multiple) * multiple, most)
    return tuple((height, width) for height, width in sides.tolist())


@dataclass(frozen=True, eq=False)
class SampleClasses:
    """The class of each sample of a dataset.

    Attributes:
        numbers: uint16 (n,), class of each sample.
        names: what messages call each class.
        canvases: (height, width) of the canvas of each class; None: classes are not of aspects.
        latest: the latest epoch that was cut.
    """

    numbers: np.ndarray
    names: tuple[str, ...]
    canvases: tuple[Sides, ...] | None
    latest: Latest

    @cached_property
    def counts(self) -> np.ndarray:
        """int64 (k,), samples of each class."""
        return np.bincount(self.numbers, minlength=len(self.names))

    @cached_property
    def text(self) -> str:
        """Text that is the same for the same class of each sample."""
        digest = xxhash.xxh3_64_hexdigest(self.numbers.astype("<u2").tobytes())
        return f"exactly one of {len(self.names):,}, {digest}"

    def of(self, number: int) -> SampleClass:
        """The class with this number."""
        canvas = None
        if self.canvases is not None:
            canvas = self.canvases[number]
        return SampleClass(number, canvas)


@dataclass(frozen=True, eq=False)
class ClassEpoch:
    """The batches of an epoch, each of one class, in the order in which they come.

    Attributes:
        samples: (N,), the samples of the epoch: class after class, each in order.
        positions: (N,), their positions in the epoch; None: they are not needed.
        class_begins: int64 (k + 1,), where the samples of each class begin.
        classes: int64 (b,), class of each batch.
        begins, ends: int64 (b,), samples begins[i] to ends[i] are those of batch i.
        before: int64 (b + 1,), samples in the batches before each.
        full: number of batches that are full; they come first.
    """

    samples: np.ndarray
    positions: np.ndarray | None
    class_begins: np.ndarray
    classes: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    before: np.ndarray
    full: int


def cut_classes(
    samples: np.ndarray, numbers: np.ndarray, count: int, size: int, keeps_positions: bool
) -> ClassEpoch:
    """Cut an epoch into batches of one class each.

    Args:
        samples: int64 (N,), the samples of the epoch in order.
        numbers: uint16 (n,), class of each sample.
        count: number of classes.
        size: samples of a full batch.
        keeps_positions: the result has `positions`.
    """
    of_samples = numbers[samples]
    order = np.argsort(of_samples, kind="stable")
    class_counts = np.bincount(of_samples, minlength=count)
    class_begins = np.concatenate([[0], np.cumsum(class_counts)])
    batch_counts = -(-class_counts // size)
    classes = np.repeat(np.arange(count), batch_counts)
    first_batch = np.cumsum(batch_counts) - batch_counts
    number_in_class = np.arange(len(classes)) - first_batch[classes]
    begins = class_begins[classes] + size * number_in_class
    ends = np.minimum(begins + size, class_begins[classes + 1])
    is_short = ends - begins < size
    sequence = np.lexsort((order[ends - 1], is_short))
    begins = begins[sequence]
    ends = ends[sequence]
    narrow = np.uint32 if max(len(numbers), len(samples)) < 2**32 else np.int64
    return ClassEpoch(
        samples=samples[order].astype(narrow),
        positions=order.astype(narrow) if keeps_positions else None,
        class_begins=class_begins,
        classes=classes[sequence],
        begins=begins,
        ends=ends,
        before=np.concatenate([[0], np.cumsum(ends - begins)]),
        full=int(len(classes) - is_short.sum()),
    )


class ClassCut:
    """Numbers of the batches of classes, epoch by epoch: pure functions, as those of `Cut`.

    Where batches begin is known once an epoch has been cut; how many it has is known before, unless
    the order draws samples.
    """

    def __init__(self, sizes: Schedule, order: Order, classes: SampleClasses, drop_last: bool):
        """
        Args:
            sizes: schedule of samples per batch, by epoch.
            order: the order of the samples.
            classes: their classes.
            drop_last: drop those of each class that do not fill a batch.

        Raises:
            OptionError: the sizes change by step.
        """
        if sizes.by == "step" and not sizes.constant:
            raise OptionError(
                "the batch size changes by step, but with exact classes an epoch is cut as a "
                "whole: choose a schedule by epoch"
            )
        self.sizes = sizes
        self.order = order
        self.classes = classes
        self._drop_last = drop_last
        self._first_steps = [0]  # of the first epochs

    def size(self, epoch: int, number: int) -> int:
        """Samples of a full batch of an epoch, all ranks together."""
        size: int = self.sizes(epoch)
        return size

    def counts(self, epoch: int) -> np.ndarray:
        """int64 (k,): samples of each class in an epoch."""
        order = self.order
        if not order.repeats:
            return self.classes.counts
        counts = np.zeros_like(self.classes.counts)
        for start in range(0, len(order), _CHUNK):
            samples = order.take(epoch, start, min(start + _CHUNK, len(order)))
            counts += np.bincount(self.classes.numbers[samples], minlength=len(counts))
        return counts

    def check(self, size: int, since: str, world_size: int, pads: bool) -> None:
        """Check that every class has samples enough for its last batch.

        Args:
            size: samples per batch, all ranks together.
            since: from when on a schedule has this size, as text.
            world_size: number of ranks.
            pads: the last batch of each class is filled up.

        Raises:
            OptionError: a rank's share of the last batch of a class would be empty, or `drop_last`
                leaves no batch.
        """
        if self._drop_last:
            self._check_dropped(size, since)
            return
        if pads or world_size == 1:
            return
        remedy = (
            'choose pad_last="ranks", which repeats a sample on the ranks that would have none and '
            "marks it, or pad_last=True or drop_last=True"
        )
        if self.order.repeats:
            raise OptionError(
                f"the order is {self.order.kind}, which draws samples again, so that in some epoch "
                f"fewer of a class may be left than there are ranks: {remedy}"
            )
        left_over = self.classes.counts % size
        too_few = np.flatnonzero((left_over > 0) & (left_over < world_size))
        if len(too_few):
            number = too_few[0]
            raise OptionError(
                f"the last batch{since} of class {self.classes.names[number]} has "
                f"{counted(int(left_over[number]), 'sample')} for {world_size} ranks; {remedy}, or "
                "another batch size"
            )

    def _check_dropped(self, size: int, since: str) -> None:
        """Refuse a size that no class has, and warn of classes that never fill a batch."""
        counts = self.classes.counts
        if counts.max() < size:
            raise OptionError(
                f"drop_last is True, but the largest class has {counted(counts.max(), 'sample')}, "
                f"less than a batch of {size}{since}: choose a smaller batch size, or pad_last=True"
            )
        never = np.flatnonzero((counts > 0) & (counts < size))
        if len(never) and not self.order.repeats:
            _log.warning(
                "drop_last is True, and classes with fewer samples than a batch of %s%s never "
                "come: %s, with %s (%s)",
                size,
                since,
                len(never),
                counted(int(counts[never].sum()), "sample"),
                brief([self.classes.names[number] for number in never]),
            )

    def length(self, epoch: int) -> int:
        """Batches of a complete epoch."""
        size = self.size(epoch, 0)
        counts = self.counts(epoch)
        full = int((counts // size).sum())
        if self._drop_last:
            return full
        return full + int((counts % size > 0).sum())

    def first_step(self, epoch: int) -> int:
        """Batches of all earlier epochs together: the step at which an epoch begins.

        Of an order that draws samples, each of these epochs is drawn once to count them.
        """
        known = self._first_steps
        while len(known) <= epoch:
            last = len(known) - 1
            if not self.order.repeats and last >= self.sizes.until:
                return known[-1] + (epoch - last) * self.length(last)
            # As one object: another thread may do the same.
            self._first_steps = known = [*known, known[-1] + self.length(last)]
        return known[epoch]

    def of_epoch(self, epoch: int) -> ClassEpoch:
        """The batches of an epoch, also those that `drop_last` drops."""
        order = self.order
        size = self.size(epoch, 0)

        def cut() -> ClassEpoch:
            return cut_classes(
                order.take(epoch, 0, len(order)),
                self.classes.numbers,
                len(self.classes.names),
                size,
                keeps_positions=order.repeats,
            )

        return self.classes.latest.get((order, epoch, size), cut)
