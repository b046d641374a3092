"""Requests to an origin: sent in turn, measured, and repeated if they are slow.

All requests to one URL share a `Flow`. It sends them in the order in which they were queued, and
has so many bytes in flight that the network is never idle: what arrives per second, times what the
fastest request took (the bandwidth-delay product), and a quarter more. Others beside these would
only slow down those that are needed first. But a store sends only so much per second over one
connection, and the fastest request may be a short one: a number of requests is always in flight.
Nobody who waits for a request waits for its turn.

Each request has a deadline. Of one that takes several times as long as others did, a second one is
made, and the first answer counts: in an object store a few of a thousand take a second where most
take 30 ms.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from sa1bpack.errors import FormatError, StoreError
from sa1bpack.remote.origin import EndsEarly, Origin
from sa1bpack.urls import Counts

# Seconds after which a request that got no answer is an error.
DEADLINE = 120.0

# A second request is made after this many times the usual seconds, and at least so many.
_SLOW = 4.0
SLOW_SECONDS = 0.5

# Requests that the measurement looks back on; after so many more it is made again.
_MEASURED = 256
_MEASURED_AGAIN = 8

# Bytes in flight, by the bandwidth-delay product: with more, those that are needed first share the
# way with those behind them. As long as too little was in flight to measure the way, it doubles.
_MARGIN = 1.25
_FIRST_MARGIN = 2.0

# Requests in flight at least. One connection to an object store gets 50 to 100 MB/s of it.
_LEAST_AT_ONCE = 32

# Seconds for which the fastest request counts: later ones wait for those before them.
_FASTEST_COUNTS = 300.0

# Bytes in flight before anything was measured: those of a first batch, which would else wait for
# several answers one after the other.
_FIRST_IN_FLIGHT = 64 << 20

# Limits of the bytes that are asked for ahead of their use: half of them may be in flight.
LEAST_AHEAD = 32 << 20
MOST_AHEAD = 512 << 20

# Held while the state of any Flow, or Request, is read or changed; a fork waits for that.
_changing = threading.Lock()
os.register_at_fork(
    before=_changing.acquire,
    after_in_parent=_changing.release,
    after_in_child=_changing.release,
)


class Flow:
    """The flow of bytes from one origin, measured while it is read; for any thread.

    Attributes:
        limit: bytes that may be in flight.
        slow_seconds: seconds after which a request is slow.
        arrived_bytes: bytes that have arrived so far.
    """

    def __init__(self) -> None:
        self.limit = _in_flight_of(_FIRST_IN_FLIGHT)
        self.slow_seconds = DEADLINE / 4
        self.arrived_bytes = 0
        self._arrivals = 0
        self._seconds: deque[float] = deque(maxlen=_MEASURED)  # that requests took
        self._rates: deque[float] = deque(maxlen=_MEASURED)  # bytes per second meanwhile
        self._sizes: deque[int] = deque(maxlen=_MEASURED)  # their bytes
        self._fastest = DEADLINE
        self._fastest_at = 0.0  # when that was measured
        self._begin_in(os.getpid())

    def _begin_in(self, process: int) -> None:
        """Begin with nothing in flight: what a process asked for never arrives in its forks."""
        self._process = process
        self._queue: deque[Request] = deque()
        self._in_flight = 0  # bytes
        self._is_sending = False
        self._is_woken = False  # somebody is about to send

    @property
    def bytes_ahead(self) -> int:
        """Bytes to be asked for ahead of their use: those in flight, and as many that wait."""
        return 2 * self.limit

    def queue(self, request: "Request") -> None:
        """Send a request in its turn."""
        with _changing:
            if self._process != os.getpid():
                self._begin_in(os.getpid())
            self._queue.append(request)
            if self._is_woken or self._in_flight >= self.limit:
                return
            self._is_woken = True
        request.origin.soon(self.send_more)

    def send_more(self) -> None:
        """Send the next requests, as long as few enough bytes are in flight."""
        while True:
            with _changing:
                self._is_woken = False
                # A thread that sends already looks again after each request.
                if self._is_sending or not self._queue or self._in_flight >= self.limit:
                    return
                request = self._queue.popleft()
                self._is_sending = True
            try:
                request.send_once()
            finally:
                self._is_sending = False

    def left(self, nbytes: int) -> None:
        """Note a request that is begun. With the lock held."""
        self._in_flight += nbytes

    def ended(self, nbytes: int) -> None:
        """Note a request that has ended. With the lock held."""
        self._in_flight -= nbytes

    def arrived(self, begun: float, arrived_before: int, nbytes: int) -> None:
        """Note an answer. With the lock held.

        Args:
            begun: when the request was begun, by `time.monotonic`.
            arrived_before: `arrived_bytes` at that time.
            nbytes: its bytes.
        """
        now = time.monotonic()
        seconds = max(now - begun, 1e-4)
        self.arrived_bytes += nbytes
        self._arrivals += 1
        self._seconds.append(seconds)
        self._rates.append((self.arrived_bytes - arrived_before) / seconds)
        self._sizes.append(nbytes)
        if now - self._fastest_at > _FASTEST_COUNTS:
            self._fastest = min(self._seconds)
            self._fastest_at = now
        self._fastest = min(self._fastest, seconds)
        if self._arrivals <= 2 * _MEASURED_AGAIN or self._arrivals % _MEASURED_AGAIN == 0:
            self.slow_seconds = max(_SLOW * median(self._seconds), SLOW_SECONDS)
            margin = _MARGIN if len(self._rates) == _MEASURED else _FIRST_MARGIN
            of_the_way = margin * max(self._rates) * self._fastest
            self.limit = _in_flight_of(max(of_the_way, _LEAST_AT_ONCE * fmean(self._sizes)))


def _in_flight_of(nbytes: float) -> int:
    """The nearest number of bytes that may be in flight."""
    return int(max(min(max(nbytes, LEAST_AHEAD / 2), MOST_AHEAD / 2), 1))


class Request:
    """A request for a range of a file, with its deadline, made again if it is slow.

    Attributes:
        origin: where the file is.
        users: parts of what it fetches that somebody may wait for.
    """

    users = 0

    def __init__(self, origin: Origin, flow: Flow, path: str, first: int, stop: int):
        self.origin = origin
        self.flow = flow
        self.path = path
        self.first = first
        self.stop = stop
        self._data: Any = None
        self._failure: Exception | None = None
        self._attempts: list[_Attempt] = []  # that have no answer
        self._is_queued = False
        self._begun: float | None = None  # when it was sent
        self._is_repeated = False
        self._is_over = False
        self._settled: threading.Event | None = None  # of those who wait

    @property
    def nbytes(self) -> int:
        """Bytes that it fetches."""
        return self.stop - self.first

    def queue(self) -> None:
        """Send it in its turn, unless that was asked for before."""
        if not self._is_queued:
            self._is_queued = True
            self.flow.queue(self)

    def send_once(self) -> None:
        """Send it, unless it was sent, or is not needed any more."""
        with _changing:
            if self._begun is not None or self._is_over:
                return
            self._begun = time.monotonic()
        self._send()

    def _send(self) -> None:
        """Begin to read. What prevents that is its answer."""
        attempt = _Attempt(self)
        with _changing:
            self._attempts.append(attempt)
            self.flow.left(self.nbytes)
        try:
            attempt.begin()
        except Exception as error:
            attempt.answered(None, error)

    def answered(self, attempt: "_Attempt", data: Any, error: Exception | None) -> None:
        """Note the answer to an attempt: its bytes, or why there are none."""
        with _changing:
            self._attempts.remove(attempt)
            self.flow.ended(self.nbytes)
            if data is not None:
                self.flow.arrived(attempt.begun, attempt.arrived_before, self.nbytes)
                if not self._is_over:
                    self._data = data
                others = list(self._attempts)
            else:
                others = []
                if not self._attempts:
                    self._failure = error
            settled = self._settled
        if settled is not None and (data is not None or not self._attempts):
            settled.set()
        for other in others:
            other.cancel()
        if data is not None:
            self.origin.count(Counts(requests=1, nbytes=self.nbytes))
        self.flow.send_more()

    @property
    def is_settled(self) -> bool:
        """True if `wait` returns, or raises, at once."""
        return self._data is not None or self._failure is not None

    def wait(self) -> Any:
        """The bytes. Raises as `fetched.RangeReader`."""
        if self._data is None:
            self._wait()
        return self._data

    def _wait(self) -> None:
        """Wait until its bytes are here. Raises as `wait`."""
        self.send_once()
        with _changing:
            if self._settled is None:
                self._settled = threading.Event()
        begun = self._begun or time.monotonic()
        deadline = begun + DEADLINE
        slow = begun + self.flow.slow_seconds
        while self._data is None:
            if self._failure is not None or self._is_over:
                raise self._error()
            now = time.monotonic()
            if now >= deadline:
                self.cancel()
                raise StoreError(
                    f"{self._name}: no answer to a request for {self.nbytes} bytes within "
                    f"{DEADLINE:.0f} s; check the network, and try again"
                )
            if now >= slow:
                slow = deadline
                self._send_again()
            self._settled.wait(max(min(slow, deadline) - now, 0.0))

    def _send_again(self) -> None:
        """Send it a second time, unless that was done, or is of no use."""
        with _changing:
            if self._is_repeated or self._is_over or not self._attempts:
                return
            self._is_repeated = True
        self._send()

    @property
    def _name(self) -> str:
        return f"{self.origin.url}/{self.path}"

    def _error(self) -> Exception:
        """The error of a request that failed, or was ended."""
        name = self._name
        failure = self._failure
        if failure is None:
            return StoreError(f"{name}: a request was interrupted")
        if isinstance(failure, FileNotFoundError):
            return FormatError(f"{name}: missing; upload the pack again")
        if isinstance(failure, EndsEarly):
            return FormatError(
                f"{name}: it ends before the bytes that are needed; upload the pack again"
            )
        if isinstance(failure, OSError):
            return StoreError(f"{name}: {failure}")
        return failure

    def release(self) -> None:
        """Note that one part of it is not waited for any more; without any, it ends."""
        with _changing:
            self.users -= 1
            is_needed = self.users > 0 or (self._data is not None and not self._attempts)
        if not is_needed:
            self.cancel()

    def cancel(self) -> None:
        """End what is still in progress."""
        with _changing:
            self._is_over = True
            attempts = list(self._attempts)
            settled = self._settled
        if settled is not None:
            settled.set()
        for attempt in attempts:
            attempt.cancel()


class _Attempt:
    """One attempt at a request.

    Attributes:
        begun: when it was begun.
        arrived_before: bytes of the flow that had arrived then.
    """

    def __init__(self, request: Request):
        self.begun = time.monotonic()
        self.arrived_before = request.flow.arrived_bytes
        self._request = request
        self._cancel: Callable[[], object] | None = None
        self._is_cancelled = False
        self._is_answered = False

    def begin(self) -> None:
        """Ask the origin. Raises as `Origin.ask`."""
        request = self._request
        cancel = request.origin.ask(request.path, request.first, request.stop, self.answered)
        with _changing:
            if not self._is_answered:
                self._cancel = cancel
        if self._is_cancelled:
            cancel()

    def answered(self, data: Any, error: Exception | None) -> None:
        """See `Origin.ask`."""
        with _changing:
            self._is_answered = True
            self._cancel = None  # which has this, and would keep it
        self._request.answered(self, data, error)

    def cancel(self) -> None:
        """End it."""
        self._is_cancelled = True
        cancel = self._cancel
        if cancel is not None:
            cancel()
