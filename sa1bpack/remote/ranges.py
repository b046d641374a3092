"""Ranges of files in an origin: requests that are joined, measured, and repeated if slow.

A `FolderRanges` reads the files of one shard. Spans that lie next to each other become one request,
and a long one becomes several. Each has a deadline. Of a request that takes several times as long
as others did, a second one is made, and the first answer counts: in an object store a few of a
thousand take a second where most take 30 ms.

All requests to one URL share a `Flow`, which measures how many bytes must be in flight so that the
network is never idle: what arrives per second, times what the fastest request took (the
bandwidth-delay product). Twice that is what is asked for ahead.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from itertools import groupby
from statistics import median
from typing import Any

from sa1bpack.errors import FormatError, StoreError
from sa1bpack.format.fetched import Span
from sa1bpack.format.files import CHECKSUMS_NAME
from sa1bpack.remote.kept_ranges import KeptRanges
from sa1bpack.remote.origin import RANGE_BYTES, EndsEarly, Origin, changed, is_replaced
from sa1bpack.urls import Counts

# Spans of a file that are closer than this are one request: a request costs more than these bytes.
GAP = 1 << 14

# Seconds after which a request that got no answer is an error.
DEADLINE = 120.0

# A second request is made after this many times the usual seconds, and at least so many.
_SLOW = 4.0
SLOW_SECONDS = 0.5

# Requests that the measurement looks back on, and the limits of what is asked for ahead.
_MEASURED = 256
LEAST_AHEAD = 32 << 20
MOST_AHEAD = 512 << 20

# Held while figures of any Flow are noted or read; a fork waits for that.
_measuring = threading.Lock()
os.register_at_fork(
    before=_measuring.acquire,
    after_in_parent=_measuring.release,
    after_in_child=_measuring.release,
)


class Flow:
    """The flow of bytes from one origin, measured while it is read; for any thread."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_MEASURED)  # that requests took
        self._arrivals: deque[tuple[float, int]] = deque()  # when, how many bytes
        self._arrived_bytes = 0  # of these

    def arrived(self, begin: float, nbytes: int) -> None:
        """Note a request that was begun at a time of `time.monotonic`, and is answered now."""
        now = time.monotonic()
        with _measuring:
            self._seconds.append(now - begin)
            self._arrivals.append((now, nbytes))
            self._arrived_bytes += nbytes
            if len(self._arrivals) > _MEASURED:
                _, forgotten = self._arrivals.popleft()
                self._arrived_bytes -= forgotten

    @property
    def slow_seconds(self) -> float:
        """Seconds after which a request is slow."""
        with _measuring:
            if not self._seconds:
                return DEADLINE / 4
            return max(_SLOW * median(self._seconds), SLOW_SECONDS)

    @property
    def bytes_ahead(self) -> int:
        """Bytes to be asked for ahead of their use: twice the bandwidth-delay product."""
        with _measuring:
            if len(self._arrivals) < 2:
                return LEAST_AHEAD
            first, before = self._arrivals[0]
            last, _ = self._arrivals[-1]
            rate = (self._arrived_bytes - before) / max(last - first, 1e-3)
            product = rate * min(self._seconds)
        return int(min(max(2 * product, LEAST_AHEAD), MOST_AHEAD))


class _Request:
    """A request for a range of a file, with its deadline, made again if it is slow.

    Attributes:
        users: parts of what it fetches that somebody may wait for.
    """

    users = 0

    def __init__(self, origin: Origin, flow: Flow, path: str, first: int, stop: int):
        self._origin = origin
        self._flow = flow
        self._path = path
        self._first = first
        self._stop = stop
        self._begin = time.monotonic()
        self._futures = [self._asked()]
        self._data: Any = None
        self._lock = threading.Lock()

    def _asked(self) -> Future[Any]:
        begin = time.monotonic()
        nbytes = self._stop - self._first
        origin = self._origin
        flow = self._flow
        future = origin.begin(self._path, self._first, self._stop)

        def note(done: Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                flow.arrived(begin, nbytes)
                origin.count(Counts(requests=1, nbytes=nbytes))

        future.add_done_callback(note)
        return future

    def wait(self) -> Any:
        """The bytes. Raises as `fetched.RangeReader`."""
        with self._lock:
            if self._data is None:
                self._data = self._answer()
            return self._data

    def _answer(self) -> Any:
        name = f"{self._origin.url}/{self._path}"
        deadline = self._begin + DEADLINE
        failure: BaseException | None = None
        while self._futures:
            seconds = deadline - time.monotonic()
            may_hedge = len(self._futures) == 1 and failure is None
            if may_hedge:
                slow = self._begin + self._flow.slow_seconds - time.monotonic()
                seconds = min(seconds, slow)
            answered, _ = wait(self._futures, max(seconds, 0.0), FIRST_COMPLETED)
            if not answered:
                if time.monotonic() >= deadline:
                    self.cancel()
                    raise StoreError(
                        f"{name}: no answer to a request for {self._stop - self._first} bytes "
                        f"within {DEADLINE:.0f} s; check the network, and try again"
                    )
                if may_hedge:
                    self._futures.append(self._asked())
                continue
            future = answered.pop()
            self._futures = [other for other in self._futures if other is not future]
            try:
                data = self._origin.result(future)
            except CancelledError:
                failure = StoreError(f"{name}: a request was interrupted")
            except (EndsEarly, FileNotFoundError) as error:
                failure = FormatError(f"{name}: {_why(error)}; upload the pack again")
            except StoreError as error:
                failure = error
            except OSError as error:
                failure = StoreError(f"{name}: {error}")
            else:
                self.cancel()
                return data
        if failure is None:
            failure = StoreError(f"{name}: a request was interrupted")
        raise failure

    def release(self) -> None:
        """Note that one part of it is not waited for any more; without any, it ends."""
        self.users -= 1
        if self.users == 0:
            self.cancel()

    def cancel(self) -> None:
        """End what is still in progress."""
        for future in self._futures:
            future.cancel()
        self._futures = []


def _why(error: Exception) -> str:
    """What is wrong with a file that is missing or too short."""
    if isinstance(error, FileNotFoundError):
        return "missing"
    return "it ends before the bytes that are needed"


class _Part:
    """A part of what one or several requests fetch, see `fetched.FetchedBytes`."""

    def __init__(
        self, requests: Sequence[_Request], skipped: int, span: Span, kept: KeptRanges | None
    ):
        """
        Args:
            requests: requests for bytes that follow each other.
            skipped: bytes of them that come before the part.
            span: the part.
            kept: keeps what arrives; None: it is not kept.
        """
        self._requests = requests
        self._skipped = skipped
        self._span = span
        self._kept = kept
        for request in requests:
            request.users += 1

    def wait(self) -> Any:
        """See FetchedBytes."""
        data = self._arrived()
        if self._kept is not None and not self._kept.has(self._span):
            self._kept.keep(self._span, data)
        return data

    def _arrived(self) -> memoryview:
        stop = self._skipped + self._span.stop - self._span.first
        if len(self._requests) == 1:
            return memoryview(self._requests[0].wait())[self._skipped : stop]
        joined = bytearray()
        for request in self._requests:
            joined += memoryview(request.wait())
        return memoryview(joined)[self._skipped : stop]

    def cancel(self) -> None:
        """See FetchedBytes. To be called once."""
        for request in self._requests:
            request.release()

    def refuse(self) -> None:
        """See FetchedBytes."""
        if self._kept is not None:
            self._kept.withdraw(self._span)


class _KeptPart:
    """A span that is kept, see `fetched.FetchedBytes`."""

    def __init__(self, kept: KeptRanges, span: Span, fetch: Callable[[Span], _Part]):
        self._kept = kept
        self._span = span
        self._fetch = fetch

    def wait(self) -> Any:
        """See FetchedBytes. What cannot be read any more is fetched."""
        data = self._kept.read(self._span)
        if data is None:
            return self._fetch(self._span).wait()
        return data

    def cancel(self) -> None:
        """See FetchedBytes."""

    def refuse(self) -> None:
        """See FetchedBytes."""
        self._kept.withdraw(self._span)


class FolderRanges:
    """Reads ranges of the files of a shard, or feature shard, see `fetched.RangeReader`."""

    def __init__(
        self, origin: Origin, flow: Flow, path: str, digest: str, kept: KeptRanges | None = None
    ):
        """
        Args:
            origin: where the folder is.
            flow: measures all requests to the origin.
            path: path of the folder in the origin.
            digest: XXH3-128 of its checksum file.
            kept: what was fetched before, and keeps what is fetched; None: nothing is kept.
        """
        self._kept = kept
        self._origin = origin
        self._flow = flow
        self._path = path
        self._digest = digest

    def begin(self, spans: Sequence[Span]) -> list[_Part | _KeptPart]:
        """See RangeReader."""
        parts: list[_Part | _KeptPart | None] = [None] * len(spans)
        to_fetch = []
        for position, span in enumerate(spans):
            if self._kept is not None and self._kept.has(span):
                parts[position] = _KeptPart(self._kept, span, self._fetch)
            else:
                to_fetch.append(position)
        order = sorted(to_fetch, key=lambda position: spans[position])
        for path, positions in groupby(order, key=lambda position: spans[position].path):
            for group in _neighbours(list(positions), spans):
                first = spans[group[0]].first
                stop = max(spans[position].stop for position in group)
                requests = self._requests(path, first, stop)
                for position in group:
                    span = spans[position]
                    needed = _overlapping(requests, first, span)
                    skipped = span.first - needed[0][0]
                    parts[position] = _Part(
                        [request for _, request in needed], skipped, span, self._kept
                    )
        return [part for part in parts if part is not None]

    def _fetch(self, span: Span) -> _Part:
        """Ask for a span, whatever is kept."""
        requests = self._requests(span.path, span.first, span.stop)
        return _Part(requests, 0, span, None)

    def _requests(self, path: str, first: int, stop: int) -> list[_Request]:
        requests = []
        for begin in range(first, stop, RANGE_BYTES):
            end = min(begin + RANGE_BYTES, stop)
            requests.append(_Request(self._origin, self._flow, f"{self._path}/{path}", begin, end))
        return requests

    def check_unchanged(self) -> None:
        """See RangeReader."""
        if is_replaced(self._origin, f"{self._path}/{CHECKSUMS_NAME}", self._digest):
            raise changed(self._origin, self._path)


def _neighbours(positions: list[int], spans: Sequence[Span]) -> list[list[int]]:
    """Spans of one file in groups that are fetched together: by position, sorted by first byte."""
    groups: list[list[int]] = []
    end = 0
    for position in positions:
        span = spans[position]
        is_near = len(groups) > 0 and span.first - end <= GAP
        if is_near and span.stop - spans[groups[-1][0]].first <= RANGE_BYTES:
            groups[-1].append(position)
            end = max(end, span.stop)
        else:
            groups.append([position])
            end = span.stop
    return groups


def _overlapping(
    requests: Sequence[_Request], first: int, span: Span
) -> list[tuple[int, _Request]]:
    """The requests that have bytes of a span, each with its first byte.

    Args:
        requests: requests for ranges of RANGE_BYTES, one after the other.
        first: first byte of the first of them.
        span: the span.
    """
    needed = []
    for number, request in enumerate(requests):
        begin = first + number * RANGE_BYTES
        if begin < span.stop and begin + RANGE_BYTES > span.first:
            needed.append((begin, request))
    return needed
