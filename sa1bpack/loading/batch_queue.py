"""The queue of one epoch, over a pool of buffers that outlives it.

A thread gets a batch with a buffer of the pool, locates its samples, and shares them out in ranges;
threads copy these, and the last one completes the batch, perhaps with an error; the consumer takes
it. Batches come out in the order in which they were begun, whichever is complete first, and nobody
numbers them here. The pool belongs to a Loader, and every epoch has its own queue, so a thread that
finishes after its epoch has ended finds a closed queue: its batch is discarded, and its buffer
returns to the pool.

The wait of a consumer ends by its timeout, and `close` wakes every waiting thread.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sa1bpack.errors import LoaderTimeout, ReadError
from sa1bpack.loading.buffer_pool import Buffer, BufferPool
from sa1bpack.loading.located_batch import LocatedBatch

SampleRange = tuple[int, int]  # of a batch: its first sample, and one past the last


@dataclass(frozen=True, eq=False)
class SentBatch:
    """A batch on a device, or on its way there.

    Attributes:
        tensors: its arrays there, by their keys in the buffer.
        memory: uint8 (n,) each, the memory that they have there.
        event: event recorded when they are there.
        small: uint8 (m,), the host's copy of the small arrays.
    """

    tensors: dict[str, Any]
    memory: Sequence[torch.Tensor]
    event: Any
    small: np.ndarray


@dataclass(eq=False)
class QueuedBatch:
    """A batch in the making, from the thread that begins it to the consumer; one owner at a time.

    It fills one buffer: small batches that are joined (`OrderedBatch.parts`) are one of these.
    Which batch it is, `located.ordered` says.

    Attributes:
        buffer: its buffer in host memory; None once that is free for another batch.
        located: its samples, and where they are stored; None until a thread has located it.
        dropped: errors of samples that the batch lacks, each with the number of their batch, of
            those that are joined.
        ranges_left: ranges of samples that threads are still copying.
        is_complete: the consumer may have it.
        error: why the batch could not be made.
        late_error: the same of one of several that are joined, with its number: those before it are
            complete.
        sent: the batch on a device; None: it is not sent, or not yet.
    """

    buffer: Buffer | None
    located: LocatedBatch | None = None
    dropped: list[tuple[int, ReadError]] = field(default_factory=list)
    ranges_left: int = 0
    is_complete: bool = False
    error: BaseException | None = None
    late_error: tuple[int, BaseException] | None = None
    sent: SentBatch | None = None

    def filled_buffer(self) -> Buffer:
        """The buffer of a batch that still has it: one that was neither sent nor given up."""
        assert self.buffer is not None, "the buffer is free for another batch"
        return self.buffer

    def located_samples(self) -> LocatedBatch:
        """The located batch, of one that is past that."""
        assert self.located is not None, "only a batch with an error is not located"
        return self.located


class BatchQueue:
    """The batches of one epoch, in the order in which they were begun.

    All methods are thread-safe, and a signal handler may call `close` at any point. A late thread
    may still call those of threads that fill once it is closed: it gets no further task, and the
    batch that it completes is discarded.

    Attributes:
        ahead: number of batches that may be in progress or ready, besides the one that is taken
            next: the Loader's `prefetch`, and more for a pipeline that threads call.
        ready: number of complete batches that are not taken yet; joined ones count as one.
        closed: the epoch has ended.
    """

    def __init__(self, pool: BufferPool, ahead: int):
        self.ahead = ahead
        self.ready = 0
        self.closed = False
        self._pool = pool
        self._changes = pool.changes
        self._batches: deque[QueuedBatch] = deque()  # begun, and not taken
        self._ranges: deque[tuple[QueuedBatch, SampleRange]] = deque()  # to be copied
        self._beginning: QueuedBatch | None = None
        self._all_begun = False

    def close(self) -> None:
        """End the epoch: every wait ends, no batch is begun, and complete batches are discarded."""
        self.closed = True
        with self._changes.lock:
            # Not cleared: the consumer may be about to take the first of them.
            discarded = self._batches
            self._batches = deque()
            for batch in discarded:
                if batch.is_complete:
                    self._discard(batch)
            self._changes.wake_all_threads()
            self._changes.batches.notify_all()

    def _discard(self, batch: QueuedBatch) -> None:
        """Release what a batch has; the traceback of its error may reference the threads."""
        batch.error = None
        batch.late_error = None
        batch.sent = None
        self._release(batch)

    def _release(self, batch: QueuedBatch) -> None:
        buffer = batch.buffer
        batch.buffer = None
        if buffer is not None:
            self._pool.release(buffer)

    # ----------------------------------------------------------------------- threads that fill

    def task(self) -> tuple[QueuedBatch, SampleRange | None] | None:
        """The next task of a thread: samples of a batch to copy; or, with None, a batch to begin.

        One thread begins a batch at a time: it locates the samples, waits until no device copies
        out of the buffer any more, and prepares it. None: there is no task now. The caller holds
        the lock of the pool.

        A thread that gets a batch to begin must `queue_ranges` of it, or `complete` it.
        """
        if self._ranges:
            task = self._ranges.popleft()
            if self.is_done:
                self._changes.wake_all_threads()  # threads end
            return task
        if not self._may_begin():
            return None
        batch = QueuedBatch(self._pool.free.popleft())
        self._batches.append(batch)
        self._beginning = batch
        return batch, None

    def has_task(self) -> bool:
        """True if a thread finds something to do."""
        return bool(self._ranges) or self._may_begin()

    @property
    def is_done(self) -> bool:
        """True if there will be no further task, not even for who locates the last batch."""
        if self._ranges or self._beginning is not None:
            return False
        return self.closed or self._all_begun

    def _may_begin(self) -> bool:
        if self.closed or self._all_begun or self._beginning is not None:
            return False
        return len(self._batches) <= self.ahead and len(self._pool.free) > 0

    def queue_ranges(self, batch: QueuedBatch, ranges: list[SampleRange]) -> None:
        """Let threads copy a batch that is begun, in ranges; see `copied` for which ends last."""
        with self._changes.lock:
            batch.ranges_left = len(ranges)
            for samples in ranges:
                self._ranges.append((batch, samples))
            self._changes.wake_threads(len(ranges) - 1)  # this thread takes one of them
            self._end_beginning(batch)

    def _end_beginning(self, batch: QueuedBatch) -> None:
        """Let another thread locate the next batch, unless this is the last one of the epoch.

        Nor is there a next one if this one could not be located: its error ends the epoch.
        """
        self._beginning = None
        self._all_begun = batch.located is None or batch.located.ordered.is_last
        if self._all_begun:
            self._changes.wake_all_threads()  # threads end
        else:
            self._changes.wake_threads()

    def copied(self, batch: QueuedBatch) -> bool:
        """Note that a range of the batch is copied. True if all are now: `complete` the batch."""
        with self._changes.lock:
            batch.ranges_left -= 1
            return batch.ranges_left == 0

    def complete(
        self, batch: QueuedBatch, error: BaseException | None = None, free: bool = False
    ) -> None:
        """Let the consumer have a batch that is complete, or the error if it cannot be made.

        With `free`, its buffer is no longer needed.
        """
        with self._changes.lock:
            batch.error = error
            batch.is_complete = True
            if self._beginning is batch:
                self._end_beginning(batch)
            if free or error is not None:
                self._release(batch)
            if self.closed:
                self._discard(batch)
            else:
                self.ready += 1
            if self.has_news():
                self._changes.batches.notify_all()

    # -------------------------------------------------------------------------------- consumer

    def take(self, timeout: float, late_text: Callable[[], str]) -> QueuedBatch | None:
        """The next batch, in order; None if the queue is closed. Not to be called after the last.

        If the consumer holds all buffers of the pool, garbage is collected; if that frees none,
        the pool grows.

        Args:
            timeout: seconds to wait at most.
            late_text: makes the message for a batch that does not arrive in time.

        Raises:
            LoaderTimeout: the batch does not arrive in time.
            Whatever the pool raises if there is no memory for another buffer.
        """
        limit = time.monotonic() + timeout
        while True:
            with self._changes.lock:
                if not self.has_news():
                    wait = max(0.0, limit - time.monotonic())
                    self._changes.batches.wait_for(self.has_news, wait)
                if self.closed:
                    return None
                batches = self._batches
                if batches and batches[0].is_complete:
                    batch = batches.popleft()
                    self.ready -= 1
                    self._changes.wake_threads()
                    if self.closed:  # since the line above: by a signal handler
                        self._discard(batch)
                        return None
                    return batch
                starves = self._consumer_holds_all()
            if not starves:
                raise LoaderTimeout(late_text())
            self._pool.make_room()

    def has_news(self) -> bool:
        """True if `take` need not wait."""
        if self.closed:
            return True
        if self._batches:
            return self._batches[0].is_complete
        return self._consumer_holds_all()

    def _consumer_holds_all(self) -> bool:
        """True if no batch can arrive because the consumer holds all buffers."""
        if self._batches or self._pool.free:
            return False
        return len(self._pool.lent) >= len(self._pool.all)  # none will come back by itself
