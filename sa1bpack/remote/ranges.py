"""Ranges of files in an origin: spans that lie next to each other are one request.

A `FolderRanges` reads the files of one shard. Spans that lie next to each other become one request,
and a long one becomes several. A `Flow` sends them, see there.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from sa1bpack.format.fetched import Span
from sa1bpack.format.file_checksums import CHECKSUMS_NAME
from sa1bpack.remote.flow import Flow, Request
from sa1bpack.remote.kept_ranges import KeptRanges
from sa1bpack.remote.origin import RANGE_BYTES, Origin, changed, is_replaced

# Spans of a file that are closer than this are one request: a request costs more than these bytes.
GAP = 1 << 14


class _Part:
    """A part of what one or several requests fetch, see `fetched.FetchedBytes`."""

    def __init__(
        self, requests: Sequence[Request], skipped: int, span: Span, kept: KeptRanges | None
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

    def send(self) -> None:
        """See FetchedBytes."""
        for request in self._requests:
            request.queue()

    @property
    def is_here(self) -> bool:
        """See FetchedBytes."""
        return all(request.is_settled for request in self._requests)

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

    def send(self) -> None:
        """See FetchedBytes."""

    @property
    def is_here(self) -> bool:
        """See FetchedBytes."""
        return True

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

    def prepare(self, spans: Sequence[Span]) -> list[_Part | _KeptPart]:
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

    def _requests(self, path: str, first: int, stop: int) -> list[Request]:
        requests = []
        for begin in range(first, stop, RANGE_BYTES):
            end = min(begin + RANGE_BYTES, stop)
            requests.append(Request(self._origin, self._flow, f"{self._path}/{path}", begin, end))
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


def _overlapping(requests: Sequence[Request], first: int, span: Span) -> list[tuple[int, Request]]:
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
