"""The threads that read for one epoch of a Loader, or for all loaders of a mix together."""

import os
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Protocol

import numpy as np

from sa1bpack.loading.batch_queue import BatchQueue, QueuedBatch, SampleRange
from sa1bpack.loading.buffer_pool import Changes
from sa1bpack.loading.devices import CudaDevice, Host
from sa1bpack.loading.sample_reader import SampleReader
from sa1bpack.threads import Slots, start_thread

# How long a thread waits at a time; it is woken when there is something to do.
_IDLE_SECONDS = 10.0


class ThreadTools:
    """What a thread of a crew works with: its device, and what it reads samples with.

    For that thread alone, which calls `close` when it ends.
    """

    def __init__(self, scratch: deque[np.ndarray]):
        """
        Args:
            scratch: scratch memory of threads that have ended.
        """
        self._scratch = scratch
        self._device: Host | CudaDevice | None = None
        self._readers: dict[bool, SampleReader] = {}  # past the page cache, and through it

    def enter(self, device: Host | CudaDevice) -> None:
        """Make this the device of the thread, unless it is already."""
        if device is not self._device and isinstance(device, CudaDevice):
            device.enter_thread()
        self._device = device

    def reader(self, direct: bool) -> SampleReader:
        """What the thread reads with, past the page cache or through it.

        Raises ResourceShortage, OSError: the system refuses a context.
        """
        reader = self._readers.get(direct)
        if reader is None:
            scratch = None
            with suppress(IndexError):  # there is no memory of a thread that has ended
                scratch = self._scratch.pop()
            reader = SampleReader(direct, scratch)
            self._readers[direct] = reader
        return reader

    def close(self) -> None:
        """Give back contexts and scratch memory."""
        while self._readers:
            _, reader = self._readers.popitem()
            self._scratch.append(reader.close())


class EpochWork(Protocol):
    """One epoch of a Loader, as its threads see it."""

    queue: BatchQueue

    def work_at(
        self, batch: QueuedBatch, samples: SampleRange | None, tools: ThreadTools, name: str
    ) -> None:
        """Begin a batch, or copy samples of one; `name` is the thread's. Raises nothing."""


class ReaderCrew:
    """Threads that work at the batches of one epoch, or of one epoch of each loader of a mix.

    At most `budget` threads work at a time, whatever the number of loaders. But a loader that no
    thread works for always gets one, so that the others need not wait until a slow one has read:
    there is one thread more for each loader after the first. A thread that is free works for the
    loader that has the fewest batches ready.

    An epoch begins with `serve`, and is done when all of its batches are begun and shared out, or
    its queue is closed. The threads of a single epoch end then; those of a mix at its `end`.

    Threads hold references to this and to the epochs that are not done, and to nothing else.
    """

    def __init__(
        self,
        budget: int,
        changes: Changes,
        scratch: deque[np.ndarray],
        loaders: int | None = None,
        pipeline_slots: Slots | None = None,
    ):
        """
        Args:
            budget: number of threads that work at a time.
            changes: lock and conditions of the pools of all loaders.
            scratch: scratch memory of threads that have ended, and later that of these.
            loaders: number of loaders of a mix; None: the threads are those of one epoch.
            pipeline_slots: places for the calls of pipelines of all loaders of a mix at a time.
        """
        self.budget = budget
        self.changes = changes
        self.threads: list[threading.Thread] = []
        self.is_shared = loaders is not None
        self.pipeline_slots = pipeline_slots
        self._count = budget + (loaders or 1) - 1
        self._scratch = scratch
        self._epochs: list[EpochWork] = []  # that are not done
        self._busy: Counter[EpochWork] = Counter()  # of a mix: epoch → threads that work at it now
        self._serves = False  # threads may begin, or end if no epoch is left
        self._over = False
        self._left = threading.Condition()  # a thread has finished work of an epoch that is done
        self._pid = os.getpid()

    def start(self) -> None:
        """Start the threads. If that fails, or is interrupted, `end` ends those that began."""
        for n in range(self._count):
            self.threads.append(start_thread(self._run, f"sa1bpack-reader-{n}"))

    def serve(self, epoch: EpochWork) -> None:
        """Work at the batches of an epoch."""
        with self.changes.lock:
            self._epochs = [*self._epochs, epoch]
            self._serves = True
            self.changes.wake_all_threads()

    # ------------------------------------------------------------------------------- in the threads

    def _run(self) -> None:
        name = threading.current_thread().name
        tools = ThreadTools(self._scratch)
        while (task := self._next()) is not None:
            epoch, batch, samples = task
            epoch.work_at(batch, samples, tools, name)
            del task, batch  # while this thread waits, nothing keeps their shards open
            if self.is_shared:
                self._finished(epoch)
            del epoch
        tools.close()

    def _next(self) -> tuple[EpochWork, QueuedBatch, SampleRange | None] | None:
        """The next task of a thread; None: there will be none."""
        while True:
            with self.changes.lock:
                self.changes.take_back_buffers()
                # Those of which nothing is left to do are forgotten.
                self._epochs = [epoch for epoch in self._epochs if not epoch.queue.is_done]
                epoch = self._neediest()
                if epoch is not None:
                    return self._task_of(epoch)
                if self._is_over():
                    return None
                self.changes.begin_waiting()
            self.changes.wait(_IDLE_SECONDS)

    def _task_of(self, epoch: EpochWork) -> tuple[EpochWork, QueuedBatch, SampleRange | None]:
        """The next task of an epoch, which has one."""
        task = epoch.queue.task()
        assert task is not None, "the queue had a task under the same lock"
        if self.is_shared:
            self._busy[epoch] += 1
        return epoch, *task

    def _is_over(self) -> bool:
        """True if there will be no task for any thread."""
        if self._over or self.is_shared:
            return self._over
        return self._serves and not self._epochs

    def _neediest(self) -> EpochWork | None:
        """The epoch with the fewest batches ready that a thread may work at now."""
        chosen = None
        is_full = self._busy.total() >= self.budget
        for epoch in self._epochs:
            queue = epoch.queue
            if not queue.has_task() or (is_full and self._busy[epoch] > 0):
                continue
            if chosen is None or queue.ready < chosen.queue.ready:
                chosen = epoch
        return chosen

    def _finished(self, epoch: EpochWork) -> None:
        """Note that a thread has done a task of an epoch."""
        with self.changes.lock:
            self._busy[epoch] -= 1
            if self._busy[epoch] > 0:
                return
            del self._busy[epoch]
            self.changes.wake_all_threads()  # threads may wait for the number of those at work
        with self._left:
            self._left.notify_all()

    # -------------------------------------------------------------------------------- by the owners

    def at_other_work(self, epoch: EpochWork) -> int:
        """Number of threads that work at other epochs than this."""
        with self.changes.lock:
            return self._busy.total() - self._busy[epoch]

    def leave(self, epoch: EpochWork, limit: float) -> None:
        """Wait for the threads that work at an epoch whose queue is closed.

        Args:
            epoch: the epoch.
            limit: when to stop waiting, by `time.monotonic`.
        """
        if not self.is_shared:
            self._over = True
            with self.changes.lock:
                self.changes.wake_all_threads()
            self._join(limit)
            return

        def is_left() -> bool:
            return self._busy[epoch] == 0 or threading.current_thread() in self.threads

        with self._left:
            self._left.wait_for(is_left, max(0.0, limit - time.monotonic()))

    def end(self, wait: float) -> None:
        """End the threads; wait a while for those that work.

        Args:
            wait: seconds to wait at most. In a forked child there is nothing to end.
        """
        if self._pid != os.getpid():
            return
        self._over = True
        for epoch in self._epochs:
            epoch.queue.close()  # what is shared out is still worked off
        with self.changes.lock:
            self.changes.wake_all_threads()
        self._join(time.monotonic() + wait)

    def _join(self, limit: float) -> None:
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))
