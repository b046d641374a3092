"""Ceilings of memory, disk and device when nothing else is done: no loader can be faster."""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.disk.aio import REQUEST_COLUMNS, Context
from sa1bpack.disk.direct import BLOCK, HUGE_PAGE, aligned
from sa1bpack.loading.batch.put import stream_copy
from sa1bpack.loading.cuda_runtime import CUDA

# Of every sample: (file, first byte, number of bytes) of its pixels, and of its mask bits if the
# pack stores them.
Spans = list[list[tuple[str, int, int]]]

_COPIED = 32 << 20  # bytes that each thread copies at once: more than the processor's caches hold
_ROUNDS = 3
_AT_ONCE = 8  # samples that a thread requests together


class Reading(NamedTuple):
    """Cost of reading: seconds, CPU seconds of all threads, samples, bytes asked for."""

    seconds: float
    cpu: float
    samples: int
    nbytes: int


def _in_threads(works: list[Callable[[], None]]) -> float:
    """Seconds until all have ended. Raises the first error."""
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - begin
    if errors:
        raise errors[0]
    return taken


def memory_ceiling(threads: int, seconds: float) -> float:
    """Bytes per second that threads copy past the processor's caches, the median of three turns."""
    stream_copy(0, 0, 0)  # compiles it, or loads what is compiled
    pairs = [(np.zeros(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)) for _ in range(threads)]
    found = []
    for _ in range(_ROUNDS):
        copied = [0] * threads
        limit = time.perf_counter() + seconds / _ROUNDS

        def copy(number: int, copied: list[int] = copied, limit: float = limit) -> None:
            target, source = (array.ctypes.data for array in pairs[number])
            while not copied[number] or time.perf_counter() < limit:
                stream_copy(target, source, _COPIED)
                copied[number] += _COPIED

        taken = _in_threads([lambda number=n: copy(number) for n in range(threads)])
        found.append(sum(copied) / taken)
    return statistics.median(found)


def device_ceiling(index: int, nbytes: int, seconds: float) -> float:
    """Bytes per second that a CUDA device gets from pinned memory, `nbytes` at a time."""
    with CUDA.on(index):
        stream = CUDA.stream(index)
        host, there = CUDA.pinned(nbytes), CUDA.empty(nbytes, index)

        def copies(count: int) -> float:
            event = CUDA.event()
            begin = time.perf_counter()
            with CUDA.queuing_on(stream):
                for _ in range(count):
                    CUDA.send(host, there)
                event.record(stream)
            while not event.query():
                time.sleep(20e-6)
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
    kept: int = _AT_ONCE,
    seconds: float | None = None,
) -> Reading:
    """Read samples in this order into reused buffers, and do nothing else with them.

    threads  that read
    direct   with O_DIRECT, past the page cache
    at_once  samples that a thread requests together with Linux AIO; 1: one by one with `preadv`
    kept     samples per thread that are in memory before the first of them is overwritten, rounded
             up to a multiple of `at_once`; a few fit in the processor's cache
    seconds  begin nothing more after this time; None: read all

    Raises OSError, also for a file that ends before a sample does.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    block = BLOCK if direct else 1
    files = {path: os.open(path, flags) for path in {p for one in samples for p, _, _ in one}}
    try:
        jobs = [
            [
                (files[path], low // block * block, -(-(low + count) // block) * block, low + count)
                for path, low, count in sample
            ]
            for sample in samples
        ]
        most = max(stop - start for job in jobs for _, start, stop, _ in job)
        # Every span has a place of its own: a thread's requests are in flight together.
        place = -(-most // BLOCK) * BLOCK
        places = max(map(len, jobs)) * at_once
        turns, used = -(-kept // at_once), place * places
        # At least one huge page, so that it consists of them as buffers of a Loader do.
        memory = [aligned(max(turns * used, HUGE_PAGE)) for _ in range(threads)]
        for buffer in memory:
            buffer[:] = 0  # no page is touched for the first time later
        areas = [cycle(np.split(buffer[: turns * used], turns)) for buffer in memory]
        if at_once > 1:
            ready = Context()  # compiles, or loads what is compiled
            ready.read(np.empty((0, REQUEST_COLUMNS), np.int64))
            ready.close()
        done: list[int] = []  # bytes of each sample
        waiting = _Until(iter(jobs), seconds)
        read = _read_one_by_one if at_once == 1 else _read_at_once
        cpu = time.process_time()
        works = [lambda each=each: read(waiting, each, place, at_once, done) for each in areas]
        taken = _in_threads(works)
        return Reading(taken, time.process_time() - cpu, len(done), sum(done))
    finally:
        for file in files.values():
            os.close(file)


class _Until:
    """The items of an iterator, until `seconds` have passed; threads may share it."""

    def __init__(self, items: Iterator, seconds: float | None):
        self._items = items
        self._limit = None if seconds is None else time.perf_counter() + seconds

    def __iter__(self) -> Iterator:
        return self

    def __next__(self) -> Any:
        if self._limit is not None and time.perf_counter() > self._limit:
            raise StopIteration
        return next(self._items)  # one step: it holds the GIL


def _read_one_by_one(jobs: Iterator, areas: Iterator, place: int, at_once: int, done) -> None:
    for job, area in zip(jobs, areas, strict=False):
        view = memoryview(area)
        for number, (file, start, stop, needed) in enumerate(job):
            got = os.preadv(file, [view[number * place :][: stop - start]], start)
            if start + got < needed:
                raise OSError(f"{got} bytes at {start}, expected {stop - start}")
        done.append(sum(stop - start for _, start, stop, _ in job))


def _read_at_once(jobs: Iterator, areas: Iterator, place: int, at_once: int, done) -> None:
    context = Context()
    try:
        while some := list(islice(jobs, at_once)):
            base = next(areas).ctypes.data
            asked = [span for job in some for span in job]
            requests = [
                (file, start, stop - start, base + number * place, needed - start)
                for number, (file, start, stop, needed) in enumerate(asked)
            ]
            if (status := context.read(np.array(requests, np.int64))).any():
                raise OSError(f"status {status.tolist()} of {requests}")
            done.extend(sum(stop - start for _, start, stop, _ in job) for job in some)
    finally:
        context.close()


def large_spans(ds: Dataset, indices: np.ndarray) -> Spans:
    """The spans of some samples of a dataset, int64 (n,). Raises FormatError as reading does."""
    layout, found = ds.layout, []
    stored = {spec.name: spec for spec in layout.arrays}
    numbers, local, first, stop = (array.tolist() for array in ds.locate_many(indices))
    shards, failed = ds.shards.open_many(numbers)
    if failed:
        raise next(iter(failed.values()))
    for number, row, begin, end in zip(numbers, local, first, stop, strict=True):
        shard = shards[number]
        if layout.flat:
            low, high = shard.arrays["image_offset"][row : row + 2].tolist()
        else:
            width = stored["image"].row_bytes
            low, high = row * width, (row + 1) * width
        sample = [(shard.path("image"), low, high - low)]
        if "mask_bits" in stored:
            width = stored["mask_bits"].row_bytes
            sample.append((shard.path("mask_bits"), begin * width, (end - begin) * width))
        found.append(sample)
    return found
