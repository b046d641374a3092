"""Buffers of batches, and what threads that fill them wait for.

A buffer of a batch on the CPU is free again when the batch is gone, wherever its last reference
is dropped. There, no Python is executed (see `finalizers.py`): the interpreter puts a notice into
the queue on which the threads that fill wait, and the next of them that looks for work puts the
buffer back. So a loop that waits for batches starts no other thread with each that it drops, which
would take the processor, and the interpreter, from those that fill.
"""

import gc
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch

from sa1bpack.finalizers import Living, Notice, when_gone
from sa1bpack.wording import size_text

_log = logging.getLogger("sa1bpack")


@dataclass(eq=False)
class Buffer:
    """Memory for one batch.

    Attributes:
        bytes: uint8 (n,) in host memory.
        pinned: the same memory as a tensor, if it is pinned.
        event: event recorded after the last copy out of the buffer; None if nothing copies.
        streams: streams of the last copy out of that memory.
    """

    bytes: np.ndarray
    pinned: torch.Tensor | None = None
    event: Any = None
    streams: list[Any] = field(default_factory=list)

    def become(self, other: "Buffer") -> None:
        """Take over the memory of a new buffer. Batches that were lent keep theirs."""
        self.bytes = other.bytes
        self.pinned = other.pinned
        self.streams = other.streams


class Changes:
    """The lock of pools and of their queues, and who waits for what.

    Consumers wait for the batch that is next, on a condition. Threads wait for work, on a queue,
    each item of which wakes one of them. An item is None, or the notice that a batch is gone: the
    thread that gets it puts its buffer back.

    Attributes:
        lock: the lock. It is reentrant.
        batches: consumers wait for a batch.
        wakeups: threads wait for something to do.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.batches = threading.Condition(self.lock)
        self.wakeups: SimpleQueue[Notice | None] = SimpleQueue()
        self._waiting = 0  # threads; it changes with the lock alone

    def wake_threads(self, count: int = 1) -> None:
        """Wake at most `count` threads that wait for work. The caller holds the lock.

        Items that are still in the queue count: each wakes one.
        """
        for _ in range(min(count, self._waiting - self.wakeups.qsize())):
            self.wakeups.put(None)

    def wake_all_threads(self) -> None:
        """Wake all threads that wait for work. The caller holds the lock."""
        self.wake_threads(self._waiting)

    def begin_waiting(self) -> None:
        """Note that this thread is about to `wait`. It holds the lock, and found nothing to do.

        Any thread that has something for it from now on wakes it.
        """
        self._waiting += 1

    def wait(self, seconds: float) -> None:
        """Wait to be woken, at most `seconds`. The caller does not hold the lock."""
        notice = None
        with suppress(Empty):
            notice = self.wakeups.get(timeout=seconds)
        with self.lock:
            self._waiting -= 1
            _take_back(notice)

    def take_back_buffers(self) -> None:
        """Put back the buffers of all batches that are gone. The caller holds the lock."""
        taken = 0
        for _ in range(self.wakeups.qsize()):
            try:
                notice = self.wakeups.get_nowait()
            except Empty:  # a thread that waited has got it
                break
            _take_back(notice)
            taken += 1
        self.wake_threads(taken)  # those that the items would have woken


def _take_back(notice: Notice | None) -> None:
    """Put back the buffer of the batch that a notice says is gone; None is no notice."""
    if notice is not None:
        lent: LentMemory = notice.about
        pool = lent.pool()
        if pool is not None:
            pool.take_back(notice)


@dataclass(frozen=True, eq=False)
class LentMemory:
    """What a notice is about: a buffer that a batch has, and the pool that it came from."""

    buffer: Buffer
    pool: "weakref.ref[BufferPool]"


class BufferPool:
    """Buffers in circulation: free, filled by threads, used by the consumer, free again.

    A buffer returns from its owner when the owner is done with it, even from a thread of an epoch
    that ended long ago; until then it has no other owner. A consumer that keeps batches keeps their
    buffers; when it needs more than exist, `make_room` adds some.

    All methods are thread-safe. The lock is reentrant, and `release` and `close` change one thing
    at a time, so a signal handler may call them at any point.

    Attributes:
        changes: the lock, which the queues of epochs have as well, and who waits for a free buffer
            or for other work.
        shared_changes: the same, if other pools have it, too: those of a mix; None: its own.
        count: number of buffers that were planned.
        all: buffers that exist.
        free: buffers that can be taken.
        lent: what holds the buffers that the consumer has.
        scratch: scratch memory of threads that have ended, for the next ones to take; none once
            closed.
    """

    def __init__(
        self,
        allocate: Callable[..., Buffer],
        count: int,
        threads: int = 1,
        changes: Changes | None = None,
    ):
        """Allocate the buffers.

        Args:
            allocate: makes a buffer of the planned size, or, called with a number of bytes, of at
                least that size.
            count: number of buffers.
            threads: number of threads of an epoch.
            changes: the lock, which pools share whose buffers the same threads fill; None: of its
                own.

        Raises:
            Whatever `allocate` raises.
        """
        self.shared_changes = changes
        self.changes = changes or Changes()
        self.scratch: deque[np.ndarray] = deque(maxlen=threads)
        self.allocate = allocate
        self.count = count
        self.free: deque[Buffer] = deque()
        # Weak: an interrupt may lose one that changes hands; `refill` replaces it.
        self.all = Living[Buffer]()
        self.lent = Living[object]()
        self._notices: dict[int, Notice] = {}  # of what is lent, by their id
        self._has_grown = False
        self._closed = False
        self._collect_from = 0  # buffers; with fewer, garbage is not collected
        self.refill()

    def lend(self, buffer: Buffer, holder: object) -> None:
        """Lend a buffer to the consumer for as long as an object lives, which the tensors hold.

        The object keeps the memory of the buffer: a pool may be gone before it.
        """
        self.lent.add(holder)
        if len(self.all) > self.count:
            self._watch(holder, buffer)
            return
        about = LentMemory(buffer, weakref.ref(self))
        notice = Notice(holder, self.changes.wakeups.put)
        notice.about = about
        self._notices[id(notice)] = notice

    def take_back(self, notice: Notice) -> None:
        """Put back a buffer whose batch is gone. The caller holds the lock."""
        if self._notices.pop(id(notice), None) is not None:
            self.release(notice.about.buffer)

    def _watch(self, holder: object, buffer: Buffer) -> None:
        """Put back a buffer soon after its holder is gone, also where no thread fills any more.

        For a consumer that keeps more than was planned: the memory beyond the plan is then freed.
        """
        when_gone(holder, self._return_lent, buffer, os.getpid())

    def _return_lent(self, buffer: Buffer, process: int) -> None:
        # In a forked child the pool belongs to the parent, and its lock may be held forever.
        if process == os.getpid():
            with self.changes.lock:
                self.changes.take_back_buffers()
            self.release(buffer)

    def release(self, buffer: Buffer) -> None:
        """Put back a buffer that is no longer in use.

        It is taken next: the part still in the processor's caches is written faster. But one that a
        device still copies out of is taken after all others: then its copy has most likely ended.
        """
        if self._closed or len(self.free) >= self.count:
            self.all.discard(buffer)  # beyond the plan: the consumer had kept batches
            self._collect_from = 0
            return
        if buffer.event is None:
            self.free.appendleft(buffer)
        else:
            self.free.append(buffer)
        with self.changes.lock:
            self.changes.wake_threads()

    def refill(self) -> None:
        """Replace buffers that were lost, so that an epoch begins with as many as were planned.

        Raises what `allocate` raises.
        """
        with self.changes.lock:
            self.changes.take_back_buffers()
        for _ in range(self.count - len(self.all)):
            buffer = self.allocate()
            self.all.add(buffer)
            self.release(buffer)

    def make_room(self) -> None:
        """Make room for a consumer that keeps all buffers.

        Garbage is collected, as a batch in a reference cycle is not in use; if that frees no
        buffer, as many are added as it takes to read ahead again.

        A collection takes as long as many batches: where it frees none, it is not done again until
        there are twice as many buffers. Call it without holding the lock. Raises what `allocate`
        raises.
        """
        if len(self.all) >= self._collect_from:
            lent = len(self.lent)
            gc.collect()
            freed = len(self.lent) < lent
            if freed:
                self._collect_from = 0
                return
            self._collect_from = 2 * len(self.all)
        added = [self.allocate() for _ in range(max(1, self.count - 1))]
        if not self._has_grown:
            self._has_grown = True
            _log.warning(
                "batches that are still in use hold all %d buffers of the loader: every further "
                "batch that is kept takes %s of new memory; clone() what you need of a batch, and "
                "drop the rest",
                self.count,
                size_text(len(added[0].bytes)),
            )
        with self.changes.lock:
            for buffer in added:
                self.all.add(buffer)
            self.free.extend(added)
            self.changes.wake_all_threads()
        for key, notice in list(self._notices.items()):
            holder = notice()
            if holder is not None and self._notices.pop(key, None) is not None:
                self._watch(holder, notice.about.buffer)

    def close(self) -> None:
        """Drop the buffers. Those of batches in use live as long as the batches."""
        self._closed = True
        self.free.clear()
        self.scratch = deque(maxlen=0)
        self._notices.clear()
        with self.changes.lock:
            self.changes.take_back_buffers()  # notices of the rest keep their buffers
