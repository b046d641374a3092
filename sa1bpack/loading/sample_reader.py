"""What one thread of a Loader reads with."""

import os
import time
from typing import NamedTuple

import numpy as np

from sa1bpack.disk.aio import CONTEXTS, Context
from sa1bpack.disk.direct import aligned
from sa1bpack.loading.batch.load_samples import Means, Place, Samples, load_samples

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
        self._counts = np.zeros(4, np.int64)  # see load_samples.CACHED
        self._spent = np.zeros(1, np.int64)  # nanoseconds
        self._reads: list[Read] = []
        self._scratch = aligned(_FIRST_SCRATCH) if scratch is None else scratch
        self._context: Context | None = CONTEXTS.take() if direct else None

    def load(self, samples: Samples, place: Place, first: int, stop: int) -> None:
        """Load samples `first` to `stop` of a batch: `load_samples`, until its scratch memory
        suffices.

        Raises OSError if the context is unusable, MemoryError if there is no scratch memory.
        """
        begin = time.perf_counter()
        context = 0 if self._context is None else self._context.value
        self._counts[:] = 0
        while outcome := load_samples(
            Means(context, self._scratch, self._counts, self._spent), samples, place, first, stop
        ):
            if outcome < 0:
                broken, self._context = self._context, None
                broken.close()  # its requests write to the buffer until it is closed
                self._context = CONTEXTS.take()
                raise OSError(-outcome, f"io_getevents: {os.strerror(-outcome)}")
            self._scratch = aligned(outcome * 5 // 4)
        counts = self._counts.tolist()
        self._reads.append(Read(begin, begin + self._spent.item() / 1e9, *counts))

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
