"""What one thread of a Loader reads with."""

import os
import time
from typing import NamedTuple

import numpy as np

from sa1bpack.batch.load_samples import load_samples, load_sides
from sa1bpack.disk.aio import CONTEXTS, Context
from sa1bpack.disk.direct import aligned

# Scratch memory that a thread begins with; it grows to what its samples need.
_FIRST_SCRATCH = 1 << 20


class Read(NamedTuple):
    """One call that brought samples into memory.

    begin, end  seconds of `time.perf_counter`
    cached      bytes that were in the page cache
    past        bytes read past it
    through     bytes announced to the system, which the copy that follows reads through it
    requests    made at once, past the page cache
    """

    begin: float
    end: float
    cached: int
    past: int
    through: int
    requests: int


class SampleReader:
    """Scratch memory and, to read past the page cache, a context of the system.

    For one thread at a time, which calls `close` when it ends.
    """

    def __init__(self, direct: bool, scratch: np.ndarray | None = None):
        """`scratch`: memory of a reader that was closed; None: new memory. It grows as needed.

        Raises ResourceShortage or OSError if the system refuses a context.
        """
        self.direct = direct
        self._counts = np.zeros(4, np.int64)  # see CACHED
        self._spent = np.zeros(1, np.int64)  # nanoseconds
        self._reads: list[Read] = []
        self._scratch = aligned(_FIRST_SCRATCH) if scratch is None else scratch
        self._context: Context | None = CONTEXTS.take() if direct else None

    def load(self, low: int, first: int, stop: int, buffer: np.ndarray, *rest) -> None:
        """`load_samples` with this reader's context and scratch memory; see there."""
        self._call(load_samples, low, first, stop, buffer, *rest)

    def load_sides(self, low: int, first: int, stop: int, buffer: np.ndarray, *rest) -> None:
        """`load_sides` with this reader's context and scratch memory; see there."""
        self._call(load_sides, low, first, stop, buffer, *rest)

    def _call(self, kernel, low: int, first: int, stop: int, buffer: np.ndarray, *rest) -> None:
        """Call a kernel until its scratch memory suffices.

        Raises OSError if the context is unusable, MemoryError if there is no scratch memory.
        """
        begin = time.perf_counter()
        context = 0 if self._context is None else self._context.value
        counts = self._counts
        counts[:] = 0
        while outcome := kernel(
            context, low, first, stop, buffer, self._scratch, counts, self._spent, *rest
        ):
            if outcome < 0:
                broken, self._context = self._context, None
                broken.close()  # its requests write to the buffer until it is closed
                self._context = CONTEXTS.take()
                raise OSError(-outcome, f"io_getevents: {os.strerror(-outcome)}")
            self._scratch = aligned(outcome * 5 // 4)
        self._reads.append(Read(begin, begin + self._spent.item() / 1e9, *counts.tolist()))

    def taken(self) -> list[Read]:
        """The calls since this was asked last, in their order."""
        reads, self._reads = self._reads, []
        return reads

    def close(self) -> np.ndarray:
        """Give the context back, and return the scratch memory."""
        context, self._context = self._context, None
        if context is not None:
            CONTEXTS.give_back(context)
        return self._scratch
