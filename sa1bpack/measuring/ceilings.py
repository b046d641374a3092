"""Ceilings of memory, disk and device when nothing else is done: no loader can be faster."""

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from sa1bpack.dataset.chosen import ChosenFields
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.shards import ComingSample
from sa1bpack.disk.aio import REQUEST, Context
from sa1bpack.disk.direct import BLOCK, HUGE_PAGE, aligned
from sa1bpack.loading.batch.put import stream_copy
from sa1bpack.loading.cuda import CUDA
from sa1bpack.loading.devices import device_here, open_device
from sa1bpack.threads import ThreadPool

# Of every sample: (file, first byte, number of bytes) of its pixels, and of its mask bits if the
# pack stores them.
Spans = list[list[tuple[str, int, int]]]

_COPIED = 32 << 20  # bytes that each thread copies at once: more than the processor's caches hold
_ROUNDS = 3
_AT_ONCE = 8  # samples that a thread requests together
_ASKED_TOGETHER = 8  # samples of a pack at a URL

_Result = TypeVar("_Result")


class Reading(NamedTuple):
    """Cost of reading: seconds, CPU seconds of all threads, samples, bytes asked for."""

    seconds: float
    cpu: float
    samples: int
    nbytes: int


def _in_threads(threads: int, work: Callable[[int], _Result]) -> tuple[float, list[_Result]]:
    """Seconds until `work` of each number below `threads` has ended, and what it returned."""
    with ThreadPool(threads) as pool:
        begin = time.perf_counter()
        results = list(pool.map(work, range(threads)))
        return time.perf_counter() - begin, results


def memory_ceiling(threads: int, seconds: float) -> float:
    """Bytes per second that threads copy past the processor's caches, the median of rounds."""
    stream_copy(0, 0, 0)  # compiles it, or loads what is compiled
    pairs = [(np.zeros(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)) for _ in range(threads)]

    def copy(number: int) -> int:
        target, source = (array.ctypes.data for array in pairs[number])
        limit = time.perf_counter() + seconds / _ROUNDS
        nbytes = 0
        while nbytes == 0 or time.perf_counter() < limit:
            stream_copy(target, source, _COPIED)
            nbytes += _COPIED
        return nbytes

    rounds = [_in_threads(threads, copy) for _ in range(_ROUNDS)]
    return statistics.median(sum(nbytes) / elapsed for elapsed, nbytes in rounds)


def device_ceiling(index: int, nbytes: int, seconds: float) -> float:
    """Bytes per second that a CUDA device gets from pinned memory, `nbytes` at a time."""
    pinned = device_here(open_device(f"cuda:{index}")).allocate(nbytes).pinned
    assert pinned is not None, "buffers of a CUDA device are pinned"
    with CUDA.on(index):
        stream = CUDA.stream(index)
        target = CUDA.empty(nbytes, index)

        def copies(count: int) -> float:
            event = CUDA.event()
            begin = time.perf_counter()
            with CUDA.queuing_on(stream):
                for _ in range(count):
                    CUDA.send(pinned, target)
                event.record(stream)
            event.synchronize()
            return time.perf_counter() - begin

        copies(2)
        count = max(3, int(seconds / _ROUNDS / max(copies(1), 1e-6)))
        return statistics.median(count * nbytes / copies(count) for _ in range(_ROUNDS))


def read_spans(
    samples: Spans,
    threads: int,
    *,
    direct: bool = True,
    at_once: int = _AT_ONCE,
    seconds: float | None = None,
) -> Reading:
    """Read samples in this order into reused buffers by Linux AIO, and do nothing else with them.

    Args:
        samples: places of the samples in files, in order.
        threads: number of threads that read.
        direct: read with O_DIRECT, past the page cache.
        at_once: samples that a thread requests together.
        seconds: begin nothing more after this time; None: read all.

    Raises:
        OSError: a file cannot be read, or ends before a sample does.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    block = 1
    if direct:
        flags |= os.O_DIRECT
        block = BLOCK
    with ExitStack() as resources:
        files = {}
        for path in {path for sample in samples for path, _, _ in sample}:
            files[path] = os.open(path, flags)
            resources.callback(os.close, files[path])
        # The requests of each sample; the thread that takes it adds the addresses.
        jobs = []
        for sample in samples:
            jobs.append(
                np.array(
                    [_request(files[path], begin, count, block) for path, begin, count in sample],
                    REQUEST,
                )
            )
        readers = []
        for _ in range(threads):
            context = resources.enter_context(closing(Context()))
            readers.append(_SpanReader(jobs, at_once, context))
        unread = iter(jobs)
        limit = np.inf
        if seconds is not None:
            limit = time.perf_counter() + seconds

        def read(number: int) -> None:
            while time.perf_counter() <= limit:
                # A step of an iterator that threads share holds the GIL.
                together = list(islice(unread, at_once))
                if not together:
                    break
                readers[number].read(together)

        cpu = time.process_time()
        elapsed, _ = _in_threads(threads, read)
        return Reading(
            seconds=elapsed,
            cpu=time.process_time() - cpu,
            samples=sum(reader.samples for reader in readers),
            nbytes=sum(reader.nbytes for reader in readers),
        )


class _SpanReader:
    """Reads spans into memory of one thread.

    Attributes:
        samples: samples that it has read.
        nbytes: bytes that it asked for.
    """

    def __init__(self, jobs: Sequence[np.ndarray], at_once: int, context: Context):
        """
        Args:
            jobs: the requests of each sample.
            at_once: samples that are requested together.
            context: of the thread.
        """
        self.samples = 0
        self.nbytes = 0
        self._context = context
        # Every span has a slot of its own: a thread's requests are in flight together.
        most = max(int(requests["count"].max()) for requests in jobs)
        self._slot_bytes = -(-most // BLOCK) * BLOCK
        slots = max(map(len, jobs)) * at_once
        # At least one huge page, so that it consists of them as buffers of a Loader do.
        self._memory = aligned(max(self._slot_bytes * slots, HUGE_PAGE))
        self._memory[:] = 0  # no page is touched for the first time later
        context.read(jobs[0][:0])  # compiles it

    def read(self, jobs: Sequence[np.ndarray]) -> None:
        """Read the requests of some samples at once. Raises OSError."""
        requests = np.concatenate(jobs)
        self.samples += len(jobs)
        self.nbytes += int(requests["count"].sum())
        slots = np.arange(len(requests))
        requests["address"] = self._memory.ctypes.data + self._slot_bytes * slots
        status = self._context.read(requests)
        if status.any():
            raise OSError(f"status {status.tolist()} of {requests.tolist()}")


def _request(file: int, begin: int, count: int, block: int) -> tuple[int, ...]:
    """A request for whole blocks around a span, without an address yet."""
    before = begin % block
    needed = before + count
    return file, begin - before, -(-needed // block) * block, 0, needed


def fetch_samples(
    ds: Dataset, indices: np.ndarray, seconds: float, *, with_masks: bool = True
) -> tuple[Reading, int]:
    """Fetch samples of a pack at a URL in this order, and do nothing else with them.

    As many bytes are in flight as a Loader has. Also the bytes of masks among those that arrived.

    Args:
        ds: the dataset.
        indices: int64 (n,), the samples.
        seconds: wait for nothing more after this time.
        with_masks: masks are fetched, not only images.

    Raises:
        StoreError: the pack cannot be fetched.
        FormatError: a shard is damaged.
    """
    chosen = ChosenFields.of(None if with_masks else ("images",), ds.layout, (), masks_key="masks")
    [source, *_] = ds.pack.sources
    rows = iter(ds.rows_at(indices).tolist())
    coming: deque[ComingSample] = deque()
    samples = 0
    nbytes = 0
    of_masks = 0
    begin = time.perf_counter()
    cpu = time.process_time()
    try:
        while time.perf_counter() - begin < seconds:
            while sum(sample.nbytes for sample in coming) < source.window:
                some = [ds.pack.locate(row) for row in islice(rows, _ASKED_TOGETHER)]
                if not some:
                    break
                for _, shard, asked in ds.pack.begin(some, chosen):
                    if isinstance(shard, Exception):
                        raise shard
                    if asked is not None:
                        coming.append(asked)
            if not coming:
                break
            sample = coming.popleft()
            for name, array in sample.arrays.items():
                array.rows()
                of_masks += array.nbytes * (name != "image")
            samples += 1
            nbytes += sample.nbytes
    finally:
        for sample in coming:
            sample.cancel()
    elapsed = time.perf_counter() - begin
    return Reading(elapsed, time.process_time() - cpu, samples, nbytes), of_masks


def large_spans(ds: Dataset, indices: np.ndarray, *, with_masks: bool = True) -> Spans:
    """The spans of some samples of a dataset, int64 (n,): its image, then its bits or its runs.

    Raises FormatError as reading does.
    """
    layout = ds.layout
    reads_bits = ds.spec.masks.source == "bits"
    spans = []
    arrays = {spec.name: spec for spec in layout.arrays}
    numbers, local, first, stop = (array.tolist() for array in ds.locate_many(indices))
    shards, failed = ds.shards.open_many(numbers)
    if failed:
        raise next(iter(failed.values()))
    for number, row, first_mask, mask_stop in zip(numbers, local, first, stop, strict=True):
        shard = shards[number]
        row_bytes = arrays["image"].row_bytes
        begin = row * row_bytes
        end = begin + row_bytes
        if layout.flat:
            begin, end = shard.arrays["image_offset"][row : row + 2].tolist()
        sample = [(shard.path("image"), begin, end - begin)]
        if with_masks and reads_bits:
            row_bytes = arrays["mask_bits"].row_bytes
            nbytes = (mask_stop - first_mask) * row_bytes
            sample.append((shard.path("mask_bits"), first_mask * row_bytes, nbytes))
        elif with_masks:
            row_bytes = arrays["run_ends"].row_bytes
            offsets = shard.arrays["run_offset"]
            begin = int(offsets[first_mask]) * row_bytes
            end = int(offsets[mask_stop]) * row_bytes
            sample.append((shard.path("run_ends"), begin, end - begin))
        spans.append(sample)
    return spans
