"""The batches of one epoch for one rank, and the states to resume from; `rules.py` cuts them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.arguments import whole_number
from sa1bpack.indices import SampleClass
from sa1bpack.loading.order.buckets import Buckets
from sa1bpack.loading.order.orders import BUCKETS, LEFT_OVER, Key, permutation
from sa1bpack.loading.order.rules import RANKS, BatchRules
from sa1bpack.user_code import is_of_user

STATE_VERSION = 1

# Batches whose samples the order is asked for together.
_TAKEN_TOGETHER = 16


class Position(NamedTuple):
    """A place between two batches of a run.

    Attributes:
        epoch: number of the epoch.
        samples: samples of that epoch that come before, all ranks together.
    """

    epoch: int
    samples: int


@dataclass(frozen=True, eq=False)
class OrderedBatch:
    """A batch as the order has it: which one it is, its samples, and where the run is after it.

    `EpochBatches` makes it, once. It goes with the batch through the queue and the threads of a
    Loader, or through the worker processes of a DataLoader, to the consumer. So nobody counts
    batches: what a batch is, and the state to save after it, is what its record says.

    Attributes:
        epoch: its epoch.
        number: its number, counted from the first sample of the epoch (`batch_idx`): the place that
            it has in an epoch that is not interrupted, if this one was resumed after a batch and
            with the same batch size. If the batch size was changed in mid-epoch, samples that came
            before count as batches of the new size, rounded up.
        step: `number`, and the batches of all earlier epochs (`global_step`): a run that was
            interrupted counts as one that was not.
        indices: int64 (n,), its samples, in the dataset.
        after: where the run is once the batch is done.
        repetitions: int64 (n,), what tells the occurrences of a sample in the epoch apart: how
            often it has come before, as far as the order counts that, see `Order.repetitions`. It
            depends on the position in the epoch alone, and of a dataset that has a row several
            times, on which of these it is. None: all are 0.
        repeated: bool (n,), which samples only fill up the last batch; None without `pad_last`.
        sample_class: the class of all its samples, with exact `Buckets`; None without.
        parts: the batches that were `joined` to this one, in order; none of one alone.
    """

    epoch: int
    number: int
    step: int
    indices: np.ndarray
    after: Position
    repetitions: np.ndarray | None = None
    repeated: np.ndarray | None = None
    sample_class: SampleClass | None = None
    parts: tuple["OrderedBatch", ...] = ()

    @property
    def is_last(self) -> bool:
        """True for the last batch of its epoch."""
        return self.after.epoch > self.epoch

    def canvases(self, samples: int) -> np.ndarray | None:
        """int32 (samples, 2): height and width of the canvas of its class, for some samples.

        None if it has no class of aspect: the batches of a loader all have one, or none has.
        """
        if self.sample_class is None or self.sample_class.canvas is None:
            return None
        return np.tile(np.array(self.sample_class.canvas, np.int32), (samples, 1))

    def take(self, samples: np.ndarray | slice) -> "OrderedBatch":
        """The same batch with some of its samples: a slice, bool (n,), or positions in it."""
        return replace(
            self,
            indices=self.indices[samples],
            repetitions=_rows(self.repetitions, samples),
            repeated=_rows(self.repeated, samples),
            parts=self._parts_with(samples),
        )

    def _parts_with(self, samples: np.ndarray | slice) -> tuple["OrderedBatch", ...]:
        """The parts with some of their samples, which are in order."""
        if not self.parts:
            return ()
        positions = np.arange(len(self.indices))[samples]
        parts = []
        for part, begin, end in self.spans():
            inside = positions[(positions >= begin) & (positions < end)]
            parts.append(part.take(inside - begin))
        return tuple(parts)

    def spans(self) -> list[tuple["OrderedBatch", int, int]]:
        """The batches that this consists of, itself if it is one alone.

        With each, the position of its first sample in this one, and one past that of the last.
        """
        spans = []
        begin = 0
        for part in self.parts or (self,):
            end = begin + len(part.indices)
            spans.append((part, begin, end))
            begin = end
        return spans


def number_at(ordered: OrderedBatch, position: int) -> int:
    """The number of the batch that has the sample at a position of this one, or of joined ones."""
    for part, _, end in ordered.spans():
        if position < end:
            return part.number
    raise IndexError(f"sample {position} of {len(ordered.indices)}")


def joined(batches: Sequence[OrderedBatch]) -> OrderedBatch:
    """Successive batches of an epoch, of one class or of none, as one with all of their samples."""
    if len(batches) == 1:
        return batches[0]
    return replace(
        batches[0],
        indices=np.concatenate([batch.indices for batch in batches]),
        after=batches[-1].after,
        repetitions=_joined_rows([batch.repetitions for batch in batches], batches),
        repeated=_joined_rows([batch.repeated for batch in batches], batches),
        parts=tuple(batches),
    )


def _joined_rows(
    of_batches: Sequence[np.ndarray | None], batches: Sequence[OrderedBatch]
) -> np.ndarray | None:
    """The values that the samples of batches may have, one batch after another; None: all are 0."""
    dtype = next((values.dtype for values in of_batches if values is not None), None)
    if dtype is None:
        return None
    rows = []
    for values, batch in zip(of_batches, batches, strict=True):
        rows.append(np.zeros(len(batch.indices), dtype) if values is None else values)
    return np.concatenate(rows)


def _rows(values: np.ndarray | None, samples: np.ndarray | slice) -> np.ndarray | None:
    """Some of the values that samples may have."""
    if values is None:
        return None
    rows: np.ndarray = values[samples]
    return rows


# The full batches of a window of `Buckets`, of all ranks: the number of each → int64 (n,) each, its
# samples and their positions in the epoch.
Window = dict[int, tuple[np.ndarray, np.ndarray]]


class EpochBatches:
    """The batches of one epoch, or of the rest of it: a sequence of `OrderedBatch`.

    Each has the samples of this rank; `of_all_ranks` those of all ranks. Those of exact `Buckets`
    are `ClassBatches`; `class_batches.batches_from` makes either.

    Attributes:
        rules: how the samples become batches.
        epoch: number of the epoch.
        start: samples of this epoch that came before the first batch, 0 to len(order).
        first: `OrderedBatch.number` of the first batch.
    """

    def __init__(self, rules: BatchRules, epoch: int = 0, start: int = 0):
        """Raises OptionError if a rank's share of the last batch would be empty."""
        rest = rules.rest(epoch, start)
        self.rules = rules
        self.epoch = epoch
        self.start = start
        self.first = rest.first
        self._moved = rest.moved
        self._full = rest.full
        self._count = rest.full
        if rest.left_over > 0 and not rules.drop_last:
            self._count += 1

    def __len__(self) -> int:
        """The number of batches from `start` to the end of the epoch."""
        return self._count

    def __iter__(self) -> Iterator[OrderedBatch]:
        plain = self._plain_batches()
        for first in range(0, plain, _TAKEN_TOGETHER):
            yield from self._taken_together(first, min(first + _TAKEN_TOGETHER, plain))
        for k in range(plain, len(self)):
            yield self[k]

    def _plain_batches(self) -> int:
        """How many of the first batches are full, and have each sample of some positions once."""
        rules = self.rules
        order = rules.order
        if rules.buckets is not None or order.arranges or is_of_user(order):
            return 0
        if order.repeats or order.copies is not None or not rules.cut.sizes.constant:
            return 0
        return self._full

    def _taken_together(self, first: int, stop: int) -> Iterator[OrderedBatch]:
        """Batches `first` to `stop`, of `_plain_batches`, as `self[k]` makes each.

        The order is asked once for all of them: most of what one takes is not for its samples.
        """
        rules = self.rules
        begin, end = self._span(self.first + first)
        size = end - begin
        share = self._share(size)
        indices = rules.order.take(self.epoch, begin, begin + (stop - first) * size)
        step = rules.cut.first_step(self.epoch) + self.first
        repeated = np.zeros(share.stop - share.start, bool) if rules.pad_last else None
        after = [Position(self.epoch, begin + (k + 1) * size) for k in range(stop - first)]
        if stop == len(self):
            after[-1] = self.position_after(stop)
        for k in range(first, stop):
            start = (k - first) * size + share.start
            yield OrderedBatch(
                epoch=self.epoch,
                number=self.first + k,
                step=step + k,
                indices=indices[start : start + share.stop - share.start],
                after=after[k - first],
                repeated=repeated,
            )

    def __getitem__(self, k: int) -> OrderedBatch:
        """Batch k, counted from `start`, with the samples of this rank.

        Raises:
            IndexError: batch k does not exist.
        """
        batch = self.of_all_ranks(k)
        if self.rules.world_size == 1:
            return batch
        return batch.take(self._share(len(batch.indices)))

    def _share(self, samples: int) -> slice:
        """Those of the samples of a batch of all ranks that this rank has."""
        rank = self.rules.rank
        ranks = self.rules.world_size
        return slice(samples * rank // ranks, samples * (rank + 1) // ranks)

    def of_all_ranks(self, k: int) -> OrderedBatch:
        """Batch k, counted from `start`, with the samples of all ranks, in order of rank.

        Raises:
            IndexError: batch k does not exist.
        """
        if not 0 <= k < len(self):
            raise IndexError(f"batch {k} of {len(self)}")
        number = self.first + k
        indices, positions = self._samples(number)
        repeated = None
        if self.rules.pad_last:
            repeated = positions >= len(self.rules.order)
        return OrderedBatch(
            epoch=self.epoch,
            number=number,
            step=self.rules.cut.first_step(self.epoch) + number,
            indices=indices,
            after=self.position_after(k + 1),
            repetitions=self._repetitions(number, indices, positions),
            repeated=repeated,
            sample_class=self._class_of(number),
        )

    def _class_of(self, number: int) -> SampleClass | None:
        """The class of the samples of a batch; None: any."""
        return None

    def size_per_rank(self, number: int) -> int:
        """Samples that a rank's share of a batch has, if that is full, by the batch's number."""
        return self.rules.cut.size(self.epoch, number) // self.rules.world_size

    @property
    def parts(self) -> int:
        """Batches of a rank's size that these are cut into for a library that deals them out.

        What is left over is a smaller one.
        """
        if len(self) == 0:
            return 0
        last = self.first + len(self) - 1
        parts = -(-self.samples_of_all_ranks(last) // self.size_per_rank(last))
        return (len(self) - 1) * self.rules.world_size + parts

    def samples_of_all_ranks(self, number: int) -> int:
        """Samples of a batch of all ranks, by its number; asks the order for none of them."""
        begin, end = self._span(number)
        return end - begin

    # ---------------------------------------------------------------------- states to resume from

    def after(self, k: int) -> "EpochBatches":
        """The batches that remain once the first k are done: the next epoch if k is all.

        Raises:
            OptionError: there are fewer than k batches, or none fit the next epoch.
        """
        whole_number("the number of batches done", k, 0, len(self))
        epoch, start = self.position_after(k)
        return type(self)(self.rules, epoch, start)

    def state_after(self, k: int) -> dict[str, Any]:
        """The state to save once batches 0 to k - 1 are done; see `OrderedBatches`.

        Raises:
            OptionError: there are fewer than k batches.
        """
        whole_number("the number of batches done", k, 0, len(self))
        return self.state_at(self.position_after(k))

    def state_at(self, position: Position) -> dict[str, Any]:
        """The state to save at a position of the run, such as `OrderedBatch.after`."""
        return {
            "version": STATE_VERSION,
            "order": self.rules.identity(),
            "epoch": position.epoch,
            "samples": position.samples,
        }

    def position_after(self, k: int) -> Position:
        """Where the run is once the first k batches are done."""
        if k == len(self):
            return Position(self.epoch + 1, 0)
        begin = self.rules.position_cut.position(self.epoch, self.first + k)
        return Position(self.epoch, begin - self._moved)

    # ------------------------------------------------------------------------ samples of a batch

    def _samples(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """int64 (n,) each: the samples of a batch of all ranks, and their positions in the epoch.

        What fills up the last batch has the positions behind the epoch's end. Of an order that
        arranges batches, the positions are those before that.
        """
        rules = self.rules
        if rules.buckets is not None and self._is_full(number):
            return self._window(rules.buckets, number // rules.buckets.batches)[number]
        begin, end = self._span(number)
        samples = self._take(begin, end)
        positions = np.arange(begin, end)
        if rules.buckets is not None:
            word = int(self._key().words(LEFT_OVER, 0, 1)[0])
            arrangement = rules.buckets.arranged(samples, word)
            return samples[arrangement], positions[arrangement]
        if rules.order.arranges:
            of_epoch = len(rules.order) - begin
            # What has come before stays at the end.
            arranged = rules.order.arranged(samples[:of_epoch])
            samples = np.concatenate([arranged, samples[of_epoch:]])
        return samples, positions

    def _is_full(self, number: int) -> bool:
        return number < self.first + self._full

    def _span(self, number: int) -> tuple[int, int]:
        """The first position of a batch of all ranks, and the one after its last."""
        rules = self.rules
        begin = rules.position_cut.position(self.epoch, number) - self._moved
        end = begin + rules.cut.size(self.epoch, number)
        if rules.pad_last is True:
            return begin, end
        if rules.pad_last == RANKS:
            return begin, min(end, max(len(rules.order), begin + rules.world_size))
        return begin, min(end, len(rules.order))

    def _take(self, begin: int, end: int) -> np.ndarray:
        """int64 (end - begin,), the samples at these positions; past its end the epoch restarts."""
        order = self.rules.order
        parts = []
        for _, low, high in _laps(begin, end, len(order)):
            parts.append(order.take(self.epoch, low, high))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts)

    def _key(self) -> Key:
        order = self.rules.order
        return Key(order.seed or 0, self.epoch, order.fingerprint)

    # -------------------------------------------------------------------------------- buckets

    def _window_numbers(self, buckets: Buckets, window: int) -> range:
        """The numbers of the full batches of a window."""
        begin = window * buckets.batches
        return range(begin, min(begin + buckets.batches, self.first + self._full))

    def _window_span(self, buckets: Buckets, window: int) -> tuple[int, int]:
        """The first position of the full batches of a window, and the one after their last."""
        numbers = self._window_numbers(buckets, window)
        cut = self.rules.position_cut
        return cut.position(self.epoch, numbers[0]), cut.position(self.epoch, numbers[-1] + 1)

    def _window(self, buckets: Buckets, window: int) -> Window:
        """The full batches of a window, by its number."""
        key = (self.epoch, window)
        return self.rules.windows.get(key, lambda: self._arranged_window(buckets, window))

    def _arranged_window(self, buckets: Buckets, window: int) -> Window:
        """The full batches of a window, arranged, in the order in which they come."""
        numbers = self._window_numbers(buckets, window)
        begin, end = self._window_span(buckets, window)
        samples = self._take(begin, end)
        sorting = buckets.order(samples)
        words = self._key().words(BUCKETS, window, 2 * len(numbers))
        sequence = permutation(words[: len(numbers)].copy()).tolist()
        arranging_words = words[len(numbers) :]
        arranged: Window = {}
        low = 0
        for k in sequence:
            number = numbers[k]
            high = low + self.rules.cut.size(self.epoch, number)
            of_batch = sorting[low:high]
            arrangement = buckets.arranged(samples[of_batch], int(arranging_words[k]))
            of_batch = of_batch[arrangement]
            arranged[number] = samples[of_batch], begin + of_batch
            low = high
        return arranged

    # ---------------------------------------------------------------------------- repetitions

    def _repetitions(
        self, number: int, samples: np.ndarray, positions: np.ndarray
    ) -> np.ndarray | None:
        """`OrderedBatch.repetitions` of these samples, int64 (n,), of a batch of all ranks."""
        draws = self._draws(number, positions)
        copies = self.rules.order.copies
        if copies is None:
            return draws
        of_row: np.ndarray = copies[samples]
        if draws is None:
            return of_row
        of_row += draws * (int(copies.max()) + 1)
        return of_row

    def _draws(self, number: int, positions: np.ndarray) -> np.ndarray | None:
        """int64 (n,): `_repetitions`, if the dataset has each row once; None: all are 0."""
        order = self.rules.order
        if not order.repeats and positions.max() < len(order):
            return None
        buckets = self.rules.buckets
        if buckets is not None and self._is_full(number):
            begin, end = self._window_span(buckets, number // buckets.batches)
        else:
            begin, end = self._span(number)
        key = (self.epoch, begin, end)
        counted_draws = self.rules.repetitions.get(key, lambda: self._counted_draws(begin, end))
        draws: np.ndarray = counted_draws[positions - begin]
        return draws

    def _counted_draws(self, begin: int, end: int) -> np.ndarray:
        """int64 (end - begin,): `Order.repetitions`, in which the epoch restarts past its end.

        Each sample of an epoch may come as often as the epoch has samples.
        """
        order = self.rules.order
        most = 1
        if order.repeats:
            most = len(order)
        parts = []
        for lap, low, high in _laps(begin, end, len(order)):
            parts.append(order.repetitions(self.epoch, low, high) + lap * most)
        return np.concatenate(parts)


def _laps(begin: int, end: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Positions of an epoch of that size, cut where it restarts: the lap, and from where to where.

    The positions are those within the lap.
    """
    while begin < end:
        lap, low = divmod(begin, size)
        high = min(low + end - begin, size)
        yield lap, low, high
        begin += high - low
