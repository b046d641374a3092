"""Ceilings of memory, disk and device when nothing else is done: no loader can be faster."""

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count as count_from
from itertools import islice
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.disk.aio import REQUEST, Context
from sa1bpack.disk.direct import BLOCK, HUGE_PAGE, aligned
from sa1bpack.loading.batch.put import stream_copy
from sa1bpack.loading.chosen_device import device_here, open_device
from sa1bpack.loading.cuda import CUDA
from sa1bpack.threads import ThreadPool

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


def _in_threads(threads: int, work: Callable[[int], int]) -> tuple[float, list[int]]:
    """Seconds until `work` of each number below `threads` has ended, and what it returned."""
    with ThreadPool(threads) as pool:
        begin = time.perf_counter()
        found = list(pool.map(work, range(threads)))
        return time.perf_counter() - begin, found


def memory_ceiling(threads: int, seconds: float) -> float:
    """Bytes per second that threads copy past the processor's caches, the median of rounds."""
    stream_copy(0, 0, 0)  # compiles it, or loads what is compiled
    pairs = [(np.zeros(_COPIED, np.uint8), np.ones(_COPIED, np.uint8)) for _ in range(threads)]

    def copy(number: int) -> int:
        target, source = (array.ctypes.data for array in pairs[number])
        limit = time.perf_counter() + seconds / _ROUNDS
        for copies in count_from(1):
            stream_copy(target, source, _COPIED)
            if time.perf_counter() >= limit:
                return copies * _COPIED

    rounds = [_in_threads(threads, copy) for _ in range(_ROUNDS)]
    return statistics.median(sum(copied) / taken for taken, copied in rounds)


def device_ceiling(index: int, nbytes: int, seconds: float) -> float:
    """Bytes per second that a CUDA device gets from pinned memory, `nbytes` at a time."""
    host = device_here(open_device(f"cuda:{index}")).allocate(nbytes).pinned
    with CUDA.on(index):
        stream = CUDA.stream(index)
        there = CUDA.empty(nbytes, index)

        def copies(count: int) -> float:
            event = CUDA.event()
            begin = time.perf_counter()
            with CUDA.queuing_on(stream):
                for _ in range(count):
                    CUDA.send(host, there)
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
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
    block = BLOCK if direct else 1
    with ExitStack() as opened:
        files = {}
        for path in {path for sample in samples for path, _, _ in sample}:
            files[path] = os.open(path, flags)
            opened.callback(os.close, files[path])
        # The requests of each sample; the thread that takes it adds the addresses.
        jobs = [
            np.array(
                [_request(files[path], low, count, block) for path, low, count in sample], REQUEST
            )
            for sample in samples
        ]
        most = max(int(requests["count"].max()) for requests in jobs)
        # Every span has a place of its own: a thread's requests are in flight together.
        place = -(-most // BLOCK) * BLOCK
        # At least one huge page, so that it consists of them as buffers of a Loader do.
        nbytes = max(place * max(map(len, jobs)) * at_once, HUGE_PAGE)
        memory = [aligned(nbytes) for _ in range(threads)]
        for buffer in memory:
            buffer[:] = 0  # no page is touched for the first time later
        contexts = [opened.enter_context(closing(Context())) for _ in range(threads)]
        contexts[0].read(jobs[0][:0])  # compiles it
        waiting = iter(jobs)
        done = []
        limit = np.inf if seconds is None else time.perf_counter() + seconds

        def read(number: int) -> None:
            address = memory[number].ctypes.data
            # A step of an iterator that threads share holds the GIL.
            while time.perf_counter() <= limit and (some := list(islice(waiting, at_once))):
                requests = np.concatenate(some)
                requests["address"] = address + place * np.arange(len(requests))
                if (status := contexts[number].read(requests)).any():
                    raise OSError(f"status {status.tolist()} of {requests.tolist()}")
                done.extend(some)

        cpu = time.process_time()
        taken, _ = _in_threads(threads, read)
        nbytes = sum(int(requests["count"].sum()) for requests in done)
        return Reading(taken, time.process_time() - cpu, len(done), nbytes)


def _request(file: int, low: int, count: int, block: int) -> tuple[int, ...]:
    """A REQUEST for whole blocks around a span, without an address yet."""
    before = low % block
    needed = before + count
    return file, low - before, -(-needed // block) * block, 0, needed


def large_spans(ds: Dataset, indices: np.ndarray) -> Spans:
    """The spans of some samples of a dataset, int64 (n,). Raises FormatError as reading does."""
    layout = ds.layout
    found = []
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
            low = row * width
            high = (row + 1) * width
        sample = [(shard.path("image"), low, high - low)]
        if "mask_bits" in stored:
            width = stored["mask_bits"].row_bytes
            sample.append((shard.path("mask_bits"), begin * width, (end - begin) * width))
        found.append(sample)
    return found
