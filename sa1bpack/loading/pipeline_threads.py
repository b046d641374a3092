"""The threads of one epoch of a Loader on a CPU that call a pipeline, ahead of the consumer."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sa1bpack.arguments import MAX_SECONDS
from sa1bpack.errors import LoaderTimeout
from sa1bpack.loading.loaded_batch import LoadedBatch
from sa1bpack.loading.reader_threads import ReaderThreads
from sa1bpack.loading.stats import EpochCounts
from sa1bpack.threads import Slots, start_thread
from sa1bpack.transforms.backends import sharing_cores

# How long a thread waits at a time; it is woken when there is something to do.
_IDLE_SECONDS = 10.0


@dataclass(eq=False)
class _PlacedBatch:
    """A batch at its place in the order, from the thread that takes it to the consumer.

    Attributes:
        loaded: the batch; as it was loaded until it is complete. None until it is taken.
        error: why the consumer cannot have it.
        is_complete: the consumer may have it, or the error.
    """

    loaded: LoadedBatch | None = None
    error: BaseException | None = None
    is_complete: bool = False


class PipelineThreads:
    """The threads of one epoch that call a pipeline, and the batches that they work at.

    One thread at a time takes the next batch of the readers, at its place in the order; several
    call the pipeline. The consumer takes batches, or errors in their places, in that order. Besides
    the batch that it has, at most `threads` + 1 exist, in work or complete: a slow consumer holds
    the threads up.

    Once the epoch has ended, a thread that is still in the pipeline may reach only

    - the places of its own epoch, which the consumer has left: nobody takes what it puts there;
    - the statistics of its own epoch;
    - the pipeline, which other threads may call at the same time;
    - the buffer of its batch, which goes back to the pool when the last tensor of it is gone.

    The process ends once it has returned from there: within a call of torch, a thread that meets an
    interpreter which has ended ends the process by an abort. So a pipeline that never returns keeps
    the process, as a thread of `concurrent.futures` does.

    It takes no further batch: the readers' queue is closed. The place of the run is not among
    these: the consumer alone notes which batches came out. Nor is the Loader, so that it can be
    collected.
    """

    def __init__(
        self,
        readers: ReaderThreads,
        transform: Callable[[LoadedBatch], LoadedBatch],
        threads: int,
        timeout: float,
        counts: EpochCounts,
        slots: Slots | None = None,
    ):
        """
        Args:
            readers: make the batches; ended with these threads.
            transform: calls the pipeline; in several threads at once.
            threads: number of threads.
            timeout: seconds after which a batch that has not arrived is an error.
            counts: statistics of the epoch.
            slots: places for the calls of all loaders of a mix; None: each thread may call it.
        """
        self._slots = slots or Slots(threads)
        self._readers = readers
        self._transform = transform
        self._count = threads
        self._timeout = timeout
        self._counts = counts
        counts.pipeline_threads = threads
        self._pid = os.getpid()
        self._changed = threading.Condition()  # the lock of what follows
        self._placed: deque[_PlacedBatch] = deque()  # not taken by the consumer
        self._is_taking = False  # a thread waits for a batch of the readers
        self._all_taken = False
        self._closed = False
        self._threads: list[threading.Thread] = []
        # By thread: the batch that is in the pipeline, and since when.
        self._doing: dict[str, tuple[str, float]] = {}

    def belong_to(self, iteration: object) -> None:
        """See `ReaderThreads.belong_to`."""
        self._readers.belong_to(iteration)

    def start(self) -> None:
        """Start the threads. If that fails, or is interrupted, `end` ends those that began."""
        self._readers.start()
        for n in range(self._count):
            name = f"sa1bpack-pipeline-{n}"
            self._threads.append(start_thread(self._run, name, awaited_at_exit=True))

    # ------------------------------------------------------------------------------- in the threads

    def _run(self) -> None:
        with sharing_cores(self._slots.count):
            while (placed := self._next()) is not None:
                self._work_at(placed)
                del placed  # while this thread waits, it holds no buffer

    def _next(self) -> _PlacedBatch | None:
        """The next batch of the order, taken; None after the last, or if the epoch has ended."""
        with self._changed:
            while not self._changed.wait_for(self._may_take, _IDLE_SECONDS):
                pass
            if self._closed or self._all_taken:
                return None
            self._is_taking = True
            placed = _PlacedBatch()
            self._placed.append(placed)
        # Without a lock. The consumer's wait for the batch has the timeout, not this one.
        loaded = None
        error = None
        try:
            loaded = self._readers.take(MAX_SECONDS)
        except BaseException as raised:
            error = raised
        with self._changed:
            self._is_taking = False
            self._all_taken = loaded is None or loaded.ordered.is_last
            placed.loaded = loaded
            placed.error = error
            placed.is_complete = error is not None
            self._changed.notify_all()
            if self._closed or loaded is None:
                return None
        return placed

    def _may_take(self) -> bool:
        """True if `_next` need not wait."""
        if self._closed or self._all_taken:
            return True
        return not self._is_taking and len(self._placed) <= self._count

    def _work_at(self, placed: _PlacedBatch) -> None:
        """Call the pipeline with a batch, and let the consumer have the result or the error."""
        loaded = placed.loaded
        assert loaded is not None, "only a batch that was taken is worked at"
        if not self._slots.take(lambda: self._closed):
            placed.loaded = None
            return
        name = threading.current_thread().name
        self._doing[name] = (f"batch {loaded.ordered.number}", time.monotonic())
        begin = self._counts.clock()
        error = None
        try:
            loaded = self._transform(loaded)
        except BaseException as raised:
            error = raised
        self._slots.give_back()
        self._counts.worked("pipeline", begin)
        self._doing.pop(name, None)
        with self._changed:
            placed.loaded = loaded
            placed.error = error
            placed.is_complete = True
            if self._closed:
                placed.loaded = None
                placed.error = None
            self._changed.notify_all()

    # ------------------------------------------------------------------------------ in the consumer

    def take(self) -> LoadedBatch | None:
        """The next batch; None if the epoch was ended.

        Raises the error that came instead of the batch, or LoaderTimeout.
        """
        with self._changed:
            ready = sum(placed.is_complete for placed in self._placed)
            if not self._changed.wait_for(self._has_news, self._timeout):
                raise LoaderTimeout(self._late_text())
            batches = self._placed
            if self._closed:
                return None
            placed = batches.popleft()
            self._changed.notify_all()
            if self._closed:  # since the lines above: by a signal handler, which left another deque
                return None
        error = placed.error
        if error is not None:
            placed.error = None
            raise error
        assert placed.loaded is not None, "a complete batch without an error is there"
        return placed.loaded._replace(ready=ready)

    def _has_news(self) -> bool:
        """True if `take` need not wait."""
        if self._closed:
            return True
        return len(self._placed) > 0 and self._placed[0].is_complete

    def _late_text(self) -> str:
        """The message for a batch that does not arrive in time: what every thread does."""
        now = time.monotonic()
        texts = [
            f"{name} has had {batch} in the pipeline for {now - since:.1f} s"
            for name, (batch, since) in list(self._doing.items())
        ]
        return "; ".join([self._readers.late_text(self._timeout), *texts])

    def end(self, wait: float) -> None:
        """End the epoch: call the pipeline no more, and wait a while for calls in progress.

        Args:
            wait: seconds to wait at most, which only affects how soon threads and buffers are gone.
                In a forked child there is nothing to end.
        """
        if self._pid != os.getpid():
            return
        limit = time.monotonic() + wait
        self._closed = True
        with self._changed:
            # Not cleared: the consumer may be about to take the first of them.
            self._placed = deque()
            self._changed.notify_all()
        self._slots.wake()
        self._readers.end(wait)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))
