"""Counting of one epoch: threads leave records of their work, and the consumer adds them up.

Each piece of work, a batch planned, some of its samples copied, a batch staged or taken, is one
record in a deque of the epoch; `BusyTime` is what several of them cover. Appending takes no lock,
so threads never wait for one another here. The epoch owns the deque: what a thread of an ended
epoch still appends reaches no later epoch.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from sa1bpack.disk.aio import DEPTH
from sa1bpack.loading.sample_reader import Read
from sa1bpack.loading.stats import LoadingStats
from sa1bpack.urls import Counts

# The latest spans that are kept one by one; those before them are a sum.
_KEPT = 256

Span = tuple[float, float]


class BusyTime:
    """The seconds that at least one of many spans of time covers.

    Spans may come in any order. Memory is bounded: the oldest spans become a sum, and one that
    reaches back to their time counts from their end only.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []  # ascending, without overlap
        self._before, self._horizon = 0.0, float("-inf")

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans (begin, end), in seconds of one clock."""
        later = ((max(begin, self._horizon), end) for begin, end in spans if end > self._horizon)
        merged: list[Span] = []
        for begin, end in sorted([*self._spans, *later]):
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((begin, end))
        if len(merged) > 2 * _KEPT:
            oldest, merged = merged[:-_KEPT], merged[-_KEPT:]
            self._before += sum(end - begin for begin, end in oldest)
            self._horizon = oldest[-1][1]
        self._spans = merged

    @property
    def seconds(self) -> float:
        """The seconds that the spans cover."""
        return self._before + sum(end - begin for begin, end in self._spans)


# Records that are added up together, while the epoch runs.
_TOGETHER = 512


class EpochCounts:
    """The counts of one epoch of a loader.

    Threads call `worked` and the consumer calls `took`; `stats` may be called by any thread.
    """

    def __init__(self, epoch: int, begun: float, clock: Callable[[], float] = time.perf_counter):
        """`begun`: when the consumer asked for the first batch, by the clock."""
        self.clock, self._begun = clock, begun
        self._epoch, self._pid = epoch, os.getpid()
        self._ended: float | None = None
        # (kind, begin, end, reads), and of a wait what `took` is given: plain tuples, as making a
        # named one takes five times as long.
        self._records: deque[tuple] = deque()
        self._lock = threading.RLock()  # of what follows
        self._seconds = dict.fromkeys(("plan", "read", "copy", "stage", "wait", "deliver"), 0.0)
        self._disk, self._in_flight = BusyTime(), 0.0
        self._cached = self._past = self._through = 0
        self._batches = self._samples = self._bytes = self._dropped = 0
        self._ready = [0, 0]  # requests for a batch, and the sum of what was ready then
        self._first, self._last = 0.0, self._begun  # seconds; the end of the last wait
        # What only some loaders know.
        self.threads: int | None = None
        self.reads_known = False
        self.fetch_seconds = 0.0  # by the one thread that plans
        self._store: Callable[[], Counts | None] = _nothing
        self._store_before = self._store_found = None

    def count_store(self, counts: Callable[[], Counts | None]) -> None:
        """From now on, count what is fetched; None if nothing is."""
        self._store, self._store_before = counts, counts()

    def _read_store(self) -> Counts | None:
        """What was fetched so far, or until the epoch ended."""
        found = self._store()
        if found is None or (self._ended is not None and self._store_found is not None):
            return self._store_found
        self._store_found = found - self._store_before
        return self._store_found

    @property
    def here(self) -> bool:
        """Whether the epoch belongs to this process."""
        return self._pid == os.getpid()

    def worked(self, kind: str, begin: float, reads: Sequence[Read] = ()) -> None:
        """Note a piece of work that ends now.

        kind   "plan", "copy", "stage", or "deliver", which is a part of a wait
        begin  seconds of the clock
        reads  of a copy: parts of its time
        """
        self._records.append((kind, begin, self.clock(), reads))

    def took(
        self, begin: float, samples: int, nbytes: int, dropped: int, ready: int | None
    ) -> None:
        """Note that the consumer has a batch now, for which it has waited since `begin`.

        samples  0 if none of the batch remained
        nbytes   bytes of the batch
        ready    batches that were complete when it asked; None if that is not known
        """
        self._last = end = self.clock()
        self._records.append(("wait", begin, end, (), samples, nbytes, dropped, ready))
        if len(self._records) >= _TOGETHER:
            self.add_up()

    def end(self) -> None:
        """The epoch has ended, unless it had before."""
        if self._ended is None:
            self._ended = self.clock()
            self._read_store()
        self.add_up()

    def leave(self) -> None:
        """The loop over the epoch was left after the batch that was taken last.

        Finalizers call it, in the middle of anything, so it waits for no lock.
        """
        if self._ended is None:
            self._ended = self._last

    def add_up(self) -> None:
        """Add up all records so far."""
        with self._lock:
            records = []
            while self._records:
                records.append(self._records.popleft())
            self._add(records)

    def _add(self, records: list[tuple]) -> None:
        busy: list[tuple[float, float]] = []
        seconds = self._seconds
        for record in records:
            kind, begin, end, reads = record[:4]
            seconds[kind] += end - begin
            if reads:
                reading = self._add_reads(reads, end, busy)
                seconds["read"] += reading
                seconds[kind] -= reading
            elif kind == "wait":
                self._add_batch(end, *record[4:])
        if busy:
            self._disk.add(busy)

    def _add_reads(
        self, reads: Sequence[Read], following: float, busy: list[tuple[float, float]]
    ) -> float:
        """Add what was read; the seconds of reading.

        following  the end of the copy after the last read
        """
        reading = 0.0
        for begin, end, cached, past, through, requests in reversed(reads):
            reading += end - begin
            self._cached += cached
            self._past += past
            self._through += through
            if past:
                self._in_flight += min(requests, DEPTH) * (end - begin)
                busy.append((begin, end))
            if through:  # it is the copy after this call that waits for the disk
                busy.append((begin, following))
            following = begin
        return reading

    def _add_batch(
        self, end: float, samples: int, nbytes: int, dropped: int, ready: int | None
    ) -> None:
        if not self._batches:
            self._first = end - self._begun
        self._batches += 1
        self._samples += samples
        self._bytes += nbytes
        self._dropped += dropped
        if ready is not None:
            self._ready[0] += 1
            self._ready[1] += ready

    def stats(self) -> LoadingStats:
        """The figures so far."""
        with self._lock:
            self.add_up()
            asked, ready = self._ready
            now = self.clock() if self._ended is None else self._ended
            needed = self._cached + self._past + self._through
            disk = self._disk.seconds if self.reads_known else None
            known = self.threads is not None
            store = self._read_store()
            return LoadingStats(
                epoch=self._epoch,
                ended=self._ended is not None,
                batches=self._batches,
                samples=self._samples,
                bytes=self._bytes,
                dropped=self._dropped,
                seconds=now - self._begun,
                waited_seconds=self._seconds["wait"],
                first_batch_seconds=self._first,
                threads=self.threads,
                plan_seconds=self._seconds["plan"] if known else None,
                read_seconds=self._seconds["read"] if self.reads_known else None,
                copy_seconds=self._seconds["copy"] if known else None,
                stage_seconds=self._seconds["stage"] if known else None,
                deliver_seconds=self._seconds["deliver"] if known else None,
                cached_share=self._cached / needed if self.reads_known and needed else None,
                disk_bytes=self._past + self._through if self.reads_known else None,
                disk_seconds=disk,
                reads_in_flight=self._in_flight / disk if disk and self._past else None,
                ready=ready / asked if asked else None,
                cache_hits=None if store is None else store.hits,
                cache_misses=None if store is None else store.misses,
                fetched_bytes=None if store is None else store.nbytes,
                requests=None if store is None else store.requests,
                fetch_seconds=None if store is None else self.fetch_seconds,
            )


def _nothing() -> None:
    """What a loader fetches that reads from this machine."""
