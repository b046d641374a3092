"""The queue of one epoch, over a pool of buffers that outlives it.

A thread begins a batch in a buffer of the pool, then commits it, or aborts it with an error; the
consumer takes it. Batches come out in the order in which they were begun, whichever is finished
first. The pool belongs to a Loader, and every epoch has its own queue, so a thread that finishes
after its epoch has ended finds a closed queue: its batch is discarded, and its buffer returns to
the pool.

No wait is unbounded, and `close` wakes every waiting thread.
"""

import gc
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from sa1bpack.errors import LoaderTimeout
from sa1bpack.wording import size_text

_log = logging.getLogger("sa1bpack")


class Buffer:
    """Memory for one batch.

    bytes    uint8 (n,) in host memory
    pinned   the same memory as a tensor, if it is pinned
    event    recorded after the last copy out of it; None if nothing copies
    streams  of the last copy out of that memory
    """

    def __init__(self, data: np.ndarray, pinned: torch.Tensor | None = None):
        self.bytes = data
        self.pinned = pinned
        self.event: Any = None
        self.streams: list[Any] = []


class BufferPool:
    """Buffers in circulation: free, filled by threads, used by the consumer, free again.

    A buffer returns from its owner whenever that is done with it, even from a thread of an epoch
    that ended long ago; until then it has no other owner. A consumer that keeps batches keeps their
    buffers; when it needs more than exist, `grow` adds some.

    All methods are thread-safe. The lock is reentrant, and `lend`, `release` and `close` change one
    thing at a time, so the garbage collector may call them at any point.

    changed  the lock and condition for a free buffer. The queues of epochs wait on it as well, so
             that a thread that waits for a buffer is also woken when its epoch ends
    scratch  scratch memory of threads that have ended, for the next ones to take; none once closed
    """

    def __init__(self, allocate: Callable[[], Buffer], count: int, threads: int = 0):
        """Allocate `count` buffers, for an epoch of `threads`. Raises what `allocate` raises."""
        self.changed = threading.Condition()
        self.scratch: deque[np.ndarray] = deque(maxlen=threads)
        self._allocate, self._count = allocate, count
        self._free = deque(allocate() for _ in range(count))
        # Weak: an interrupt may lose one that changes hands, or that is given back by a finalizer,
        # which then ends in the middle; `refill` replaces it.
        self._all, self._lent = weakref.WeakSet(self._free), weakref.WeakSet[Buffer]()
        self._has_grown = self._closed = False
        self._collect_from = 0  # buffers; with fewer, garbage is not collected

    @property
    def free(self) -> int:
        """The number of buffers that can be taken."""
        return len(self._free)

    @property
    def lent(self) -> int:
        """The number of buffers that the consumer holds."""
        return len(self._lent)

    @property
    def all_lent(self) -> bool:
        """Whether the consumer holds every buffer: none will come back by itself."""
        return len(self._lent) >= len(self._all)

    def take(self) -> Buffer | None:
        """A free buffer, or None."""
        with self.changed:
            return self._free.popleft() if self._free else None

    def take_scratch(self) -> np.ndarray | None:
        """Scratch memory of a thread that has ended, or None."""
        with suppress(IndexError):
            return self.scratch.pop()
        return None

    def lend(self, buffer: Buffer) -> None:
        """Note that the consumer holds this buffer, until `release`."""
        self._lent.add(buffer)

    def release(self, buffer: Buffer) -> None:
        """Return a buffer that is no longer in use.

        It is taken next: the part still in the processor's caches is written faster. But one that a
        device still copies out of is taken after all others: then its copy has most likely ended.
        """
        self._lent.discard(buffer)
        if self._closed or len(self._free) >= self._count:
            self._all.discard(buffer)  # beyond the plan: the consumer had kept batches
            self._collect_from = 0
            return
        (self._free.appendleft if buffer.event is None else self._free.append)(buffer)
        with self.changed:
            self.changed.notify_all()

    def refill(self) -> None:
        """Replace buffers that were lost, so that an epoch begins with as many as were planned.

        Raises what `allocate` raises.
        """
        for _ in range(self._count - len(self._all)):
            buffer = self._allocate()
            self._all.add(buffer)
            self.release(buffer)

    def collect(self) -> None:
        """Collect garbage: a batch in a reference cycle is not in use.

        That takes as long as many batches. Where it frees none, the consumer keeps them, and it is
        not done again until there are twice as many buffers. Call it without holding the lock.
        """
        if len(self._all) < self._collect_from:
            return
        lent = len(self._lent)
        gc.collect()
        self._collect_from = 0 if len(self._lent) < lent else 2 * len(self._all)

    def grow(self) -> None:
        """Add buffers for a consumer that keeps batches: as many as it takes to read ahead again.

        Call it without holding the lock. Raises what `allocate` raises.
        """
        added = [self._allocate() for _ in range(max(1, self._count - 1))]
        if not self._has_grown:
            self._has_grown = True
            _log.warning(
                "batches that are still in use hold all %d buffers of the loader: every further "
                "batch that is kept takes %s of new memory; clone() what you need of a batch, and "
                "drop the rest",
                self._count,
                size_text(len(added[0].bytes)),
            )
        with self.changed:
            self._all.update(added)
            self._free.extend(added)
            self.changed.notify_all()

    def close(self) -> None:
        """Drop the buffers. Those of batches in use live as long as the batches."""
        self._closed = True
        self._free.clear()
        self.scratch = deque(maxlen=0)


class Ticket(NamedTuple):
    """A thread's claim to fill a buffer, which it must end with `commit` or `abort`."""

    number: int
    buffer: Buffer


class Entry(NamedTuple):
    """An entry of the queue: a batch, or the error that came instead of it."""

    batch: Any
    error: BaseException | None


class BatchQueue:
    """The batches of one epoch, in order. All methods are thread-safe.

    The garbage collector may call `close` at any point; see BufferPool.

    total  batches of the epoch
    prefetch  batches that may be in progress or ready, besides the one that is taken next
    """

    def __init__(self, pool: BufferPool, total: int, prefetch: int):
        self.total, self.prefetch = total, prefetch
        self._pool, self._changed = pool, pool.changed
        # By number: the entry, and its buffer unless that is already free.
        self._ready: dict[int, tuple[Entry, Buffer | None]] = {}
        self._begun = self._taken = 0
        self._in_progress: set[int] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the epoch has ended."""
        return self._closed

    def close(self) -> None:
        """End the epoch: every wait ends, no batch is begun, and ready batches are discarded."""
        self._closed = True
        self._discard()
        with self._changed:
            self._changed.notify_all()

    def _discard(self) -> None:
        """Discard ready entries; tracebacks of their errors may reference the threads."""
        while self._ready:
            _, (_, buffer) = self._ready.popitem()
            if buffer is not None:
                self._pool.release(buffer)

    @property
    def taken(self) -> int:
        """How many batches the consumer has taken."""
        return self._taken

    @property
    def ready(self) -> int:
        """How many batches are complete and not taken."""
        return len(self._ready)

    # ----------------------------------------------------------------------- threads that fill

    @property
    def over(self) -> bool:
        """Whether `begin` will never return a ticket again."""
        return self._closed or self._begun >= self.total

    def begin(self, wait: float) -> Ticket | None:
        """The next batch to fill and its buffer; None after `wait` seconds, or when `over`."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self._may_begin(), wait)
            buffer = None if self.over or not self._may_begin() else self._pool.take()
            if buffer is None:
                return None
            ticket = Ticket(self._begun, buffer)
            self._in_progress.add(ticket.number)
            self._begun += 1
            return ticket

    def _may_begin(self) -> bool:
        return self._begun - self._taken <= self.prefetch and self._pool.free > 0

    def commit(self, ticket: Ticket, batch: Any, free: bool = False) -> None:
        """The batch is complete. `free`: its buffer is no longer needed."""
        self._finish(ticket, Entry(batch, None), free)

    def abort(self, ticket: Ticket, error: BaseException) -> None:
        """The batch cannot be made: the consumer gets the error in its place."""
        self._finish(ticket, Entry(None, error), True)

    def _finish(self, ticket: Ticket, entry: Entry, free: bool) -> None:
        with self._changed:
            self._in_progress.discard(ticket.number)
            self._ready[ticket.number] = (entry, None if free else ticket.buffer)
            if free:
                self._pool.release(ticket.buffer)
            if self._closed:
                self._discard()
            self._changed.notify_all()

    # -------------------------------------------------------------------------------- consumer

    def take(self, timeout: float, doing: Callable[[], str]) -> Entry | None:
        """The next batch, in order; None after the last one, or if the queue is closed.

        If the consumer holds all buffers of the pool, the pool grows.

        timeout  seconds
        doing    describes the state of the threads, for the message

        Raises LoaderTimeout if the batch does not arrive in time, MemoryError or RuntimeError if
        there is no memory for another buffer.
        """
        limit = time.monotonic() + timeout
        while True:
            left = max(0.0, limit - time.monotonic())
            with self._changed:
                self._changed.wait_for(lambda: self._is_next() or self._starves(), left)
                if self._closed or self._taken >= self.total:
                    return None
                if self._taken in self._ready:
                    entry, _ = self._ready.pop(self._taken)
                    self._taken += 1
                    self._changed.notify_all()
                    return entry
                starves = self._starves()
            if not starves:
                raise LoaderTimeout(
                    f"batch {self._taken} of {self.total} did not arrive within {timeout:g} s; "
                    f"{doing()}. If the storage is slow, raise `timeout` or `threads`"
                )
            self._pool.collect()
            if self._starves():
                self._pool.grow()

    def _is_next(self) -> bool:
        return self._closed or self._taken >= self.total or self._taken in self._ready

    def _starves(self) -> bool:
        """Whether no batch can arrive because the consumer holds all buffers."""
        return not (self._in_progress or self._ready or self._pool.free) and self._pool.all_lent
