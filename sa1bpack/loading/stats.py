"""The statistics of an epoch: records of its threads, figures added up of them, and a verdict.

Each piece of work, a batch located, some of its samples copied, a batch staged or taken, is one
record in a deque of the epoch; `BusyTime` is what several of them cover. Appending takes no lock,
so threads never wait for one another here. The epoch owns the deque: what a thread of an ended
epoch still appends reaches no later epoch.
"""

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sa1bpack.disk.aio import DEPTH
from sa1bpack.urls import Counts
from sa1bpack.wording import counted, size_text

# Waiting for less than this share of the epoch is no reason to change anything.
_LITTLE = 0.05
# From this share on, a part of the loader was busy all the time, as far as figures can tell.
_BUSY = 0.7
# Seconds for a batch below which Python's part, handing it over, is most of the time.
_SHORT = 0.01

_GUIDE = "docs/tuning.md#verdicts"


@dataclass(frozen=True)
class LoadingStats:
    """The work of a loader in one epoch so far, and what the consumer waited for.

    None stands for what this loader cannot know: a DataLoader knows nothing of what happens within
    torch and its worker processes, and with verify_checksums=True it is not known where bytes come
    from.

    Attributes:
        epoch: number of the epoch.
        ended: the epoch has ended; if not, the figures are those up to now.
        batches: number of batches that the consumer took, on this rank, since the epoch began or
            was resumed.
        samples: number of samples in these batches.
        bytes: bytes of these batches: for a Loader, what it put into buffers, on a CPU with masks
            unpacked and Y'CbCr as RGB, for a device as stored; for a DataLoader, those of the
            tensors.
        dropped: number of samples that could not be read.
        seconds: time from the first request for a batch to the end of the epoch.
        waited_seconds: time, of these, that the consumer waited for batches, the first one
            included.
        first_batch_seconds: time that it waited for the first batch: threads start, and once per
            process compiled code is loaded.
        threads: number of threads of a Loader.
        locate_seconds: time of all threads together for looking up where samples are, and opening
            shards.
        read_seconds: as before, for waiting for reads past the page cache, and announcing others.
        copy_seconds: as before, for copying, and reading through the page cache; with
            verify_checksums=True, also for reading past it, and hashing.
        stage_seconds: as before, for waiting for copies to a device to end, and starting them.
        deliver_seconds: the part of `waited_seconds` in which the batch was there, and its tensors
            were made: on a CPU, relations, and floats of quantized features.
        cached_share: fraction of the bytes of images, masks and feature rows that were in the page
            cache.
        disk_bytes: number of the other bytes, which came from the disk.
        disk_seconds: time in which at least one thread read from the disk. Through the page cache,
            the copy of what was read counts as well.
        reads_in_flight: number of requests past the page cache that the disk had at once, averaged
            over `disk_seconds`; an upper bound, because requests made together count until the last
            of them is done.
        ready: number of batches that were complete when the consumer asked for one, on average.
        cache_hits: number of shards, and feature shards, that were in the cache when they were
            opened, of a pack that is read through one. These four count what this process does with
            the pack meanwhile, other readers of it included.
        cache_misses: number of shards, and feature shards, that had to be fetched.
        fetched_bytes: bytes that were fetched.
        requests: number of requests to the object store, which it may charge for.
        fetch_seconds: time that the next batch waited for its shards to be fetched or opened; of
            rows that are fetched, time that threads waited for them, divided by their number.
        pipeline_seconds: time in a `transforms.Pipeline`, or whatever the Loader has as `pipeline`:
            in the loop itself, or of `pipeline_threads` together. On CUDA it is time of the host,
            which does not wait for the device. None: no pipeline was called with these batches as
            they came.
        pipeline_threads: number of threads of a Loader that call its pipeline; None: the loop does.

    Examples:
        >>> with sa1bpack.Loader(sa1bpack.open("packed"), batch_size=2) as loader:
        ...     batches = list(loader)
        >>> stats = loader.stats()
        >>> stats.batches, stats.samples, 0 <= stats.waited_share <= 1
        (2, 3, True)
    """

    epoch: int
    ended: bool
    batches: int
    samples: int
    bytes: int
    dropped: int
    seconds: float
    waited_seconds: float
    first_batch_seconds: float
    threads: int | None = None
    locate_seconds: float | None = None
    read_seconds: float | None = None
    copy_seconds: float | None = None
    stage_seconds: float | None = None
    deliver_seconds: float | None = None
    cached_share: float | None = None
    disk_bytes: int | None = None
    disk_seconds: float | None = None
    reads_in_flight: float | None = None
    ready: float | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    fetched_bytes: int | None = None
    requests: int | None = None
    fetch_seconds: float | None = None
    pipeline_seconds: float | None = None
    pipeline_threads: int | None = None

    @property
    def waited_share(self) -> float:
        """The share of the epoch that the consumer waited, 0 to 1."""
        return min(self.waited_seconds / max(self.seconds, 1e-9), 1.0)

    @property
    def pipeline_share(self) -> float | None:
        """The share of the epoch that the loop itself spent in a pipeline, 0 to 1.

        None if no pipeline is known; or threads call it, and waiting for them is waiting for data.
        """
        if self.pipeline_seconds is None or self.pipeline_threads is not None:
            return None
        share = self.pipeline_seconds / max(self.seconds, 1e-9)
        return min(share, 1 - self.waited_share)

    @property
    def rest_share(self) -> float:
        """The share of the epoch that the loop did something else: the step of a training."""
        return 1 - self.waited_share - (self.pipeline_share or 0)

    @property
    def samples_per_second(self) -> float:
        """Samples per second of the epoch, whatever else the consumer did in it."""
        return self.samples / max(self.seconds, 1e-9)

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second of the epoch."""
        return self.bytes / max(self.seconds, 1e-9)

    @property
    def disk_bytes_per_second(self) -> float | None:
        """Bytes per second from the disk while it was read."""
        if self.disk_bytes is None or not self.disk_seconds:
            return None
        return self.disk_bytes / self.disk_seconds

    @property
    def cause(self) -> str:
        """The bottleneck of the epoch: a heading of the table of verdicts in docs/tuning.md.

        "nothing yet"  no batch was taken
        "consumer"     the epoch waited for less than 5 % of its time: the loader keeps up
        "pipeline"     the loop spent most of its time in a Pipeline, or more than it waited where
                       it waited for 5 % or more; or the threads that call the pipeline were at work
                       for 70 % of their time or more
        "first batch"  more than half of the waiting was for the first batch
        "tensors"      more than half of the waiting was to make the tensors of batches
        "network"      batches waited for what was fetched for 70 % of the epoch or more
        "disk"         the disk was read for 70 % of the epoch or more
        "threads"      the threads were at work for 70 % of their time or more, mostly copying
        "small batches"  neither, and a batch takes less than 10 ms: handing it over takes longer
                         than copying it
        "bursts"       neither: batches come in time on average, but not one by one
        "unknown"      this loader does not know
        """
        return self._diagnosis.cause

    @property
    def _diagnosis(self) -> "_Diagnosis":
        """What the epoch waited for."""
        waited = self.waited_seconds
        seconds = max(self.seconds, 1e-9)
        if not self.batches:
            return _Diagnosis("nothing yet")
        pipeline = self.pipeline_share or 0.0
        largest = max(self.waited_share, self.rest_share)
        if pipeline > largest or (self.waited_share >= _LITTLE and pipeline > self.waited_share):
            return _Diagnosis("pipeline", "the Pipeline takes the most")
        if self.waited_share < _LITTLE:
            return _Diagnosis("consumer")
        if self.first_batch_seconds > waited / 2:
            first = f"{self.first_batch_seconds:.2g} s"
            return _Diagnosis("first batch", f"most of it for the first batch, {first}")
        if (self.deliver_seconds or 0) > waited / 2:
            return _Diagnosis("tensors", "most of it while the tensors of batches were made")
        transforming = 0.0
        if self.pipeline_threads is not None:
            transforming = (self.pipeline_seconds or 0) / (self.pipeline_threads * seconds)
        if transforming >= _BUSY:
            threads = counted(self.pipeline_threads or 0, "thread")
            text = f"the pipeline's {threads} worked {percent_text(transforming)} of the time"
            return _Diagnosis("pipeline", text)
        fetching = (self.fetch_seconds or 0) / seconds
        if fetching >= _BUSY:
            rate = f"{size_text((self.fetched_bytes or 0) / seconds)}/s"
            share = percent_text(fetching)
            return _Diagnosis(
                "network", f"batches waited for what was fetched {share} of the time, {rate}"
            )
        reading = (self.disk_seconds or 0) / seconds
        if reading >= _BUSY:
            rate = f"{size_text(self.disk_bytes_per_second or 0)}/s"
            share = percent_text(reading)
            return _Diagnosis("disk", f"the disk delivers {rate}, read {share} of the time")
        if self.threads is None:
            text = "what torch and its workers waited for is not known here"
            return _Diagnosis("unknown", text)
        times = (self.locate_seconds, self.read_seconds, self.copy_seconds, self.stage_seconds)
        busy = sum(time or 0.0 for time in times) / (self.threads * seconds)
        if busy >= _BUSY:
            worked = f"{counted(self.threads, 'thread')} worked {percent_text(busy)} of the time"
            return _Diagnosis("threads", f"{worked}, mostly copying")
        per_batch = seconds / self.batches
        if per_batch < _SHORT:
            text = f"a batch takes {1e3 * per_batch:.2g} ms, mostly to hand it over"
            return _Diagnosis("small batches", text)
        return _Diagnosis("bursts", f"the threads worked only {percent_text(busy)} of the time")

    @property
    def verdict(self) -> str:
        """One sentence on what the epoch waited for, and where the remedy is."""
        diagnosis = self._diagnosis
        if diagnosis.cause == "nothing yet":
            return "no batch was taken yet"
        waited = f"{percent_text(self.waited_share)} of the epoch waited for data"
        if self.pipeline_share is not None:
            pipeline = percent_text(self.pipeline_share)
            rest = percent_text(self.rest_share)
            waited += f", {pipeline} was in the Pipeline, {rest} in the rest of the loop"
        if diagnosis.cause == "consumer":
            return f"not input-bound: {waited}"
        return f"input-bound: {waited}; {diagnosis.reason} ({_GUIDE}, {diagnosis.cause})"

    def scalars(self) -> dict[str, float]:
        """Name → number of all that is known, for TensorBoard, W&B and the like."""
        rates = (
            *("waited_share", "pipeline_share", "rest_share"),
            *("samples_per_second", "bytes_per_second", "disk_bytes_per_second"),
        )
        figures = vars(self) | {name: getattr(self, name) for name in rates}
        return {
            name: float(value)
            for name, value in figures.items()
            if value is not None and name not in ("epoch", "ended")
        }

    def __str__(self) -> str:
        """The line at the end of an epoch."""
        rate = f"{self.samples_per_second:.3g}"
        if self.samples_per_second >= 100:
            rate = f"{self.samples_per_second:,.0f}"
        so_far = "" if self.ended else " so far"
        texts = [
            f"epoch {self.epoch}{so_far}: "
            f"{counted(self.samples, 'sample')} in {self.seconds:.3g} s",
            f"{rate} samples/s",
            f"{size_text(self.bytes_per_second)}/s",
            f"waited {self.waited_seconds:.3g} s ({percent_text(self.waited_share)})",
        ]
        if self.pipeline_seconds is not None:
            texts.append(self._pipeline_text())
        if self.cached_share is not None:
            texts.append(f"{percent_text(self.cached_share)} from the page cache")
        if self.cache_misses is not None:  # and so are the other three
            texts.append(
                f"{counted(self.cache_misses, 'shard')} fetched, "
                f"{self.cache_hits:,} from the cache, "
                f"{size_text(self.fetched_bytes or 0)} in {counted(self.requests or 0, 'request')}"
            )
        if self.ready is not None:
            texts.append(f"{self.ready:.1f} batches ready")
        if self.reads_in_flight is not None:
            texts.append(f"{self.reads_in_flight:.0f} reads in flight")
        if self.dropped:
            texts.append(f"{self.dropped:,} dropped")
        return f"{', '.join(texts)}; {self.verdict}"

    def _pipeline_text(self) -> str:
        """The time in a pipeline as text."""
        seconds = f"{self.pipeline_seconds or 0:.3g} s"
        if self.pipeline_share is None:
            return f"pipeline {seconds} in {counted(self.pipeline_threads or 0, 'thread')}"
        return f"pipeline {seconds} ({percent_text(self.pipeline_share)})"


def percent_text(share: float) -> str:
    """A share as text: 0.4 %, 31 %."""
    if share < 0.095:
        return f"{100 * share:.2g} %"
    return f"{100 * share:.0f} %"


class _Diagnosis(NamedTuple):
    """What an epoch waited for.

    Attributes:
        cause: see `LoadingStats.cause`.
        reason: why the epoch waited, as text; "" if it did not.
    """

    cause: str
    reason: str = ""


class Read(NamedTuple):
    """One call that brought samples into memory.

    Attributes:
        begin, end: seconds of `time.perf_counter`.
        cached: bytes that were in the page cache.
        past: bytes that were read past it.
        through: bytes that were announced to the system, which the copy that follows reads through
            it.
        requests: number of requests that were made at once, past the page cache.
    """

    begin: float
    end: float
    cached: int
    past: int
    through: int
    requests: int


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
        self._before = 0.0
        self._horizon = float("-inf")

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans (begin, end), in seconds of one clock."""
        merged: list[Span] = []
        for begin, end in sorted([*self._spans, *spans]):
            begin = max(begin, self._horizon)
            if merged and begin <= merged[-1][1]:
                begin, last = merged.pop()
                end = max(last, end)
            if end > begin:
                merged.append((begin, end))
        if len(merged) > 2 * _KEPT:
            oldest = merged[:-_KEPT]
            merged = merged[-_KEPT:]
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

    Attributes:
        threads: number of threads of a Loader; None: only what the consumer waited for is known.
        pipeline_threads: number of its threads that call a pipeline; None: the consumer does.
        reads_known: it is known where bytes come from.
        fetch_seconds: time that batches waited for their shards, by the one thread that locates; or
            for rows, see LoadingStats.
    """

    def __init__(self, epoch: int, begun: float, clock: Callable[[], float] = time.perf_counter):
        """
        Args:
            epoch: number of the epoch.
            begun: when the consumer asked for the first batch, in seconds of the clock.
            clock: returns seconds.
        """
        self.clock = clock
        self._epoch = epoch
        self.pid = os.getpid()
        self._begun = begun
        self._last = begun  # the end of the last wait, or of the pipeline after it
        self._ended: float | None = None
        # (kind, begin, end, reads), and of a wait what `took` is given: plain tuples, as making a
        # named one takes five times as long.
        self._records: deque[tuple[Any, ...]] = deque()
        self._lock = threading.RLock()  # of what follows
        # Seconds by kind of work, and what else is counted.
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._first = 0.0
        self._disk = BusyTime()
        self.threads: int | None = None
        self.pipeline_threads: int | None = None
        self.reads_known = False
        self.fetch_seconds = 0.0
        self._fetched: Callable[[], Counts] | None = None  # what was fetched so far

    def count_store(self, counts: Callable[[], Counts | None]) -> None:
        """Count what is fetched from now on; nothing if `counts` returns None."""
        before = counts()
        if before is None:
            return

        def since_then() -> Counts:
            now = counts()
            assert now is not None, "a pack with sources of shards stays one"
            return now - before

        self._fetched = since_then

    def worked(self, kind: str, begin: float, reads: Sequence[Read] = ()) -> None:
        """Note a piece of work that ends now.

        Args:
            kind: "locate", "copy", "stage", "deliver", which is a part of a wait, or "pipeline".
            begin: start of the work, in seconds of the clock.
            reads: for a copy, what was read in it.
        """
        end = self.clock()
        self._records.append((kind, begin, end, reads))
        if kind == "pipeline" and self.pipeline_threads is None:
            self._last = end  # of a loop that is left after this batch

    def took(
        self, begin: float, samples: int, nbytes: int, dropped: int, ready: int | None
    ) -> None:
        """Note that the consumer has a batch now, for which it has waited since `begin`.

        Args:
            samples: number of samples; 0 if none of the batch remained.
            nbytes: bytes of the batch.
            dropped: number of samples that were dropped.
            ready: number of batches that were complete when it was asked for; None if that is not
                known.
        """
        end = self.clock()
        self._last = end
        self._records.append(("wait", begin, end, (), samples, nbytes, dropped, ready))
        if len(self._records) >= _TOGETHER:
            self.add_up()

    def end(self, left: bool = False) -> None:
        """Note that the epoch has ended, unless that was noted before.

        Args:
            left: the loop over it was left after the batch that was taken last. Finalizers note
                that, in the middle of anything, so it waits for no lock.
        """
        if self._ended is None:
            if left:
                self._ended = self._last
            else:
                self._ended = self.clock()

    def add_up(self) -> None:
        """Add up all records so far."""
        with self._lock:
            sums = self._sums
            busy = []
            while self._records:
                kind, begin, end, reads, *batch = self._records.popleft()
                sums[kind] += end - begin
                following = end
                for read in reversed(reads):
                    seconds = read.end - read.begin
                    sums[kind] -= seconds
                    sums["read"] += seconds
                    sums["cached"] += read.cached
                    sums["from disk"] += read.past + read.through
                    if read.past:
                        sums["in flight"] += min(read.requests, DEPTH) * seconds
                        busy.append((read.begin, read.end))
                    if read.through:  # it is the copy after this call that waits for the disk
                        busy.append((read.begin, following))
                    following = read.begin
                if batch:
                    if not sums["batches"]:
                        self._first = end - self._begun
                    samples, nbytes, dropped, ready = batch
                    sums["batches"] += 1
                    sums["samples"] += samples
                    sums["bytes"] += nbytes
                    sums["dropped"] += dropped
                    if ready is not None:
                        sums["asked"] += 1
                        sums["ready"] += ready
            self._disk.add(busy)

    def stats(self) -> LoadingStats:
        """The figures so far."""
        with self._lock:
            self.add_up()
            sums = self._sums
            now = self.clock() if self._ended is None else self._ended
            stats = LoadingStats(
                epoch=self._epoch,
                ended=self._ended is not None,
                batches=int(sums["batches"]),
                samples=int(sums["samples"]),
                bytes=int(sums["bytes"]),
                dropped=int(sums["dropped"]),
                seconds=now - self._begun,
                waited_seconds=sums["wait"],
                first_batch_seconds=self._first,
                threads=self.threads,
                pipeline_threads=self.pipeline_threads,
            )
            if sums["pipeline"] or self.pipeline_threads is not None:
                stats = replace(stats, pipeline_seconds=sums["pipeline"])
            if self.threads is not None:
                stats = replace(
                    stats,
                    locate_seconds=sums["locate"],
                    copy_seconds=sums["copy"],
                    stage_seconds=sums["stage"],
                    deliver_seconds=sums["deliver"],
                )
            if self.reads_known:
                stats = self._with_reads(stats)
            if self._fetched is not None:
                store = self._fetched()
                stats = replace(
                    stats,
                    cache_hits=store.hits,
                    cache_misses=store.misses,
                    fetched_bytes=store.nbytes,
                    requests=store.requests,
                    fetch_seconds=self.fetch_seconds,
                )
            if sums["asked"]:
                stats = replace(stats, ready=sums["ready"] / sums["asked"])
            return stats

    def _with_reads(self, stats: LoadingStats) -> LoadingStats:
        """With the figures of what was read, where it is known where bytes come from."""
        sums = self._sums
        disk_seconds = self._disk.seconds
        needed = sums["cached"] + sums["from disk"]
        stats = replace(
            stats,
            read_seconds=sums["read"],
            disk_bytes=int(sums["from disk"]),
            disk_seconds=disk_seconds,
        )
        if needed:
            stats = replace(stats, cached_share=sums["cached"] / needed)
        if sums["in flight"]:
            stats = replace(stats, reads_in_flight=sums["in flight"] / disk_seconds)
        return stats
