"""A ring of reused slots between the threads that fill batches and the one consumer.

A slot goes round: free -> begun by a thread -> committed, waiting for its turn -> taken by the
consumer -> released, free again. Batches come out in the order in which they were begun, whichever
is finished first. Nothing waits without a limit, and `close` wakes everyone up.
"""

import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from sa1bpack.errors import LoaderError, LoaderTimeout

# How long to wait for the consumer to let go of batches when it holds every slot: another thread of
# it may be about to.
HELD_SECONDS = 5.0

Slot = TypeVar("Slot")


class Ticket(NamedTuple, Generic[Slot]):
    """The right and duty of one thread to fill a slot: it ends with `commit` or `abort`."""

    run: int
    number: int
    slot: Slot


class Entry(NamedTuple):
    """What the ring carries: a batch, the state after it, or the error that came instead of it."""

    batch: Any
    state: Any
    error: BaseException | None


class Ring(Generic[Slot]):
    """Slots and the order of the batches in them. All methods are safe in threads.

    The lock is reentrant and `release` and `close` change one thing at a time, so that they may be
    called by the garbage collector in the middle of anything.

    slots  the buffers
    ahead  batches that may be begun or wait, besides the one that is taken next
    """

    def __init__(self, slots: list[Slot], ahead: int):
        self._free: deque[Slot] = deque(slots)
        self._slots, self.ahead = len(slots), ahead
        self._wake = threading.Condition()
        # By number: what comes out, and its slot unless that is free already.
        self._ready: dict[int, tuple[Entry, Slot | None]] = {}
        self._begun = self._taken = self._filling = 0
        self._total = 0
        self._run = 0
        self._closed = True

    def start(self, total: int) -> int:
        """Begin a run of `total` batches; its number. What an earlier run left is thrown away."""
        with self._wake:
            self.clear()
            self._begun = self._taken = self._filling = 0
            self._total, self._closed = total, False
            self._run += 1
            return self._run

    @property
    def run(self) -> int:
        """The number of the latest run, from 1; 0 before there was one."""
        return self._run

    def close(self) -> None:
        """End the run: every wait ends now, and nothing is begun any more."""
        self._closed = True
        with self._wake:
            self._wake.notify_all()

    @property
    def total(self) -> int:
        """Batches of the latest run."""
        return self._total

    @property
    def closed(self) -> bool:
        """Whether the run has ended, or none has begun."""
        return self._closed

    def clear(self) -> None:
        """Throw away what nobody will take, with the errors, whose tracebacks may lead here."""
        with self._wake:
            while self._ready:
                _, (_, slot) = self._ready.popitem()
                if slot is not None:
                    self._free.append(slot)

    def dispose(self) -> None:
        """Let go of the slots, whoever keeps the closed ring. Batches that are out keep theirs."""
        self.clear()
        self._free.clear()

    # ----------------------------------------------------------------------- threads that fill

    def begin(self, wait: float) -> Ticket[Slot] | None:
        """The next batch to fill and a slot for it; None after `wait` seconds, or if there is none.

        There is none once all batches of the run are begun, or the ring is closed; see `over`.
        """
        with self._wake:
            if not self._wake.wait_for(self._may_begin, wait) or self.over:
                return None
            ticket = Ticket(self._run, self._begun, self._free.popleft())
            self._begun += 1
            self._filling += 1
            return ticket

    def _may_begin(self) -> bool:
        room = self._begun - self._taken <= self.ahead
        return self.over or (room and len(self._free) > 0)

    @property
    def over(self) -> bool:
        """Whether `begin` will never give anything more in this run."""
        return self._closed or self._begun >= self._total

    def commit(self, ticket: Ticket[Slot], batch: Any, state: Any, free: bool = False) -> None:
        """The batch is whole. `free`: its slot is not needed any more, so it may be begun again."""
        self._finish(ticket, Entry(batch, state, None), free)

    def abort(self, ticket: Ticket[Slot], error: BaseException, state: Any) -> None:
        """The batch cannot be made: the consumer gets the error in its place."""
        self._finish(ticket, Entry(None, state, error), True)

    def _finish(self, ticket: Ticket[Slot], entry: Entry, free: bool) -> None:
        with self._wake:
            late = ticket.run != self._run
            unwanted = late or self._closed
            free = free or unwanted
            if free:
                self._free.append(ticket.slot)
            if not late:
                self._filling -= 1
            if not unwanted:
                self._ready[ticket.number] = (entry, None if free else ticket.slot)
            self._wake.notify_all()

    # -------------------------------------------------------------------------------- consumer

    def take(self, timeout: float, owners: Callable[[], str]) -> Entry | None:
        """The next batch, in order; None after the last one or if the ring is closed.

        timeout  seconds
        owners   says what the threads are doing, for the message

        Raises LoaderTimeout if it does not come in time, LoaderError if it cannot come because the
        consumer holds every slot.
        """
        limit = time.monotonic() + timeout
        with self._wake:
            if not self._is_next() and self._all_held():
                gc.collect()  # a batch in a reference cycle is held by nobody
                if not self._wake.wait_for(self._can_go_on, min(timeout, HELD_SECONDS)):
                    raise LoaderError(
                        f"all {self._slots} buffers are held by images, masks or runs of batches "
                        "that are still in use; clone those that you keep, or raise `ahead` by as "
                        "many batches as you keep"
                    )
            while not self._wake.wait_for(self._is_next, max(0.0, limit - time.monotonic())):
                if time.monotonic() >= limit:
                    raise LoaderTimeout(
                        f"batch {self._taken} of {self._total} did not come within {timeout:g} s; "
                        f"{owners()}. If the storage is slow, raise `timeout` or `threads`"
                    )
            if self._closed or self._taken >= self._total:
                return None
            entry, _ = self._ready.pop(self._taken)
            self._taken += 1
            self._wake.notify_all()
            return entry

    def _is_next(self) -> bool:
        return self._closed or self._taken >= self._total or self._taken in self._ready

    def _all_held(self) -> bool:
        return not self._free and not self._filling and not self._ready

    def _can_go_on(self) -> bool:
        return self._is_next() or not self._all_held()

    def release(self, slot: Slot) -> None:
        """The consumer is done with a batch's slot.

        It is begun next: what of it is still in the processor's cache is written to faster.
        """
        self._free.appendleft(slot)
        with self._wake:
            self._wake.notify_all()
