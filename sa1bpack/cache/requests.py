"""The threads of a process that ask an origin for files, and what is counted of their requests."""

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from sa1bpack.cache.origin import Origin
from sa1bpack.errors import StoreError

# Requests at once: an object store takes tens of milliseconds to answer each, and delivers some 50
# to 100 MB/s of it then; see docs/cloud.md.
AT_ONCE = 48

_END_SECONDS = 5.0


@dataclass
class Counts:
    """What was read of one origin by this process.

    hits      samples that were present when they were asked for
    misses    samples that had to be fetched
    requests  to the origin
    nbytes    bytes that it delivered
    waited    seconds in which at least one thread waited for samples, see `waits`
    """

    hits: int = 0
    misses: int = 0
    requests: int = 0
    nbytes: int = 0
    waited: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.hits + other.hits, self.misses + other.misses,
            self.requests + other.requests, self.nbytes + other.nbytes, self.waited + other.waited,
        )  # fmt: skip

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(
            self.hits - other.hits, self.misses - other.misses,
            self.requests - other.requests, self.nbytes - other.nbytes, self.waited - other.waited,
        )  # fmt: skip


class Waits:
    """The time in which at least one thread waits."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._lock = clock, threading.Lock()
        self._threads, self._since, self._seconds = 0, 0.0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._threads == 0:
                self._since = self._clock()
            self._threads += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._threads -= 1
            if self._threads == 0:
                self._seconds += self._clock() - self._since

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        with self._lock:
            return self._seconds + (self._clock() - self._since if self._threads else 0.0)


class Requests:
    """Requests to one origin, counted."""

    def __init__(self, origin: Origin):
        self.origin = origin
        self._counts = Counts()
        self._lock = threading.RLock()  # held for additions alone; finalizers may read counts

    def counts(self) -> Counts:
        """A copy of the counts so far."""
        with self._lock:
            return Counts() + self._counts

    def count(self, hits: int, misses: int) -> None:
        """Count samples that were asked for."""
        with self._lock:
            self._counts.hits += hits
            self._counts.misses += misses

    def read(self, path: str) -> bytes:
        """The bytes of a small file. Raises as Origin does."""
        data = self.origin.read(path)
        self._add(len(data))
        return data

    def read_range(self, path: str, first: int, stop: int):
        """Bytes of a file, exactly so many, with a buffer. Raises as Origin does."""
        data = self.origin.read_range(path, first, stop)
        self._add(stop - first)
        return data

    def folders(self, path: str) -> list[str]:
        """Names of the folders right below a folder. Raises as Origin does."""
        found = self.origin.folders(path)
        self._add(0)
        return found

    def _add(self, nbytes: int) -> None:
        with self._lock:
            self._counts.requests += 1
            self._counts.nbytes += nbytes

    def after_fork(self) -> None:
        """In a child: another thread may have held the lock."""
        self._lock = threading.RLock()


class _Threads:
    """Daemons: what waits in the queue when the process ends is not requested any more."""

    def __init__(self):
        self._ending = False
        self._calls: queue.SimpleQueue[tuple[Future, Callable[..., None], tuple]] = (
            queue.SimpleQueue()
        )
        self._lock, self._started, self._busy = threading.Lock(), 0, 0

    def submit(self, call: Callable[..., None], args: tuple) -> Future:
        future: Future = Future()
        self._calls.put((future, call, args))
        with self._lock:
            self._busy += 1
            if self._busy > self._started < AT_ONCE:
                self._started += 1
                name = f"sa1bpack-fetch-{self._started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, call, args = self._calls.get()
            try:
                if self._ending:
                    raise StoreError("the process is ending")
                call(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            del future, call, args  # which have hold of what they fetched
            with self._lock:
                self._busy -= 1

    def end(self) -> None:
        """Wait for requests that have begun: a library must not return to an interpreter that has
        ended. Those that take longer than a few seconds are left."""
        self._ending, limit = True, time.monotonic() + _END_SECONDS
        while self._busy and time.monotonic() < limit:
            time.sleep(0.01)


def submit(call: Callable[..., None], *args) -> Future:
    """Let a thread make a call, one of AT_ONCE; for calls that wait for an origin and nothing else.

    They run in the order in which they were submitted.
    """
    return _threads.submit(call, args)


_threads = _Threads()
_waits = Waits()


def waits() -> Waits:
    """The time in which threads of this process wait for samples that are being fetched."""
    return _waits


def _after_fork() -> None:
    """The threads remained in the parent."""
    global _threads, _waits
    _threads, _waits = _Threads(), Waits()


atexit.register(lambda: _threads.end())
os.register_at_fork(after_in_child=_after_fork)
