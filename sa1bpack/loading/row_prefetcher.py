"""Rows of samples that are fetched, asked for ahead of their use in the order of an epoch."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.shards import ComingSample, Location
from sa1bpack.errors import Sa1bpackError
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.threads import start_thread

# Batches that are taken at once from those whose shards are open.
_TAKEN_TOGETHER = 4

# Batches that are asked for at least, beside the one that is asked for next.
_BATCHES_AHEAD = 2

_IDLE_SECONDS = 10.0


class RowPrefetcher:
    """The requests for an epoch's samples, of which some bytes are always in flight.

    A thread takes batches whose shards are open, in their order, and asks for their samples, until
    so many bytes are in flight, or wait to be copied, as the way to their source needs. `take` has
    what was asked for of a sample, for the thread that copies it.

    What goes wrong here is not an error of the epoch: who copies a sample asks for it again.

    Once the epoch has ended, the thread finishes the requests of a batch that it was making, and
    those are cancelled. It may reach the order, the shards, and this object alone.
    """

    def __init__(
        self,
        ds: Dataset,
        next_batches: Callable[[int], list[OrderedBatch]],
        window: Callable[[], int],
        chosen: ChosenFields,
        waited: Callable[[float], None],
    ):
        """
        Args:
            ds: the dataset.
            next_batches: returns the next batches, up to a number, whose shards are open. The
                thread alone calls it, until it has the last batch.
            window: bytes that may be in flight, or wait to be copied.
            chosen: what is needed of a sample.
            waited: called with the seconds that a thread waited for what was asked for, by one
                thread at a time.
        """
        self._ds = ds
        self._next_batches = next_batches
        self._window = window
        self._chosen = chosen
        self._waited = waited
        self._changed = threading.Condition()
        self._ready: deque[OrderedBatch | BaseException] = deque()
        self._coming: dict[int, list[ComingSample]] = {}  # by row of the pack
        self._bytes_ahead = 0
        self._batch_bytes = 0  # of the batch that was asked for last
        self._over = False

    def start(self) -> None:
        """Begin to ask."""
        start_thread(self._ask, "sa1bpack-ask")

    def end(self) -> None:
        """Ask for nothing more, and cancel what nobody has taken."""
        with self._changed:
            self._over = True
            left = [sample for samples in self._coming.values() for sample in samples]
            self._coming.clear()
            self._changed.notify_all()
        for sample in left:
            sample.cancel()

    def next_batches(self, most: int) -> list[OrderedBatch]:
        """The next batch, once its samples are asked for, and those after it, up to `most` in all.

        Empty once the epoch has ended. Raises what the order raised.
        """
        begin = time.monotonic()
        with self._changed:
            while not (self._ready or self._over):
                self._changed.wait(_IDLE_SECONDS)
            batches: list[OrderedBatch] = []
            while self._ready and len(batches) < most:
                batch = self._ready[0]
                if isinstance(batch, BaseException):
                    if not batches:
                        raise batch
                    break
                batches.append(batch)
                self._ready.popleft()
            self._waited(time.monotonic() - begin)
            self._changed.notify_all()
            return batches

    @property
    def is_over(self) -> bool:
        """True once the epoch has ended: what is not here is not needed any more."""
        return self._over

    def take(self, row: int) -> ComingSample | None:
        """What was asked for of a sample, by its row in the pack; None if nothing was.

        Who takes it calls `copied` once it does not need it any more.
        """
        with self._changed:
            samples = self._coming.get(row)
            if not samples:
                return None
            sample = samples.pop()
            if not samples:
                del self._coming[row]
            return sample

    def is_here(self, row: int) -> bool:
        """True if who takes what was asked for of a sample need not wait for it."""
        with self._changed:
            samples = self._coming.get(row)
            return samples is not None and samples[-1].is_here

    def drop(self, row: int) -> None:
        """Note that a sample will not be copied, by its row in the pack."""
        sample = self.take(row)
        if sample is not None:
            self.copied(sample)

    def arrived(self, seconds: float) -> None:
        """Note that a thread waited so long for the rows of samples."""
        with self._changed:
            self._waited(seconds)

    def copied(self, sample: ComingSample) -> None:
        """Note that the bytes of a sample are not needed any more."""
        sample.cancel()
        with self._changed:
            self._bytes_ahead -= sample.nbytes
            self._changed.notify_all()

    # ------------------------------------------------------------------------------- in the thread

    def _ask(self) -> None:
        is_first = True
        try:
            for batch in self._batches():
                self._wait_for_room()
                if self._over:
                    return
                samples = self._begin(batch)
                if is_first:
                    self._wait_for_most(samples)
                is_first = False
        except BaseException as error:
            self._hand_over(error)

    def _batches(self) -> Iterator[OrderedBatch]:
        batches: list[OrderedBatch] = []
        while not (batches and batches[-1].is_last):
            batches = self._next_batches(_TAKEN_TOGETHER)
            yield from batches

    def _wait_for_room(self) -> None:
        """Wait until few enough bytes are ahead: more requests would slow down those before them.

        At least those of two batches are: the rows of one arrive at about the same time, and the
        network would be idle until those of the next one do.
        Bytes that are ahead are copied in the end, or their sample is dropped: both are noted.
        """
        with self._changed:
            while not self._over and self._bytes_ahead >= max(
                self._window(), _BATCHES_AHEAD * self._batch_bytes
            ):
                self._changed.wait(_IDLE_SECONDS)

    def _wait_for_most(self, samples: Sequence[ComingSample]) -> None:
        """Wait until few enough bytes of samples have not arrived: half of those in flight.

        The first batch would share the way with those behind it, which nobody waits for.
        """
        left = sum(sample.nbytes for sample in samples)
        for sample in samples:
            left -= sample.nbytes
            if self._over or left <= self._window() // 4:
                return
            with suppress(Sa1bpackError):  # who copies it learns of it
                sample.wait()

    def _begin(self, batch: OrderedBatch) -> list[ComingSample]:
        """Ask for the samples of a batch, and hand it over. Returns what was asked for."""
        pack = self._ds.pack
        records = pack.locate_many(self._ds.rows_at(batch.indices)).tolist()
        locations = [Location(*record) for record in records]
        samples = []
        for location, _, sample in pack.begin(locations, self._chosen):
            if sample is not None:
                samples.append((location.row, sample))
        coming = [sample for _, sample in samples]
        with self._changed:
            self._batch_bytes = sum(sample.nbytes for sample in coming)
            was_over = self._over
            for row, sample in samples:
                if not was_over:
                    self._coming.setdefault(row, []).append(sample)
                    self._bytes_ahead += sample.nbytes
        if was_over:
            for sample in coming:
                sample.cancel()
        self._hand_over(batch)
        return coming

    def _hand_over(self, batch: OrderedBatch | BaseException) -> None:
        with self._changed:
            self._ready.append(batch)
            self._changed.notify_all()
