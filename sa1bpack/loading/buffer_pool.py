"""Reused buffers for batches. The pool belongs to a Loader and outlives its epochs."""

import logging
import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

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
