"""The batches of one epoch for one rank, where they begin, and the states to resume from.

Samples that are alike can be put into one batch, so that padding them to one shape wastes less.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import xxhash

from sa1bpack.arguments import choice, flag, numbers_of, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.loading.order.orders import (
    BUCKETS,
    LEFT_OVER,
    Key,
    Latest,
    Order,
    described,
    permutation,
)
from sa1bpack.schedules import Schedule, whole_numbers
from sa1bpack.wording import brief, counted

BY = ("mask_count", "aspect")
MAX_WINDOW = 2**20


@checks_options
class Buckets:
    """The key by which samples are sorted, and the number of batches that are sorted together.

    A window of `batches` successive batches of the order is sorted, and cut into batches again,
    which come in random order. So a sample moves by less than a window, and the batches of an
    epoch remain a pure function of (seed, epoch, fingerprint). The samples that do not fill a batch
    at the end of an epoch are not sorted: which samples they are remains as random as the order.

    Within a batch the samples are arranged so that contiguous parts, the ranks' and those of
    gradient accumulation, have about the same number of masks: the fullest sample stands beside the
    emptiest, the next fullest beside the next emptiest, and so on.

    Attributes:
        keys: (n,), values by which the samples of the dataset are sorted.
        counts: int32 (n,), their numbers of masks.
        batches: size of a window.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> buckets = sa1bpack.Buckets(ds, "mask_count", batches=256)
        >>> order = sa1bpack.ShuffleOrder(ds)
        >>> batches = sa1bpack.OrderedBatches(order, 2, bucket_by=buckets)
        >>> [len(batch) for batch in batches]
        [2, 1]
    """

    def __init__(self, ds: Any, by: str | np.ndarray = "mask_count", *, batches: int = 64):
        """
        Args:
            ds: the dataset of the order.
            by: "mask_count", or "aspect": height / width of the stored image, and among equals the
                mask count; or an array with one finite number per sample.
            batches: size of a window, 1 or more. A larger one wastes less, and mixes less.

        Raises:
            OptionError: a value that cannot be used.
        """
        ds = described(ds)
        self.batches = whole_number("batches", batches, 1, MAX_WINDOW)
        self.fingerprint = ds.fingerprint
        # Samples of a damaged shard cannot be read, wherever they are: a loader drops them, or ends
        # with their error.
        self.counts = ds.column("mask_count", missing=0).astype(np.int32)
        if np.ndim(by) == 0:
            self.by = choice("bucket_by", by, BY)
            self.keys = self.counts
            if by == "aspect":
                size = ds.column("size", missing=1)
                self.keys = (size[:, 2] / size[:, 3]).astype(np.float32)
        else:
            self.keys = numbers_of("bucket_by", by, len(ds), "sample")
            digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(self.keys).tobytes())
            self.by = f"{self.keys.dtype} {digest}"

    def as_text(self) -> str:
        """The key and the window, which decide the batches: "mask_count, windows of 64 batches"."""
        return f"{self.by}, windows of {self.batches} batches"

    def __repr__(self) -> str:
        return f"<Buckets by {self.as_text()}, {len(self.keys):,} samples>"

    def order(self, samples: np.ndarray) -> np.ndarray:
        """int64 (k,): the positions that sort int64 (k,) samples; equal ones keep their order."""
        return np.lexsort((self.counts[samples], self.keys[samples]))

    def arranged(self, samples: np.ndarray, word: int) -> np.ndarray:
        """The positions of int64 (k,) samples of a batch, whose contiguous parts are then alike.

        Args:
            word: random word: decides which part is the fullest, if they are not equal.
        """
        ranked = np.argsort(self.counts[samples], kind="stable")
        count = len(ranked)
        pairs = np.roll(_spread(count // 2), int(word % max(1, count // 2)))
        places = np.stack([pairs, count - 1 - pairs], 1).ravel()
        if count % 2:
            places = np.append(places, count // 2)
        return ranked[places]


def _spread(count: int) -> np.ndarray:
    """int64 (count,): range(count), with the numbers of any stretch spread over all of it.

    By their bits, reversed (van der Corput's sequence).
    """
    bits = max(count - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    reverse = np.zeros_like(numbers)
    for bit in range(bits):
        reverse |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return reverse[reverse < count]


class Window(NamedTuple):
    """The full batches of a window of `Buckets`.

    Attributes:
        samples: int64 (n,) of each batch: its samples.
        positions: int64 (n,) of each batch: their positions in the epoch.
    """

    samples: list[np.ndarray]
    positions: list[np.ndarray]


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
        by_epoch = self.sizes.by == "epoch"
        return self.sizes(epoch if by_epoch else self.first_step(epoch) + number)

    def position(self, epoch: int, number: int) -> int:
        """The first sample of a batch, counted from the beginning of the epoch."""
        if self.sizes.by == "epoch":
            return number * self.sizes(epoch)
        first = self.first_step(epoch)
        return self._total(first + number) - self._total(first)

    def number(self, epoch: int, position: int) -> int:
        """The batch that a position of an epoch is in."""
        if self.sizes.by == "epoch":
            return position // self.sizes(epoch)
        first = self.first_step(epoch)
        return self._step_of(self._total(first) + position) - first

    def length(self, epoch: int) -> int:
        """Batches of a complete epoch."""
        full = self.number(epoch, self._samples)
        short = not self._drop_last and self.position(epoch, full) < self._samples
        return full + short

    def first_step(self, epoch: int) -> int:
        """Batches of all earlier epochs together: the step at which an epoch begins."""
        sizes = self.sizes
        known = self._first_steps
        while len(known) <= epoch:
            last = len(known) - 1
            if (known[-1] if sizes.by == "step" else last) >= sizes.until:
                return known[-1] + (epoch - last) * self.length(last)
            # As one object: another thread may do the same.
            self._first_steps = known = [*known, known[-1] + self.length(last)]
        return known[epoch]

    def _total(self, step: int) -> int:
        """Samples of all batches before a step, if every batch is full."""
        piece = bisect_right(self.sizes.starts, step) - 1
        return self._before[piece] + (step - self.sizes.starts[piece]) * self.sizes.values[piece]

    def _step_of(self, total: int) -> int:
        """The last step before which there are at most `total` samples."""
        piece = bisect_right(self._before, total) - 1
        return self.sizes.starts[piece] + (total - self._before[piece]) // self.sizes.values[piece]


STATE_VERSION = 1
MAX_RANKS = MAX_BATCH = 2**32 - 1
# The value of `pad_last` that repeats samples only where a rank would have none.
RANKS = "ranks"


def checked_pad_last(value: Any) -> bool | str:
    """A value of the option `pad_last`. Raises OptionError for anything else."""
    if isinstance(value, str) and value == RANKS:
        return value
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise OptionError(f'pad_last is {brief(value)}: choose True, False or "{RANKS}"')


# Epochs of a batch size by step that are cut beforehand, to find one that cannot be.
_CHECKED_EPOCHS = 1000


@dataclass(frozen=True)
class EpochBatches:
    """The batches of one epoch, or of the rest of it, for one rank: a sequence of int64 arrays.

    With n samples per batch of all ranks, global batch k holds positions `start` + k * n to
    `start` + (k + 1) * n of the order; if the batch size changes, they adjoin one another as well.
    Of its n samples, rank r of w takes the share from n * r // w to n * (r + 1) // w: neighbours
    stay together, and full batches are cut into equal shares. An order may arrange the samples of
    a batch before it is cut, see `NodeShuffleOrder`. With buckets, the batches of a window exchange
    samples, see `Buckets`.

    The (len(order) - start) % n samples that do not fill a batch come last:

    - By default they are a short batch. Every sample comes exactly once. The ranks' shares of it
      differ by at most one sample, and there must be at least one sample per rank.
    - With `drop_last` they are dropped from this epoch. All batches are full.
    - With `pad_last` the epoch's first samples follow them until the batch is full. All batches are
      full, and `repeated` tells which samples have come before.
    - With `pad_last="ranks"` they are a short batch, and where they are fewer than the ranks, the
      epoch's first samples follow until each rank has one. This fits any number of samples and
      ranks; `repeated` tells which samples have come before.

    In every case all ranks have the same number of batches, and none is empty.

    Attributes:
        order: the order of the samples.
        batch_size: samples of a rank's share of a full batch: a number, or a Schedule; None with
            `global_batch_size`.
        global_batch_size: samples of a full batch, all ranks together, a multiple of world_size; or
            a Schedule; None with `batch_size`.
        rank: 0 to world_size - 1.
        world_size: number of ranks that share each batch.
        drop_last, pad_last: what becomes of samples that do not fill a batch.
        epoch: 0 or more.
        start: samples of this epoch that came before the first batch, 0 to len(order).
        buckets: the Buckets that bring samples that are alike into the same batch; None: by the
            order alone.
        schedules: names and schedules of other options, which a state has to agree with.

    Raises:
        OptionError: a value is out of range, values do not fit together, or some rank's share of
            the last batch would be empty.
    """

    order: Order
    batch_size: int | Schedule | None = None
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    pad_last: bool | str = False
    epoch: int = 0
    start: int = 0
    buckets: Buckets | None = None
    schedules: tuple[tuple[str, Schedule], ...] = ()
    global_batch_size: int | Schedule | None = None
    # Computed, and passed on from epoch to epoch.
    cut: Cut | None = field(default=None, compare=False, repr=False)
    _latest: Latest = field(default_factory=Latest, compare=False, repr=False)
    _latest_repetitions: Latest = field(default_factory=Latest, compare=False, repr=False)

    def __post_init__(self):
        if self.cut is None:
            self._check()
        vars(self).update(self._numbers(self.epoch, self.start))

    def _check(self) -> None:
        """Check what is the same in all epochs, and cut them."""
        if not isinstance(self.order, Order):
            raise OptionError(f"order is {self.order!r}: give an Order, such as ShuffleOrder(ds)")
        # of a frozen object; checked values replace its
        samples = len(self.order)
        own = vars(self)
        own["world_size"] = whole_number("world_size", self.world_size, 1, MAX_RANKS)
        own["rank"] = whole_number("rank", self.rank, 0, self.world_size - 1)
        own["pad_last"] = checked_pad_last(self.pad_last)
        if flag("drop_last", self.drop_last) and self.pad_last:
            raise OptionError(
                "drop_last and pad_last are True: choose one, or neither for a short last batch"
            )
        sizes = self._global_sizes()
        own["cut"] = Cut(sizes, samples, self.drop_last)
        for start, size in zip(sizes.starts, sizes.values, strict=True):
            named = f"{size}" if sizes.constant else f"{size} (from {sizes.by} {start} on)"
            if size % self.world_size:
                raise OptionError(
                    f"global_batch_size {named} counts the samples of all ranks together; it must "
                    f"be a multiple of world_size {self.world_size}"
                )
            if self.drop_last and size > samples:
                raise OptionError(
                    f"drop_last is True, but an epoch of {samples} samples has no full batch of "
                    f"{named}; choose a smaller batch size, or pad_last=True"
                )
        if self.buckets is not None:
            self._check_buckets(self.buckets)
        if self.world_size > 1 and not sizes.constant:
            for epoch in range(_CHECKED_EPOCHS) if sizes.by == "step" else sizes.starts:
                self._numbers(epoch, 0)
                if sizes.by == "step" and self.cut.first_step(epoch) >= sizes.until:
                    break

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

    def _numbers(self, epoch: int, start: int) -> dict[str, int]:
        """The numbers of the batches of an epoch from a start on.

        Returns:
            The attributes `_first`, the number of the first batch; `_moved`, samples by which the
            rest is shifted, if another batch size left a start between two batches; `_full`, full
            batches; `_count`, batches.

        Raises:
            OptionError: a rank's share of the last batch would be empty.
        """
        cut = self.cut
        end = len(self.order)
        first = cut.number(epoch, start)
        first += cut.position(epoch, first) < start
        moved = cut.position(epoch, first) - start
        last = cut.number(epoch, end + moved)
        left_over = end + moved - cut.position(epoch, last)
        if not (self.drop_last or self.pad_last) and 0 < left_over < self.world_size:
            when = "" if cut.sizes.constant else f" of epoch {epoch}"
            raise OptionError(
                f"the last batch{when} has "
                f"{counted(left_over, 'sample')} for {self.world_size} ranks; choose "
                'pad_last="ranks", which repeats a sample on the ranks that would have none and '
                "marks it, or pad_last=True or drop_last=True, or another batch size"
            )
        count = last - first + (left_over > 0 and not self.drop_last)
        return {"_first": first, "_moved": moved, "_full": last - first, "_count": count}

    def _global_sizes(self) -> Schedule:
        """Samples per batch, all ranks together.

        The option that was given becomes a number, or a Schedule whose functions have been called.
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
        vars(self)[name] = sizes.values[0] if sizes.constant else sizes
        if name == "batch_size" and self.world_size > 1:
            return sizes.map(lambda size: size * self.world_size)
        return sizes

    def __len__(self) -> int:
        """The number of batches from `start` to the end of the epoch."""
        return self._count

    def repeated(self, k: int) -> np.ndarray:
        """bool (n,): which samples of this rank's share of batch k fill up the last batch.

        Raises:
            IndexError: batch k does not exist.
        """
        first, stop = self.span(k)
        found = np.arange(first, stop) >= len(self.order)
        if self.buckets is not None and found.any():
            found = found[self._left_over(self._take(first, stop))]
        return found[self._own(stop - first)]

    @property
    def repeats(self) -> bool:
        """True if a sample may come again in an epoch."""
        return self.order.repeats or self.order.copies is not None or bool(self.pad_last)

    def repetitions(self, k: int) -> np.ndarray | None:
        """`global_repetitions` of this rank's share of batch k."""
        first, stop = self.span(k)
        repetitions = self.global_repetitions(k)
        return None if repetitions is None else repetitions[self._own(stop - first)]

    def global_repetitions(self, k: int) -> np.ndarray | None:
        """int64 (n,): what tells the occurrences of a sample in the epoch apart; None: all are 0.

        For each sample of `global_batch(k)` how often it has come before in the epoch, as far as
        the order counts that, see `Order.repetitions`. It depends on the position in the epoch
        alone, and of a dataset that has a row several times, on which of these it is.

        Raises:
            IndexError: batch k does not exist.
        """
        copies = self.order.copies
        if copies is None:
            return self._draws(k)
        of_row = copies[self.global_batch(k)]
        draws = self._draws(k)
        return of_row if draws is None else draws * (int(copies.max()) + 1) + of_row

    def _draws(self, k: int) -> np.ndarray | None:
        """int64 (n,): `global_repetitions`, if the dataset has each row once; None: all are 0."""
        _, stop = self.span(k)
        size = len(self.order)
        if stop <= size and not self.order.repeats:
            return None
        positions = self._positions(k)
        low, high = self._range(k)
        at = self.epoch, low, high
        repetitions = self._latest_repetitions.get(at, lambda: self._repetitions(low, high))
        return repetitions[positions - low]

    def _range(self, k: int) -> tuple[int, int]:
        """The first position of the samples that batch k has its own from, and the end of them."""
        if self.buckets is None or k >= self._full:
            return self.span(k)
        numbers = self._window_numbers((self._first + k) // self.buckets.batches)
        begin = self.cut.position(self.epoch, numbers[0])
        return begin, self.cut.position(self.epoch, numbers[-1] + 1)

    def _repetitions(self, low: int, high: int) -> np.ndarray:
        """int64 (high - low,): `Order.repetitions`; what follows the end of the epoch comes again.

        Each sample of an epoch may come as often as the epoch has samples.
        """
        size = len(self.order)
        found = []
        while low < high:
            lap = low // size
            stop = min(high, (lap + 1) * size)
            of_lap = self.order.repetitions(self.epoch, low - lap * size, stop - lap * size)
            found.append(of_lap + lap * (size if self.order.repeats else 1))
            low = stop
        return np.concatenate(found)

    def _positions(self, k: int) -> np.ndarray:
        """int64 (n,): the positions in the epoch of the samples of `global_batch(k)`."""
        first, stop = self.span(k)
        positions = np.arange(first, stop)
        if self.buckets is None:
            return positions
        number = self._first + k
        width = self.buckets.batches
        if k >= self._full:
            return positions[self._left_over(self._take(first, stop))]
        return self._window(number // width).positions[number % width]

    def number(self, k: int) -> int:
        """The number of batch k, counted from the first sample of the epoch.

        That is the k of an epoch that was not interrupted, if it was resumed after a batch and with
        the same batch size. If the batch size was changed in mid-epoch, samples seen before count
        as batches of the new size, rounded up.
        """
        return self._first + k

    def step(self, k: int) -> int:
        """The step of batch k: `number(k)`, and the batches of all earlier epochs.

        So a run that was interrupted counts as one that was not.
        """
        return self.cut.first_step(self.epoch) + self.number(k)

    def __getitem__(self, k: int) -> np.ndarray:
        """int64 (n,), the samples of this rank's share of batch k.

        Raises:
            IndexError: batch k does not exist.
        """
        first, stop = self.span(k)
        own = self._own(stop - first)
        if self.buckets is not None or self.order.arranges:
            return self.global_batch(k)[own]
        return self._take(first + own.start, first + own.stop)

    def _own(self, length: int) -> slice:
        """This rank's share of a batch of that many samples."""
        return slice(
            length * self.rank // self.world_size, length * (self.rank + 1) // self.world_size
        )

    @property
    def size_per_rank(self) -> int | Schedule:
        """Samples of a rank's share of a full batch: a number, or a schedule by epoch or step."""
        sizes = self.cut.sizes.map(lambda size: size // self.world_size)
        return sizes.values[0] if sizes.constant else sizes

    def most_per_rank(self, size: int) -> int:
        """The most samples that a rank has of a batch of this size."""
        if self.pad_last is not True:  # with "ranks" at least one, by rounding up
            size = min(size, len(self.order))
        return -(-size // self.world_size)

    def global_batch(self, k: int) -> np.ndarray:
        """int64 (n,), the samples of batch k of all ranks together, in order of rank.

        Raises:
            IndexError: batch k does not exist.
        """
        number = self._first + k
        width = self.buckets.batches if self.buckets else 0
        if width and k < self._full:
            return self._window(number // width).samples[number % width].copy()
        first, stop = self.span(k)
        samples = self._take(first, stop)
        own = len(self.order) - first
        if width:
            return samples[self._left_over(samples)]
        # What has come before stays at the end, see `repeated`.
        return np.concatenate([self.order.arranged(samples[:own]), samples[own:]])

    def span(self, k: int) -> tuple[int, int]:
        """The first position of batch k, and the one after its last.

        Raises:
            IndexError: batch k does not exist.
        """
        if not 0 <= k < len(self):
            raise IndexError(f"batch {k} of {len(self)}")
        number = self._first + k
        first = self.cut.position(self.epoch, number) - self._moved
        stop = first + self.cut.size(self.epoch, number)
        if self.pad_last is True:
            return first, stop
        least = self.world_size if self.pad_last == RANKS else 0
        return first, min(stop, max(len(self.order), first + least))

    def _key(self) -> Key:
        return Key(self.order.seed or 0, self.epoch, self.order.fingerprint)

    def _left_over(self, samples: np.ndarray) -> np.ndarray:
        """int64 (n,): the positions by which the samples that fill no batch are arranged."""
        return self.buckets.arranged(samples, int(self._key().words(LEFT_OVER, 0, 1)[0]))

    def _window(self, window: int) -> "Window":
        """The full batches of a window, by its number."""
        return self._latest.get((self.epoch, window), lambda: self._arranged_window(window))

    def _window_numbers(self, window: int) -> range:
        """The numbers of the full batches of a window."""
        width = self.buckets.batches
        return range(window * width, min((window + 1) * width, self._first + self._full))

    def _arranged_window(self, window: int) -> "Window":
        """The full batches of a window, arranged, in the order in which they come."""
        cut = self.cut
        epoch = self.epoch
        numbers = self._window_numbers(window)
        begin = cut.position(epoch, numbers[0])
        samples = self._take(begin, cut.position(epoch, numbers[-1] + 1))
        sorting = self.buckets.order(samples)
        words = self._key().words(BUCKETS, window, 2 * len(numbers))
        places = permutation(words[: len(numbers)].copy())
        words = words[len(numbers) :]
        sorted_window = Window(
            samples=[np.empty(0, np.int64)] * len(numbers),
            positions=[np.empty(0, np.int64)] * len(numbers),
        )
        low = 0
        for place in places.tolist():
            high = low + cut.size(epoch, numbers[place])
            of_batch = sorting[low:high]
            of_batch = of_batch[self.buckets.arranged(samples[of_batch], int(words[place]))]
            sorted_window.samples[place] = samples[of_batch]
            sorted_window.positions[place] = begin + of_batch
            low = high
        return sorted_window

    def _take(self, low: int, high: int) -> np.ndarray:
        """The samples at these positions; past its end the epoch starts again."""
        size = len(self.order)
        taken = []
        while low < high:
            lap = low // size * size
            stop = min(high, lap + size)
            taken.append(self.order.take(self.epoch, low - lap, stop - lap))
            low = stop
        return taken[0] if len(taken) == 1 else np.concatenate(taken)

    def after(self, k: int) -> "EpochBatches":
        """The batches that remain once the first k are done: the next epoch if k is all.

        Raises:
            OptionError: there are fewer than k batches.
        """
        whole_number("the number of batches done", k, 0, len(self))
        if k == len(self):
            return replace(self, epoch=self.epoch + 1, start=0)
        position = self.cut.position(self.epoch, self._first + k) - self._moved
        return replace(self, start=position)

    def state_after(self, k: int) -> dict[str, Any]:
        """The state to save once batches 0 to k - 1 are done; see `OrderedBatches`.

        Raises:
            OptionError: there are fewer than k batches.
        """
        rest = self.after(k)
        return {
            "version": STATE_VERSION,
            "order": self.identity(),
            "epoch": rest.epoch,
            "samples": rest.start,
        }

    def identity(self) -> dict[str, int | str]:
        """The facts that a state has to agree with: the order, schedules, and what these depend on.

        A batch size that does not change may be another one after each resume, unless something
        depends on the step, or batches exchange samples.
        """
        schedules = dict(self.schedules)
        if not self.cut.sizes.constant:
            schedules["global_batch_size"] = self.cut.sizes
        found = {name: schedule.text for name, schedule in schedules.items()}
        if self.buckets is not None:
            found["bucket_by"] = self.buckets.as_text()
            found["global_batch_size"] = self.cut.sizes.text
        if any(each.by == "step" for each in schedules.values()):
            found |= {"global_batch_size": self.cut.sizes.text}
            found |= {"drop_last": self.drop_last, "pad_last": self.pad_last}
        return self.order.identity() | found
