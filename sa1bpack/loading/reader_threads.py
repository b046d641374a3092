"""One epoch of a Loader: threads locate batches, copy samples, and pass batches on.

The path of a batch:

1. `_begin_batch`, one thread at a time: the samples of this batch and of some more are located
   (`_locate`; small batches are joined there, to one that fills a buffer), the buffer is prepared,
   and the samples are queued, in ranges.
2. `_copy`, any thread, each range: `LocatedBatch.copy` opens files of some of the samples
   (`BatchSources`), and has them read and put in place (`SampleReader.load`, `load_samples`).
3. `_complete`, the thread whose range is finished last: errors, and the copy to a device, after
   which the buffer is free.
4. `take`, the consumer, or a thread that calls a pipeline ahead of it: the batch, or each of those
   that were joined, as tensors (`deliver` of the device).
5. On a CPU the buffer is free when the last tensor that shares its memory is gone: the next thread
   that looks for work puts it back (`BufferPool.lend`, `Changes.take_back_buffers`).

A batch is one range if there are as many batches at once as threads; else it is divided among them.
So it is at the end of an epoch, when no further batch keeps the others busy, unless it is read past
the page cache.
"""

import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.shards import address_of
from sa1bpack.disk.page_cache import populate
from sa1bpack.errors import LoaderError, ReadError
from sa1bpack.finalizers import Ending, before_release
from sa1bpack.loading.batch_queue import BatchQueue, QueuedBatch, SampleRange
from sa1bpack.loading.buffer_pool import BufferPool
from sa1bpack.loading.devices import CudaDevice, Host, keep_if_failed
from sa1bpack.loading.loaded_batch import LoadedBatch
from sa1bpack.loading.located_batch import LocatedBatch
from sa1bpack.loading.locator import Dropped, Locator
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.order.epoch import EpochBatches, OrderedBatch, joined, number_at
from sa1bpack.loading.reader_crew import ReaderCrew, ThreadTools
from sa1bpack.loading.row_prefetcher import RowPrefetcher
from sa1bpack.loading.shard_prefetcher import ShardPrefetcher
from sa1bpack.loading.stats import EpochCounts, Read
from sa1bpack.wording import counted

# The most samples that are located together, or batches of more samples: most of the cost does not
# depend on their number. The first batch of an epoch is located alone, so that it does not wait for
# the shards of others.
_LOCATED_SAMPLES = 128
_LOCATED_BATCHES = 4


def _window(ds: Dataset) -> int:
    """Bytes of rows that may be asked for ahead, of a dataset with packs at URLs."""
    return max(source.window for source in ds.pack.sources)


class ReaderThreads:
    """The work of the threads of one epoch, and its queue.

    The threads are those of a `ReaderCrew`, of this epoch alone or of all loaders of a mix.

    A thread that finds no samples left to copy, and no other thread that begins a batch, takes a
    buffer of the pool and begins the next one. Shards are opened while locating, and files while
    copying, without holding a lock that others need to copy: only who needs the same shard waits.

    The record of a batch, an `OrderedBatch`, is made by the thread that locates it, and is part of
    the batch until the consumer has it.

    Once the epoch has ended, a thread that is still at work may reach only

    - the queue and the statistics of its own epoch: the queue is closed, and discards what comes;
    - the buffer and the scratch memory that it writes to, which it then releases to the pool;
    - the order, which it may advance: that is a pure function, and nobody gets these batches;
    - the stream of the device, on which a copy out of its buffer may be queued;
    - the caches of open shards and files, which all epochs share.

    The place of the run is not among these: the consumer alone notes which batches came out. Nor is
    the Loader, so that it can be collected.
    """

    def __init__(
        self,
        pool: BufferPool,
        device: Host | CudaDevice,
        locator: Locator,
        batches: EpochBatches,
        options: ReadingOptions,
        counts: EpochCounts,
        direct: bool,
        crew: ReaderCrew,
        together: int,
    ):
        """
        Args:
            pool: buffers of the loader.
            device: where the batches go.
            locator: finds their samples.
            batches: the epoch, or the rest of it.
            options: what becomes of errors, and how long the consumer waits.
            counts: statistics of the epoch.
            direct: read past the page cache.
            crew: the threads.
            together: batches that are joined at most: their buffers have room for so many.
        """
        ds = locator.ds
        self._pool = pool
        self._device = device
        self._locator = locator
        self._epoch = batches.epoch
        self._drops = options.on_error == "drop"
        self._timeout = options.timeout
        self._counts = counts
        self._crew = crew
        counts.threads = crew.budget
        ahead = pool.count - 2  # besides the batch that is taken next, and the consumer's
        self.queue = BatchQueue(pool, ahead)
        self._pid = os.getpid()
        # Whole batches if there are enough for all threads: that needs the least locking.
        self._ranges_per_batch = -(-crew.budget // (ahead + 1))
        self._direct = direct
        # All threads copy each of the last batches: otherwise some would wait for who has the last.
        # Not from a disk, which is faster the more is asked for at once.
        self._first_split = batches.first + len(batches)
        if not direct:
            self._first_split -= crew.budget * together
        self._together = together
        self._keeping: Ending | None = None
        # Used only by the thread that begins a batch.
        self._remaining = iter(batches)
        self._prefetcher: ShardPrefetcher | None = None
        if ds.pack.sources:
            self._prefetcher = ShardPrefetcher(ds, self._remaining)
        self._rows: RowPrefetcher | None = None
        if self._prefetcher is not None and ds.pack.fetches_rows:
            self._rows = RowPrefetcher(
                ds,
                self._prefetcher.next_batches,
                partial(_window, ds),
                locator.spec.chosen,
                self._waited_for_rows,
            )
        self._is_first = True  # no batch was begun yet
        self._located: deque[tuple[LocatedBatch, Dropped]] = deque()
        self._locate_next = 1  # batches
        # Used only by the consumer, or a thread that takes batches for it: the number of the batch
        # that it waits for; batches that came joined with the one before, and an error in the place
        # of the last.
        self._awaited = batches.first
        self._delivered: deque[LoadedBatch | BaseException] = deque()
        # By thread: the batch that it copies, or what else it does; and since when.
        self._doing: dict[str, tuple[LocatedBatch | str, float]] = {}

    def belong_to(self, iteration: object) -> None:
        """Keep memory of a device that has failed when an iteration goes, see `keep_if_failed`."""
        if isinstance(self._device, CudaDevice):
            self._keeping = before_release(iteration, keep_if_failed)

    def start(self) -> None:
        """Have the threads begin. If that fails, or is interrupted, `end` ends those that began.

        None begins before all have started: one that works would keep this thread from starting the
        next, since they share the GIL.
        """
        if self._prefetcher is not None:
            self._prefetcher.start()
        if self._rows is not None:
            self._rows.start()
        if not self._crew.is_shared:
            self._crew.start()
        self._crew.serve(self)

    # ------------------------------------------------------------------------------- in the threads

    def work_at(
        self, batch: QueuedBatch, samples: SampleRange | None, tools: ThreadTools, name: str
    ) -> None:
        """Begin a batch, or copy samples of one; `name` is the thread's."""
        if samples is None:
            self._doing[name] = ("locating a batch", time.monotonic())
            self._begin_batch(batch, tools, name)
        else:
            self._copy(batch, samples, tools, name)
        self._doing.pop(name, None)

    def _copy(
        self, batch: QueuedBatch, samples: SampleRange, tools: ThreadTools, name: str
    ) -> None:
        """Copy samples of a batch; if all others are copied, pass the batch on."""
        located = batch.located_samples()
        self._doing[name] = (located, time.monotonic())
        begin = self._counts.clock()
        reads: Sequence[Read] = ()
        try:
            if not self.queue.closed:
                tools.enter(self._device)
                reads = located.copy(*samples, tools.reader(self._direct), self._rows)
        except BaseException as error:
            batch.error = error
        self._counts.worked("copy", begin, reads)
        if self.queue.copied(batch):
            self._complete(batch, located, tools)

    def _begin_batch(self, batch: QueuedBatch, tools: ThreadTools, name: str) -> None:
        """Begin the next batch, and let the threads copy its samples."""
        is_first = self._is_first
        self._is_first = False
        try:
            tools.enter(self._device)
            begin = self._counts.clock()
            if is_first and self._rows is not None:  # while the network is waited for
                memory = batch.filled_buffer().bytes
                populate(address_of(memory), len(memory))
            if not self._located:
                self._locate()
            located, dropped = self._located.popleft()
            batch.located = located
            batch.dropped = dropped
            self._counts.worked("locate", begin)
            if dropped and not self._drops:
                # Not raised: a traceback would keep these frames, and the frames the buffer.
                self.queue.complete(batch, dropped[0][1])
                return
            if len(located) == 0:
                self.queue.complete(batch, free=True)
                return
            self._fill(batch, located, name)
            ranges = self._ranges_per_batch
            if is_first and self._rows is not None:  # the consumer waits for the network
                ranges = self._crew.budget
            if located.ordered.number >= self._first_split:
                ranges = self._crew.budget
            count = min(ranges, len(located))
            edges = (np.arange(count + 1) * len(located) // count).tolist()
            self.queue.queue_ranges(batch, list(pairwise(edges)))
        except BaseException as error:
            self.queue.complete(batch, error)

    def _fill(self, batch: QueuedBatch, located: LocatedBatch, name: str) -> None:
        """Begin to fill the buffer of a batch, once no device copies out of it any more."""
        buffer = batch.filled_buffer()
        if buffer.event is not None and isinstance(self._device, CudaDevice):
            text = f"waiting for the end of a copy to {self._device.device}"
            self._doing[name] = (text, time.monotonic())
            begin = self._counts.clock()
            self._device.wait(buffer)
            self._counts.worked("stage", begin)
        if located.nbytes > len(buffer.bytes):  # an eighth more, so that it is seldom
            buffer.become(self._pool.allocate(located.nbytes + located.nbytes // 8))
        located.begin(buffer.bytes)

    def _locate(self) -> None:
        """Locate the next batches, several together; `_located` has them until they are begun."""
        if self._prefetcher is None:
            batches = list(islice(self._remaining, self._locate_next))
        else:
            begin = time.monotonic()
            if self._rows is not None:
                batches = self._rows.next_batches(self._locate_next)
            else:
                batches = self._prefetcher.next_batches(self._locate_next)
                self._counts.fetch_seconds += time.monotonic() - begin
        if not batches:
            raise LoaderError("the epoch has ended")  # nobody waits for this batch
        samples = max(1, len(batches[0].indices))
        most = max(_LOCATED_BATCHES, _LOCATED_SAMPLES // samples)
        most = -(-most // self._together) * self._together
        self._locate_next = min(2 * self._locate_next, most)
        joined_batches = self._joined(batches)
        results = self._located_together(joined_batches)
        if self._rows is not None:
            for _, dropped in results:
                for _, error in dropped:
                    self._rows.drop(error.row)
        for ordered, (located, dropped) in zip(joined_batches, results, strict=True):
            if dropped and ordered.parts and not self._drops:
                # One by one: the batches before the one with the error are complete.
                self._located.extend(self._located_together(ordered.parts))
            else:
                self._located.append((located, dropped))

    def _located_together(
        self, batches: Sequence[OrderedBatch]
    ) -> list[tuple[LocatedBatch, Dropped]]:
        """The batches, located and prepared."""
        results = self._locator.locate(batches)
        for located, _ in results:
            if len(located):
                self._device.prepare(located)
        return results

    def _waited_for_rows(self, seconds: float) -> None:
        """Note that one of the threads waited for rows: that is a part of the time of all."""
        self._counts.fetch_seconds += seconds / max(self._crew.budget, 1)

    def _joined(self, batches: Sequence[OrderedBatch]) -> list[OrderedBatch]:
        """The batches, small ones joined to as many as fit a buffer."""
        groups: list[list[OrderedBatch]] = []
        for batch in batches:
            fits = len(groups) > 0 and len(groups[-1]) < self._together
            if fits and groups[-1][0].sample_class == batch.sample_class:
                groups[-1].append(batch)
            else:
                groups.append([batch])
        return [joined(group) for group in groups]

    def _complete(self, batch: QueuedBatch, located: LocatedBatch, tools: ThreadTools) -> None:
        """Pass on a batch all of whose samples are copied, or an error in its place."""
        error = batch.error
        batch.error = None  # its traceback references the batch
        try:
            if error is None and not self.queue.closed:
                errors = located.errors()
                if errors and not self._drops:
                    error = self._first_error(batch, located, errors)
                    errors = []
                while errors and error is None and not self.queue.closed:
                    located = self._make_again(batch, located, errors, tools)
                    errors = located.errors()
            is_wanted = error is None and len(located) > 0 and not self.queue.closed
            if is_wanted and isinstance(self._device, CudaDevice):
                begin = self._counts.clock()
                self._device.stage(batch, located)
                self._counts.worked("stage", begin)
        except BaseException as raised:
            error = raised
        is_free = batch.sent is not None or len(located) == 0
        self.queue.complete(batch, error, free=is_free)

    def _first_error(
        self, batch: QueuedBatch, located: LocatedBatch, errors: list[tuple[int, ReadError]]
    ) -> ReadError | None:
        """The first of some errors; None if batches before it are complete, which then have it."""
        position, error = errors[0]
        number = number_at(located.ordered, position)
        if number == located.ordered.number:
            return error  # not raised, see `_begin_batch`
        batch.late_error = number, error
        return None

    def _make_again(
        self,
        batch: QueuedBatch,
        located: LocatedBatch,
        errors: list[tuple[int, ReadError]],
        tools: ThreadTools,
    ) -> LocatedBatch:
        """Make a batch again, alone, without the samples that could not be copied."""
        begin = self._counts.clock()
        failed = [position for position, _ in errors]
        failures = [(number_at(located.ordered, k), error) for k, error in errors]
        rest = np.delete(np.arange(len(located)), failed)
        [(remaining, missing)] = self._located_together([located.ordered.take(rest)])
        batch.located = remaining
        batch.dropped = [*batch.dropped, *failures, *missing]
        remaining.begin(batch.filled_buffer().bytes)
        reads = remaining.copy(0, len(remaining), tools.reader(self._direct))
        self._counts.worked("copy", begin, reads)
        return remaining

    # --------------------------------------------- in the consumer, or a thread that takes for it

    def take(self, timeout: float | None = None) -> LoadedBatch | None:
        """The next batch; None if the epoch was ended.

        Raises the error that came instead of the batch, LoaderTimeout, or an error from allocating
        a buffer.

        Args:
            timeout: seconds to wait at most; None: those of the options.
        """
        with suppress(IndexError):
            return self._next_delivered()
        if timeout is None:
            timeout = self._timeout
        ready = self.queue.ready
        batch = self.queue.take(timeout, partial(self.late_text, timeout))
        if batch is None:
            return None
        error = batch.error
        batch.error = None  # its traceback may reference what has it
        if error is not None:
            raise error
        self._delivered.extend(self._loaded(batch, ready))
        with suppress(IndexError):
            return self._next_delivered()
        return None  # ended meanwhile

    def _next_delivered(self) -> LoadedBatch:
        """The next of the batches that came together. Raises IndexError if none is left."""
        loaded = self._delivered.popleft()
        if isinstance(loaded, BaseException):
            raise loaded
        self._awaited = loaded.ordered.number + 1
        return loaded

    def _loaded(self, batch: QueuedBatch, ready: int) -> list[LoadedBatch | BaseException]:
        """A batch, or those that were joined to it, and perhaps an error in the place of one."""
        located = batch.located_samples()
        tensors: Sequence[dict[str, Any]] = []
        if len(located):
            begin = self._counts.clock()
            tensors = self._device.deliver(batch, located, self._locator.spec, self._pool)
            self._counts.worked("deliver", begin)
        delivered = iter(tensors)
        failed = -1
        if batch.late_error is not None:
            failed, error = batch.late_error
        parts = located.ordered.spans()
        loaded: list[LoadedBatch | BaseException] = []
        for ordered, first, stop in parts:
            if ordered.number == failed:
                loaded.append(error)
                break
            errors = [error for number, error in batch.dropped if number == ordered.number]
            nbytes = located.nbytes * (stop - first) // max(len(located), 1)
            of_part = next(delivered) if first < stop else None
            waiting = ready + len(parts) - 1 - len(loaded)
            loaded.append(LoadedBatch(ordered, of_part, errors, nbytes, waiting))
        return loaded

    def late_text(self, timeout: float) -> str:
        """The message for a batch that does not arrive within `timeout`: what every thread does."""
        now = time.monotonic()
        texts = []
        for name, (doing, since) in list(self._doing.items()):
            text = doing
            if isinstance(doing, LocatedBatch):
                text = f"copying {doing.name()}"
            texts.append(f"{name} has been {text} for {now - since:.1f} s")
        for thread in self._crew.threads:
            if not thread.is_alive():
                texts.append(f"{thread.name} has ended")
        if others := self._crew.at_other_work(self):
            verb = "reads" if others == 1 else "read"
            texts.append(f"{counted(others, 'thread')} {verb} for other sources of the mix")
        threads = "; ".join(texts) or "all threads are waiting for a free buffer"
        return (
            f"batch {self._awaited} of epoch {self._epoch} did not arrive within "
            f"{timeout:g} s; {threads}. If the storage is slow, raise `timeout` or `threads`"
        )

    def end(self, wait: float) -> None:
        """End the epoch: begin nothing more, and wait a while for copies in progress.

        Args:
            wait: seconds to wait at most, which only affects how soon threads and buffers are gone.
                In a forked child there is nothing to end.
        """
        if self._pid != os.getpid():
            return
        if self._prefetcher is not None:
            self._prefetcher.end()
        if self._rows is not None:
            self._rows.end()
        keep_if_failed()
        if self._keeping is not None:
            self._keeping.cancel()
        self.queue.close()
        self._delivered.clear()
        self._crew.leave(self, time.monotonic() + wait)
