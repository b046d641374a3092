"""The threads of one epoch of a Loader: they locate batches, copy samples, and pass batches on."""

import os
import threading
import time
from collections import deque
from contextlib import suppress
from itertools import pairwise

import numpy as np

from sa1bpack.errors import ReadError
from sa1bpack.finalizers import Ending, before_release
from sa1bpack.loading.batch.mask_choice import MaskChoice
from sa1bpack.loading.batch_queue import BatchQueue, BufferPool, QueuedBatch
from sa1bpack.loading.devices import CudaDevice, Host, keep_if_failed
from sa1bpack.loading.iteration import Taken
from sa1bpack.loading.located_batch import LocatedBatch, SampleReader
from sa1bpack.loading.locator import Locator
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.shard_prefetcher import ShardPrefetcher
from sa1bpack.loading.stats import EpochCounts
from sa1bpack.threads import start_thread

# The most samples that are located together: most of the cost does not depend on their number. The
# first batch of an epoch is located alone, so that it does not wait for the shards of others.
_LOCATED_SAMPLES = 128


class ReaderThreads:
    """The threads of one epoch, and its queue.

    A thread that finds no samples left to copy, and no other thread that locates, takes a buffer of
    the pool, locates the next batch, and shares it out in ranges of samples if there are more
    threads than batches at once. The thread that copies the last samples of a batch passes the
    batch on. Shards are opened while locating, and files while copying, without holding a lock:
    other threads keep copying.

    Once the epoch has ended, a thread that is still reading has access only to the queue, which is
    closed; to the buffer and the scratch memory that it writes to, which it then releases to the
    pool; and to the caches of open shards and files, which all epochs share. Holds no reference to
    the Loader, so that the Loader can be collected.
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
    ):
        ds = locator.ds
        self._prefetcher = ShardPrefetcher(ds, batches) if ds.pack.sources else None
        self._pool = pool
        self._device = device
        self._locator = locator
        self._batches = batches
        self._drops = options.on_error == "drop"
        self._timeout = options.timeout
        self._counts = counts
        counts.threads = pool.threads
        prefetch = pool.count - 2  # besides the batch that is taken next, and the consumer's
        self._queue = BatchQueue(pool, len(batches), prefetch)
        self._pid = os.getpid()
        # Used only by the thread that locates.
        self._located: deque[tuple[LocatedBatch, list[ReadError]]] = deque()
        self._locate_next = 1  # batches
        # By thread: the batch that it copies, or what else it does; and since when.
        self._doing: dict[str, tuple[LocatedBatch | str, float]] = {}
        # Complete batches if there are enough for all threads: that needs the least locking.
        self._ranges_per_batch = -(-pool.threads // (prefetch + 1))
        self._direct = direct
        self._threads: list[threading.Thread] = []
        self._keeping: Ending | None = None

    def belong_to(self, iteration: object) -> None:
        """Keep memory of a device that has failed when an iteration goes, see `keep_if_failed`."""
        if self._device.pinned:
            self._keeping = before_release(iteration, keep_if_failed)

    def start(self) -> None:
        """Start the threads. If that fails, or is interrupted, `end` ends those that began."""
        if self._prefetcher is not None:
            self._prefetcher.start()
        for n in range(self._pool.threads):
            name = f"sa1bpack-reader-{n}"
            self._threads.append(start_thread(self._run, name))

    # ------------------------------------------------------------------------------- in the threads

    def _run(self) -> None:
        name = threading.current_thread().name
        try:
            if self._device.pinned:
                self._device.enter_thread()
            scratch = None
            with suppress(IndexError):  # there is no memory of a thread that has ended
                scratch = self._pool.scratch.pop()
            reader = SampleReader(self._direct, scratch)
        except BaseException as error:
            self._queue.fail(error)
            return
        while (work := self._queue.next()) is not None:
            batch, samples = work
            what = "locating a batch" if samples is None else batch.located
            self._doing[name] = (what, time.monotonic())
            if samples is None:
                self._begin_batch(batch, name)
            else:
                begin = self._counts.clock()
                reads = []
                try:
                    if not self._queue.closed:
                        reads = batch.located.copy(*samples, reader)
                except BaseException as error:
                    batch.error = error
                self._counts.worked("copy", begin, reads)
                if self._queue.done(batch):
                    self._complete(batch, reader)
            self._doing.pop(name, None)
            del work, batch, what  # while this thread waits, nothing keeps their shards open
        self._pool.scratch.append(reader.close())

    def _begin_batch(self, batch: QueuedBatch, name: str) -> None:
        """Locate a batch, and let the threads copy its samples."""
        try:
            begin = self._counts.clock()
            if not self._located:
                self._locate(batch.number)
            batch.located, batch.dropped = located, dropped = self._located.popleft()
            self._counts.worked("locate", begin)
            if len(located) == 0 or (dropped and not self._drops):
                # Not raised: a traceback would keep these frames, and the frames the buffer.
                self._queue.complete(batch, None if self._drops else dropped[0], free=True)
                return
            buffer = batch.buffer
            if buffer.event is not None:
                text = f"waiting for the end of a copy to {self._device.device}"
                self._doing[name] = (text, time.monotonic())
                begin = self._counts.clock()
                self._device.wait(buffer)
                self._counts.worked("stage", begin)
            if located.nbytes > len(buffer.bytes):  # an eighth more, so that it is seldom
                buffer.become(self._pool.allocate(located.nbytes + located.nbytes // 8))
            located.begin(buffer.bytes)
            count = min(self._ranges_per_batch, len(located))
            edges = (np.arange(count + 1) * len(located) // count).tolist()
            self._queue.share(batch, list(pairwise(edges)))
        except BaseException as error:
            self._queue.complete(batch, error)

    def _locate(self, number: int) -> None:
        """Locate several batches together, whose choice of masks is the same."""
        stop = min(number + self._locate_next, len(self._batches))
        if self._prefetcher is not None:
            begun = time.monotonic()
            stop = min(stop, self._prefetcher.reach(number))
            self._counts.fetch_seconds += time.monotonic() - begun
        choice = self._choice_of(number)
        together = [self._batches[number]]
        repetitions = [self._batches.repetitions(number)]
        for k in range(number + 1, stop):
            if self._choice_of(k) != choice:
                break
            together.append(self._batches[k])
            repetitions.append(self._batches.repetitions(k))
        most = max(1, _LOCATED_SAMPLES // max(1, len(together[0])))
        self._locate_next = min(2 * self._locate_next, most)
        epoch = self._batches.epoch
        self._located.extend(self._locator.locate(together, repetitions, epoch, choice))

    def _choice_of(self, number: int) -> MaskChoice:
        """The choice of the masks of a batch, by its epoch and step."""
        return self._locator.masks.at(self._batches.epoch, self._batches.step(number))

    def _complete(self, batch: QueuedBatch, reader: SampleReader) -> None:
        """Pass on a batch all of whose samples are copied, or an error in its place.

        It is made again without samples that could not be copied.
        """
        # its traceback references the batch
        failed = batch.error
        batch.error = None
        try:
            while failed is None and not self._queue.closed and (errors := batch.located.errors()):
                if not self._drops:
                    failed = errors[0][1]
                    break
                begin = self._counts.clock()
                batch.dropped = [*batch.dropped, *(error for _, error in errors)]
                failed_places = [k for k, _ in errors]
                rest = np.delete(batch.located.dataset_indices, failed_places)
                again = np.delete(batch.located.repetitions, failed_places)
                choice = self._choice_of(batch.number)
                [(batch.located, more)] = self._locator.locate(
                    [rest], [again], self._batches.epoch, choice
                )
                batch.dropped += more
                batch.located.begin(batch.buffer.bytes)
                reads = batch.located.copy(0, len(batch.located), reader)
                self._counts.worked("copy", begin, reads)
            if failed is None and len(batch.located) and self._device.pinned:
                begin = self._counts.clock()
                self._device.stage(batch)
                self._counts.worked("stage", begin)
        except BaseException as error:
            failed = error
        sent = batch.tensors is not None
        self._queue.complete(batch, failed, free=sent or not len(batch.located))

    # ------------------------------------------------------------------------------ in the consumer

    def take(self) -> Taken | None:
        """The next batch; None if the epoch was ended.

        Raises the error that came instead of the batch, LoaderTimeout, or an error from allocating
        a buffer.
        """
        ready = len(self._queue.ready)
        found = self._queue.take(self._timeout, self._doing_text)
        if found is None:
            return None
        # its traceback may reference what has it
        error = found.error
        found.error = None
        if error is not None:
            raise error
        if not len(found.located):
            return Taken(None, found.dropped, 0, ready)
        begin = self._counts.clock()
        batch = self._device.deliver(found, self._locator.spec, self._pool)
        self._counts.worked("deliver", begin)
        return Taken(batch, found.dropped, found.located.nbytes, ready)

    def _doing_text(self) -> str:
        """The state of every thread, for messages."""
        now = time.monotonic()
        texts = []
        for name, (doing, since) in list(self._doing.items()):
            what = doing if isinstance(doing, str) else f"copying {doing.name()}"
            texts.append(f"{name} has been {what} for {now - since:.1f} s")
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        texts += [f"{name} has ended" for name in dead]
        return "; ".join(texts) or "all threads are waiting for a free buffer"

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
        keep_if_failed()
        if self._keeping is not None:
            self._keeping.cancel()
        self._queue.close()
        limit = time.monotonic() + wait
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))
