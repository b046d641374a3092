"""The threads of one epoch of a Loader: they plan batches, copy samples, and hand batches on."""

import threading
import time
from collections import deque
from typing import Any

import numpy as np

from sa1bpack.errors import LoaderError, ReadError
from sa1bpack.loading.batch_copy import Work
from sa1bpack.loading.devices import Cuda, Host, Slot
from sa1bpack.loading.planner import Feed
from sa1bpack.loading.ring import Ring, Ticket
from sa1bpack.order.batches import EpochBatches

# How long a thread waits at a time for a slot. It is woken when there is one; this bounds the wait
# of a thread whose loader was lost in a way that nothing could report.
_IDLE_SECONDS = 10.0

# Samples that are looked up together: most of the time a lookup takes does not depend on how many.
_LOOKUP_SAMPLES = 128


class _Job:
    """A batch that threads are filling."""

    def __init__(self, ticket: Ticket[Slot], work: Work, state: Any, dropped: list[ReadError]):
        self.ticket, self.work, self.state, self.dropped = ticket, work, state, dropped
        self.left = 0  # parts that are not done
        self.error: BaseException | None = None


class Crew:
    """The threads of one epoch. Knows nothing of the Loader, so that the Loader can be collected.

    They take turns: whoever finds no samples left to copy plans the next batch, in a slot of the
    ring, and cuts it into parts if there are more threads than batches at once. Whoever finishes
    the last part of a batch sends it on.
    """

    def __init__(
        self, ring: Ring[Slot], device: Host | Cuda, feed: Feed, batches: EpochBatches, *,
        threads: int, on_error: str, timeout: float,
    ):  # fmt: skip
        self._ring, self._device, self._feed, self._batches = ring, device, feed, batches
        self._on_error, self._timeout = on_error, timeout
        self._turn = threading.Lock()  # one plans, or takes a part of what was planned
        self._done = threading.Lock()
        self._parts: deque[tuple[_Job, int, int]] = deque()
        self._works: deque[tuple[Work, list[ReadError]]] = deque()
        self._doing: dict[str, tuple[Work | None, float]] = {}
        # Whole batches where there are enough of them for all threads: least to agree on.
        self._parts_a_batch = -(-threads // (ring.ahead + 1))
        ring.start(len(batches))
        self._threads = [
            threading.Thread(target=self._run, name=f"sa1bpack-reader-{n}", daemon=True)
            for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------------------- in the threads

    def _run(self) -> None:
        name = threading.current_thread().name
        while True:
            part = self._next_part(name)
            if part is None:
                return
            job, first, stop = part
            self._doing[name] = (job.work, time.monotonic())
            try:
                if not self._ring.closed:
                    job.work.fill(first, stop, job.ticket.slot.bytes)
            except BaseException as error:
                job.error = error
            with self._done:
                job.left -= 1
                last = job.left == 0
            if last:
                self._finish(job)
            self._doing.pop(name, None)

    def _next_part(self, name: str) -> tuple[_Job, int, int] | None:
        """The next samples to copy; plans a batch if none is left. None when there is no more."""
        with self._turn:
            while not self._parts:
                ticket = self._ring.begin(_IDLE_SECONDS)
                if ticket is not None:
                    self._doing[name] = (None, time.monotonic())
                    self._plan(ticket)
                    self._doing.pop(name, None)
                elif self._ring.over:
                    return None
            return self._parts.popleft()

    def _plan(self, ticket: Ticket[Slot]) -> None:
        state = (self._batches, ticket.number + 1)
        try:
            work, errors = self._planned(ticket.number)  # first: they come in the order of tickets
            self._device.wait(ticket.slot, self._timeout)
            if errors and self._on_error == "raise":
                # Not raised: a traceback would keep these frames, and they the ring.
                self._ring.abort(ticket, errors[0], state)
                return
            if work.nbytes > len(ticket.slot.bytes):
                self._device.grow(ticket.slot, work.nbytes)
            work.fill_heads(ticket.slot.bytes)
        except BaseException as error:
            self._ring.abort(ticket, error, state)
            return
        job = _Job(ticket, work, state, errors)
        count = min(self._parts_a_batch, len(work)) or 1
        edges = [len(work) * n // count for n in range(count + 1)]
        job.left = count
        self._parts.extend((job, edges[n], edges[n + 1]) for n in range(count))

    def _planned(self, number: int) -> tuple[Work, list[ReadError]]:
        """The work for a batch; when none is left, some batches are looked up together."""
        if not self._works:
            size = max(1, len(self._batches[number]))
            stop = min(number + max(1, _LOOKUP_SAMPLES // size), len(self._batches))
            together = [self._batches[k] for k in range(number, stop)]
            self._works.extend(self._feed.plan(together, self._batches.epoch))
        return self._works.popleft()

    def _finish(self, job: _Job) -> None:
        """All parts are done: send the batch on, or the error in its place."""
        failed, job.error = job.error, None  # its traceback leads to the job
        if failed is None and self._ring.closed:
            failed = LoaderError("the iteration was ended before this batch was whole")
        try:
            failed = failed or self._settle(job)
            if failed is None:
                staged = self._device.stage(job.ticket.slot, job.work)
        except BaseException as error:
            self._ring.abort(job.ticket, error, job.state)
            return
        if failed is not None:
            self._ring.abort(job.ticket, failed, job.state)
        else:
            batch = (staged, job.dropped)
            self._ring.commit(job.ticket, batch, job.state, free=self._device.frees)

    def _settle(self, job: _Job) -> ReadError | None:
        """The error of a sample that could not be copied, or make the batch without it."""
        while errors := job.work.errors():
            if self._on_error == "raise":
                return errors[0][1]
            job.dropped += [error for _, error in errors]
            rest = np.delete(job.work.indices, [k for k, _ in errors])
            [(job.work, more)] = self._feed.plan([rest], self._batches.epoch)
            job.dropped += more
            job.work.fill_heads(job.ticket.slot.bytes)
            job.work.fill(0, len(job.work), job.ticket.slot.bytes)
        return None

    # ------------------------------------------------------------------------------ in the consumer

    def doing(self) -> str:
        """What every thread is doing, for messages."""
        now, texts = time.monotonic(), []
        for name, (work, since) in list(self._doing.items()):
            what = "looking up a batch" if work is None else f"copying {work.name()}"
            texts.append(f"{name} has been {what} for {now - since:.1f} s")
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        texts += [f"{name} has ended" for name in dead]
        return "; ".join(texts) or "all threads wait for a free buffer"

    def stop(self, wait: float) -> bool:
        """End the threads and wait for them; False if one still copies after `wait` seconds."""
        self._ring.close()
        limit = time.monotonic() + wait
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))
        self._ring.clear()
        return not any(thread.is_alive() for thread in self._threads)
