"""The queue of one epoch, over a pool of buffers that outlives it.

A batch is begun by a thread, in a buffer of the pool; committed, or aborted with an error; and
taken by the consumer. Batches come out in the order in which they were begun, whichever is finished
first. The pool belongs to a Loader and every epoch has a queue of its own, so a thread that
finishes after its epoch has ended finds a closed queue: its batch is discarded, and its buffer goes
back to the pool.

Nothing waits without a limit, and `close` wakes everyone.
"""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from sa1bpack.errors import LoaderTimeout
from sa1bpack.wording import size_text

_log = logging.getLogger("sa1bpack")


class Buffer:
    """Memory for one batch.

    bytes   uint8 (n,) of the host
    pinned  the same memory as a tensor, where it is pinned
    event   recorded after the last copy out of it; None where nothing copies
    """

    def __init__(self, data: np.ndarray, pinned: torch.Tensor | None = None):
        self.bytes = data
        self.pinned = pinned
        self.event: torch.cuda.Event | None = None


class BufferPool:
    """Buffers that go round: free, filled by threads, used by the consumer, free again.

    A buffer comes back from whoever has it, whenever that is: from a thread of an epoch that ended
    long ago as well. Until then nobody else has it. A consumer that keeps batches keeps their
    buffers; when it needs more than there are, `grow` adds some.

    All methods are safe in threads. The lock is reentrant, and `lend`, `release` and `close` change
    one thing at a time, so that the garbage collector may call them in the middle of anything.

    changed  the lock, and where to wait for a free buffer. The queues of epochs wait here as well,
             so that a thread that needs a buffer also hears that its epoch has ended
    """

    def __init__(self, allocate: Callable[[], Buffer], count: int):
        """Allocate `count` buffers. Raises what `allocate` raises."""
        self.changed = threading.Condition()
        self._allocate, self._count = allocate, count
        self._free = deque(allocate() for _ in range(count))
        self._lent: set[Buffer] = set()
        self._has_grown = self._closed = False

    @property
    def free(self) -> int:
        """Buffers that can be taken."""
        return len(self._free)

    @property
    def lent(self) -> int:
        """Buffers that the consumer has."""
        return len(self._lent)

    def take(self) -> Buffer | None:
        """A free buffer; None if there is none."""
        with self.changed:
            return self._free.popleft() if self._free else None

    def lend(self, buffer: Buffer) -> None:
        """A batch in this buffer goes to the consumer, who gives it back by `release`."""
        self._lent.add(buffer)

    def release(self, buffer: Buffer) -> None:
        """Nobody uses the buffer any more.

        It is taken next: what of it is still in the processor's caches is written to faster.
        """
        self._lent.discard(buffer)
        if self._closed or len(self._free) >= self._count:
            return  # one more than the plan says, of a consumer that kept batches
        self._free.appendleft(buffer)
        with self.changed:
            self.changed.notify_all()

    def grow(self) -> None:
        """Add buffers for a consumer that keeps batches. Call it without the lock.

        Raises what `allocate` raises.
        """
        added = [self._allocate() for _ in range(max(1, self._count - 1))]
        if not self._has_grown:
            self._has_grown = True
            _log.warning(
                "batches that are still in use hold all %d buffers of the loader: every further "
                "batch that is kept takes %s of new memory; clone() what you need of a batch, and "
                "let go of the rest",
                self._count,
                size_text(len(added[0].bytes)),
            )
        with self.changed:
            self._free.extend(added)
            self.changed.notify_all()

    def close(self) -> None:
        """Let go of the buffers. Those of batches that are in use stay until those are gone."""
        self._closed = True
        self._free.clear()


class Ticket(NamedTuple):
    """The right and duty of one thread to fill a buffer: it ends with `commit` or `abort`."""

    number: int
    buffer: Buffer


class Entry(NamedTuple):
    """What the queue carries: a batch, or the error that came instead of it."""

    batch: Any
    error: BaseException | None


class BatchQueue:
    """The batches of one epoch, in order. All methods are safe in threads.

    `close` may be called by the garbage collector in the middle of anything; see BufferPool.

    total  batches of the epoch
    ahead  batches that may be begun or ready, besides the one that is taken next
    """

    def __init__(self, pool: BufferPool, total: int, ahead: int):
        self.total, self.ahead = total, ahead
        self._pool, self._changed = pool, pool.changed
        # By number: what comes out, and its buffer unless that is free already.
        self._ready: dict[int, tuple[Entry, Buffer | None]] = {}
        self._begun = self._taken = 0
        self._filling: set[int] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the epoch has ended."""
        return self._closed

    def close(self) -> None:
        """End the epoch: every wait ends now, nothing more is begun, and what is ready is lost."""
        self._closed = True
        self._discard()
        with self._changed:
            self._changed.notify_all()

    def _discard(self) -> None:
        """Throw away what nobody will take; tracebacks of errors may lead to the threads."""
        while self._ready:
            _, (_, buffer) = self._ready.popitem()
            if buffer is not None:
                self._pool.release(buffer)

    # ----------------------------------------------------------------------- threads that fill

    @property
    def over(self) -> bool:
        """Whether `begin` will never return a ticket again."""
        return self._closed or self._begun >= self.total

    def begin(self, wait: float) -> Ticket | None:
        """The next batch to fill and a buffer for it; None after `wait` seconds, or when `over`."""
        with self._changed:
            self._changed.wait_for(lambda: self.over or self._may_begin(), wait)
            buffer = None if self.over or not self._may_begin() else self._pool.take()
            if buffer is None:
                return None
            ticket = Ticket(self._begun, buffer)
            self._filling.add(ticket.number)
            self._begun += 1
            return ticket

    def _may_begin(self) -> bool:
        return self._begun - self._taken <= self.ahead and self._pool.free > 0

    def commit(self, ticket: Ticket, batch: Any, free: bool = False) -> None:
        """The batch is complete. `free`: its buffer is not needed any more."""
        self._finish(ticket, Entry(batch, None), free)

    def abort(self, ticket: Ticket, error: BaseException) -> None:
        """The batch cannot be made: the consumer gets the error in its place."""
        self._finish(ticket, Entry(None, error), True)

    def _finish(self, ticket: Ticket, entry: Entry, free: bool) -> None:
        with self._changed:
            self._filling.discard(ticket.number)
            self._ready[ticket.number] = (entry, None if free else ticket.buffer)
            if free:
                self._pool.release(ticket.buffer)
            if self._closed:
                self._discard()
            self._changed.notify_all()

    # -------------------------------------------------------------------------------- consumer

    def take(self, timeout: float, doing: Callable[[], str]) -> Entry | None:
        """The next batch, in order; None after the last one, or if the queue is closed.

        A consumer that holds all buffers of the pool gets more.

        timeout  seconds
        doing    says what the threads are doing, for the message

        Raises LoaderTimeout if the batch does not come in time, MemoryError or RuntimeError if
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
                    f"batch {self._taken} of {self.total} did not come within {timeout:g} s; "
                    f"{doing()}. If the storage is slow, raise `timeout` or `threads`"
                )
            gc.collect()  # a batch in a reference cycle is in use by nobody
            if self._starves():
                self._pool.grow()

    def _is_next(self) -> bool:
        return self._closed or self._taken >= self.total or self._taken in self._ready

    def _starves(self) -> bool:
        """Whether nothing can come because the consumer has the buffers."""
        return not (self._filling or self._ready or self._pool.free) and self._pool.lent > 0
