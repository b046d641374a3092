"""How samples become batches, in every epoch: the rules, and the numbers that follow from them.

`epoch.py` has the batches.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.arguments import flag
from sa1bpack.errors import OptionError
from sa1bpack.loading.order.buckets import Buckets
from sa1bpack.loading.order.classes import ClassCut
from sa1bpack.loading.order.orders import Latest, Order
from sa1bpack.schedules import Schedule, WholeNumbers, whole_numbers
from sa1bpack.wording import brief, counted

MAX_RANKS = MAX_BATCH = 2**32 - 1
# The value of `pad_last` that repeats samples only where a rank would have none.
RANKS = "ranks"
# Epochs of a batch size by step that are cut beforehand, to find one that cannot be.
_CHECKED_EPOCHS = 1000


class Rest(NamedTuple):
    """The batches of an epoch from one of its samples on.

    Attributes:
        first: number of the first batch.
        moved: how many positions later the batches would begin in a complete epoch: another batch
            size may have left the first sample between two batches.
        full: number of full batches.
        left_over: number of samples that do not fill a batch.
    """

    first: int
    moved: int
    full: int
    left_over: int


class Cut:
    """Numbers of batches and positions of samples, epoch by epoch: pure functions.

    The batches of an epoch are numbered from 0, and here the last one has no end: positions
    continue behind the epoch's last sample, as if batches of the same sizes followed.
    """

    def __init__(self, sizes: Schedule, samples: int, drop_last: bool):
        """
        Args:
            sizes: schedule of samples per batch.
            samples: number of samples of an epoch.
            drop_last: drop those that do not fill a batch.
        """
        self.sizes = sizes
        self._samples = samples
        self._drop_last = drop_last
        self._before = [0]  # by step: samples before each change of the size, if batches are full
        for (start, stop), size in zip(pairwise(sizes.starts), sizes.values, strict=False):
            self._before.append(self._before[-1] + (stop - start) * size)
        self._first_steps = [0]  # of the first epochs

    def size(self, epoch: int, number: int) -> int:
        """Samples of a batch, all ranks together."""
        if self.sizes.by == "epoch":
            return self._size(epoch)
        return self._size(self.first_step(epoch) + number)

    def _size(self, number: int) -> int:
        """Samples of a batch in an epoch, or at a step."""
        size: int = self.sizes(number)
        return size

    def position(self, epoch: int, number: int) -> int:
        """The first sample of a batch, counted from the beginning of the epoch."""
        if self.sizes.by == "epoch":
            return number * self._size(epoch)
        first = self.first_step(epoch)
        return self._total(first + number) - self._total(first)

    def number(self, epoch: int, position: int) -> int:
        """The batch that a position of an epoch is in."""
        if self.sizes.by == "epoch":
            return position // self._size(epoch)
        first = self.first_step(epoch)
        return self._step_of(self._total(first) + position) - first

    def rest(self, epoch: int, start: int = 0) -> Rest:
        """The batches of an epoch from its sample `start` on."""
        first = self.number(epoch, start)
        if self.position(epoch, first) < start:
            first += 1
        moved = self.position(epoch, first) - start
        end = self._samples + moved
        last = self.number(epoch, end)
        return Rest(first, moved, last - first, end - self.position(epoch, last))

    def length(self, epoch: int) -> int:
        """Batches of a complete epoch."""
        full = self.number(epoch, self._samples)
        if not self._drop_last and self.position(epoch, full) < self._samples:
            return full + 1
        return full

    def first_step(self, epoch: int) -> int:
        """Batches of all earlier epochs together: the step at which an epoch begins."""
        sizes = self.sizes
        known = self._first_steps
        while len(known) <= epoch:
            last = len(known) - 1
            reached = known[-1] if sizes.by == "step" else last
            if reached >= sizes.until:
                return known[-1] + (epoch - last) * self.length(last)
            # As one object: another thread may do the same.
            self._first_steps = known = [*known, known[-1] + self.length(last)]
        return known[epoch]

    def _total(self, step: int) -> int:
        """Samples of all batches before a step, if every batch is full."""
        piece = bisect_right(self.sizes.starts, step) - 1
        start = self.sizes.starts[piece]
        return self._before[piece] + (step - start) * self._size(start)

    def _step_of(self, total: int) -> int:
        """The last step before which there are at most `total` samples."""
        piece = bisect_right(self._before, total) - 1
        start = self.sizes.starts[piece]
        return start + (total - self._before[piece]) // self._size(start)


def checked_pad_last(value: Any) -> bool | str:
    """A value of the option `pad_last`. Raises OptionError for anything else."""
    if isinstance(value, str) and value == RANKS:
        return value
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise OptionError(f'pad_last is {brief(value)}: choose True, False or "{RANKS}"')


@dataclass(frozen=True, eq=False)
class BatchRules:
    """How the samples of every epoch become batches, and which part of each is this rank's.

    With n samples per batch of all ranks, global batch k of a complete epoch holds positions k * n
    to (k + 1) * n of the order; if the batch size changes, batches adjoin one another as well. Of
    its n samples, rank r of w takes the share from n * r // w to n * (r + 1) // w: neighbours stay
    together, and full batches are cut into equal shares. An order may arrange the samples of a
    batch before it is cut, see `NodeShuffleOrder`. With buckets, the batches of a window exchange
    samples, see `Buckets`.

    The len(order) % n samples that do not fill a batch come last:

    - By default they are a short batch. Every sample comes exactly once. The ranks' shares of it
      differ by at most one sample, and there must be at least one sample per rank.
    - With `drop_last` they are dropped from this epoch. All batches are full.
    - With `pad_last` the epoch's first samples follow them until the batch is full. All batches are
      full, and `OrderedBatch.repeated` tells which samples have come before.
    - With `pad_last="ranks"` they are a short batch, and where they are fewer than the ranks, the
      epoch's first samples follow until each rank has one. This fits any number of samples and
      ranks; `OrderedBatch.repeated` tells which samples have come before.

    In every case all ranks have the same number of batches, and none is empty.

    With exact buckets, all of this is true of each class by itself: a batch has samples of one
    class, and the samples of each class that do not fill a batch come last, each class in a batch
    of its own. With `pad_last` the class's first samples of the epoch follow them.

    Attributes:
        order: the order of the samples.
        batch_size: samples of a rank's share of a full batch: a number, or a Schedule; None with
            `global_batch_size`.
        global_batch_size: samples of a full batch, all ranks together, a multiple of world_size; or
            a Schedule; None with `batch_size`.
        rank: 0 to world_size - 1.
        world_size: number of ranks that share each batch.
        drop_last, pad_last: what becomes of samples that do not fill a batch.
        buckets: the Buckets that bring samples that are alike into the same batch; None: by the
            order alone.
        schedules: names and schedules of other options, which a state has to agree with.
        cut: where batches begin, in every epoch.
        windows: the latest window of `Buckets`.
        repetitions: the latest repetitions that were counted.

    Raises:
        OptionError: a value is out of range, values do not fit together, or some rank's share of
            the last batch would be empty.
    """

    order: Order
    batch_size: WholeNumbers | None = None
    global_batch_size: WholeNumbers | None = None
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad_last: bool | str = False
    buckets: Buckets | None = None
    schedules: tuple[tuple[str, Schedule], ...] = ()
    cut: Cut | ClassCut = field(init=False)
    windows: Latest = field(default_factory=Latest, init=False)
    repetitions: Latest = field(default_factory=Latest, init=False)

    def __post_init__(self) -> None:
        order = self.order
        if not isinstance(order, Order):
            raise OptionError(f"order is {order!r}: give an Order, such as ShuffleOrder(ds)")
        object.__setattr__(self, "pad_last", checked_pad_last(self.pad_last))
        if flag("drop_last", self.drop_last) and self.pad_last:
            raise OptionError(
                "drop_last and pad_last are True: choose one, or neither for a short last batch"
            )
        sizes = self._global_sizes()
        if self.buckets is not None:
            self._check_buckets(self.buckets)
        object.__setattr__(self, "cut", self._cut(sizes))
        for start, size in zip(sizes.starts, sizes.values, strict=True):
            since = "" if sizes.constant else f" (from {sizes.by} {start} on)"
            self._check_size(size, since)
            if isinstance(self.cut, ClassCut):
                self.cut.check(size, since, self.world_size, bool(self.pad_last))
        if self.world_size > 1 and not sizes.constant and isinstance(self.cut, Cut):
            self._check_epochs(self.cut)

    def _cut(self, sizes: Schedule) -> Cut | ClassCut:
        """Where batches begin, by the sizes that the batches of all ranks have."""
        if self.buckets is not None and self.buckets.classes is not None:
            return ClassCut(sizes, self.order, self.buckets.classes, self.drop_last)
        return Cut(sizes, len(self.order), self.drop_last)

    def _global_sizes(self) -> Schedule:
        """Samples per batch, all ranks together.

        The option that was passed becomes a number, or a Schedule whose functions have been called.
        """
        name = "batch_size"
        value = self.batch_size
        if (value is None) == (self.global_batch_size is None):
            raise OptionError(
                f"batch_size is {brief(value)} and global_batch_size "
                f"{brief(self.global_batch_size)}: give one "
                "of them, the samples per batch of each rank, or of all ranks together"
            )
        if value is None:
            name = "global_batch_size"
            value = self.global_batch_size
        sizes = whole_numbers(name, value, 1, MAX_BATCH)
        object.__setattr__(self, name, _number_or_schedule(sizes))
        if name == "batch_size" and self.world_size > 1:
            return sizes.map(lambda size: size * self.world_size)
        return sizes

    def _check_size(self, size: int, since: str) -> None:
        """Check a global batch size; `since` says when a schedule has it."""
        if size % self.world_size:
            raise OptionError(
                f"global_batch_size {size}{since} counts the samples of all ranks together; it "
                f"must be a multiple of world_size {self.world_size}"
            )
        samples = len(self.order)
        if self.drop_last and size > samples:
            raise OptionError(
                f"drop_last is True, but an epoch of {samples} samples has no full batch of "
                f"{size}{since}; choose a smaller batch size, or pad_last=True"
            )

    def _check_buckets(self, buckets: Buckets) -> None:
        if not isinstance(buckets, Buckets):
            raise OptionError(f"bucket_by is {brief(buckets)}: pass Buckets(ds, {brief(buckets)})")
        if self.order.arranges:
            raise OptionError(
                f"the order is {self.order.kind}, by which each rank keeps its share of shards, "
                "but with bucket_by batches exchange samples: leave out one of them"
            )
        if buckets.fingerprint != self.order.fingerprint:
            raise OptionError(
                f"the buckets are of a dataset with fingerprint {buckets.fingerprint}, but "
                f"the order is of one with {self.order.fingerprint}: make them from one dataset"
            )

    def _check_epochs(self, cut: Cut) -> None:
        """Find an epoch that a changing batch size leaves with too few samples for the ranks."""
        sizes = cut.sizes
        if sizes.by == "epoch":
            for epoch in sizes.starts:
                self.rest(epoch)
            return
        for epoch in range(_CHECKED_EPOCHS):
            self.rest(epoch)
            if cut.first_step(epoch) >= sizes.until:
                break

    @property
    def position_cut(self) -> Cut:
        """`cut`, of batches without classes."""
        assert isinstance(self.cut, Cut), "batches of classes begin where their order decides"
        return self.cut

    def rest(self, epoch: int, start: int = 0) -> Rest:
        """The batches of an epoch from its sample `start` on, without classes.

        Raises OptionError if a rank's share of the last batch would be empty.
        """
        cut = self.position_cut
        rest = cut.rest(epoch, start)
        if not (self.drop_last or self.pad_last) and 0 < rest.left_over < self.world_size:
            when = ""
            if not cut.sizes.constant:
                when = f" of epoch {epoch}"
            raise OptionError(
                f"the last batch{when} has "
                f"{counted(rest.left_over, 'sample')} for {self.world_size} ranks; choose "
                'pad_last="ranks", which repeats a sample on the ranks that would have none and '
                "marks it, or pad_last=True or drop_last=True, or another batch size"
            )
        return rest

    @property
    def canvases(self) -> tuple[tuple[int, int], ...] | None:
        """(height, width) of the canvas of each class of aspect; None without exact ones."""
        if self.buckets is None:
            return None
        return self.buckets.canvases

    @property
    def repeats(self) -> bool:
        """True if a sample may come again in an epoch."""
        return self.order.repeats or self.order.copies is not None or bool(self.pad_last)

    @property
    def size_per_rank(self) -> int | Schedule:
        """Samples of a rank's share of a full batch: a number, or a schedule by epoch or step."""
        return _number_or_schedule(self.cut.sizes.map(lambda size: size // self.world_size))

    def most_per_rank(self, size: int) -> int:
        """The most samples that a rank has of a batch of this size."""
        if self.pad_last is not True:  # with "ranks" at least one, by rounding up
            size = min(size, len(self.order))
        return -(-size // self.world_size)

    def identity(self) -> dict[str, int | str]:
        """The facts that a state has to agree with: the order, schedules, and what these depend on.

        A batch size that does not change may be another one after each resume, unless something
        depends on the step, or batches exchange samples.
        """
        sizes = self.cut.sizes
        schedules = dict(self.schedules)
        if not sizes.constant:
            schedules["global_batch_size"] = sizes
        facts: dict[str, int | str] = {name: option.text for name, option in schedules.items()}
        if self.buckets is not None:
            facts["bucket_by"] = self.buckets.as_text()
            facts["global_batch_size"] = sizes.text
        if any(schedule.by == "step" for schedule in schedules.values()):
            facts["global_batch_size"] = sizes.text
            facts["drop_last"] = self.drop_last
            facts["pad_last"] = self.pad_last
        return self.order.identity() | facts


def _number_or_schedule(sizes: Schedule) -> int | Schedule:
    """The number if it never changes."""
    if sizes.constant:
        number: int = sizes.values[0]
        return number
    return sizes
