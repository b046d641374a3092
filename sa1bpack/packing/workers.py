"""Worker processes that make samples, the memory that they share, and the threads that serve them.

They make the same samples by the same `attempt` as a run without workers does, so they produce the
same bytes. A pair keeps its slot of the memory until the rows made of it are written. Slots and
workers are given to the pairs of a source in their order: the oldest pair of every source can
always proceed, whatever waits after it, so there is no deadlock.

A worker runs as `python -m sa1bpack.packing.workers SOCKET MEMORY COUNT`, the first two inherited
descriptors. A fresh interpreter rather than a fork: the parent has threads, and a fork copies their
locks. SIGINT and SIGTERM are blocked in it: terminals and job schedulers send them to every process
of a run, and only the parent handles them.

Messages to a worker: first the PackOptions, then (slot, jpeg bytes, json bytes, file name) for each
job. From it: one message when it takes work, then an Outcome, or an error that ends the run, for
each job in turn. The rows of a Packed are in the slot, not in the message. The worker ends with the
socket.
"""

import mmap
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Lock

import numpy as np

from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import MissingPackage, PackError
from sa1bpack.format.layout import AxisLengths, Layout
from sa1bpack.interrupts import SIGNALS
from sa1bpack.packing.decoder import Decoded, Promises
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.runs import MAX_RUNS
from sa1bpack.packing.sample import (
    MAX_BITS,
    Buffers,
    Outcome,
    Packed,
    attempt,
    most_image_bytes,
    warm_up,
)
from sa1bpack.paths import naming
from sa1bpack.source.annotations import MAX_ANNOTATIONS
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import MAX_JPEG_BYTES, MAX_JSON_BYTES, Pair, Reject
from sa1bpack.source.records.table import SA1B
from sa1bpack.threads import naming_refusal

# Memory is allocated a page at a time, when it is first written. What a slot holds beyond this
# (more than any pair of SA-1B needs) is returned.
KEPT_BYTES = 8 << 20
# The largest pair that a source lets through.
PAIR_BYTES = MAX_JPEG_BYTES + MAX_JSON_BYTES
# Offsets in a slot are rounded to this: for direct writes, and for memory that is returned.
PAGE = max(BLOCK, mmap.PAGESIZE)
# An annotation with all of its keys is longer, so JSON of n bytes has fewer than n / 100 masks; and
# every run of a mask takes at least one character.
LEAST_ANNOTATION_BYTES = 100

# Jobs that a worker holds: the one being decoded and the next.
JOBS_PER_WORKER = 2
# Slots beyond those of the workers' jobs, per worker and per thread that reads: rows that wait for
# an earlier pair or for the disk, and pairs that are read ahead.
SLOTS_AHEAD = 1
READ_AHEAD = 2

# A sample that this many workers crashed on is rejected.
MAX_DEATHS = 3


class SharedSlots:
    """Slots of shared memory, each with a pair at its start and the rows made of it after that.

    They lie in an unnamed file, which the kernel frees with the last process, however that ends.
    """

    def __init__(self, count: int, options: PackOptions, descriptor: int | None = None):
        """Make the slots, or map those that another process made: the file at `descriptor`."""
        self.count = count
        self._options = options
        self._layout = options.layout
        self._slot_bytes = PAIR_BYTES + self._most_row_bytes(MAX_JSON_BYTES)
        with naming(f"address space for {count} pairs at once"):
            if descriptor is None:
                descriptor = os.memfd_create("sa1bpack", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, count * self._slot_bytes)
            self._map = mmap.mmap(descriptor, count * self._slot_bytes)
        self.descriptor = descriptor
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._lengths = [(0, 0)] * count

    def put(self, slot: int, jpeg: bytes, json: bytes) -> None:
        """Copy a pair into a slot."""
        self._lengths[slot] = len(jpeg), len(json)
        jpeg_area, json_area = self.pair(slot, len(jpeg), len(json))
        jpeg_area[:] = jpeg
        json_area[:] = json

    def pair(self, slot: int, jpeg_bytes: int, json_bytes: int) -> tuple[memoryview, memoryview]:
        """The image and the JSON in a slot, without a copy."""
        start = slot * self._slot_bytes
        pair = self._bytes[start : start + jpeg_bytes + json_bytes].data
        return pair[:jpeg_bytes], pair[jpeg_bytes:]

    def buffers(self, slot: int) -> Buffers:
        """Memory for the large rows that are made of the pair in a slot."""
        area = self._row_area(slot)
        bits = _pages(most_image_bytes(self._layout))
        return Buffers(self._options, area[:bits], area[bits:])

    def store(self, slot: int, packed: Packed) -> None:
        """Copy the rows made of a slot's pair into the slot, except those made there."""
        for name, target in self.rows(slot, packed.lengths).items():
            if target.ctypes.data != packed.rows[name].ctypes.data:
                target[...] = packed.rows[name]

    def rows(self, slot: int, lengths: AxisLengths) -> dict[str, np.ndarray]:
        """The rows in a slot of a sample of these lengths, without a copy."""
        area = self._row_area(slot)
        offsets, _ = _row_offsets(self._layout, lengths)
        rows = {}
        for spec in self._layout.arrays:
            shape = (lengths.along(spec.axis), *spec.row_shape)
            rows[spec.name] = np.ndarray(shape, spec.dtype, area, offsets[spec.name])
        return rows

    def _row_area(self, slot: int) -> np.ndarray:
        start = slot * self._slot_bytes + PAIR_BYTES
        return self._bytes[start : (slot + 1) * self._slot_bytes]

    def _most_row_bytes(self, json_bytes: int) -> int:
        """Bytes that the rows of a record of that size can take at most."""
        masks = min(json_bytes // LEAST_ANNOTATION_BYTES, MAX_ANNOTATIONS)
        if self._options.records != SA1B:  # a polygon of few bytes has many runs
            json_bytes = MAX_RUNS
            masks = MAX_ANNOTATIONS
        if self._options.max_masks is not None:
            masks = min(masks, self._options.max_masks)
        if self._layout.bits:
            masks = min(masks, MAX_BITS // self._layout.array("mask_bits").row_bytes)
        return _row_offsets(self._layout, AxisLengths(1, masks, json_bytes))[1]

    def free(self, slot: int) -> None:
        """Free a slot, whose pair and rows are no longer needed.

        Memory of each beyond KEPT_BYTES is returned to the system.
        """
        jpeg_bytes, json_bytes = self._lengths[slot]
        start = slot * self._slot_bytes
        self._return_memory(start, jpeg_bytes + json_bytes)
        self._return_memory(start + PAIR_BYTES, self._most_row_bytes(json_bytes))

    def _return_memory(self, start: int, nbytes: int) -> None:
        if nbytes > KEPT_BYTES:
            self._map.madvise(mmap.MADV_REMOVE, start + KEPT_BYTES, _pages(nbytes - KEPT_BYTES))

    def close(self) -> None:
        """Unmap the memory and close the file."""
        del self._bytes
        with suppress(BufferError):  # an error's traceback may hold rows, and then the map
            self._map.close()
        os.close(self.descriptor)


def _row_offsets(layout: Layout, lengths: AxisLengths) -> tuple[dict[str, int], int]:
    """Byte offset of each array's rows in a row area, and the end of the last, in full pages.

    The image has room for the largest one, and the bits follow, so that both begin with a page and
    can be written from there; then the others, at multiples of 64 bytes.
    """
    offsets = {"image": 0}
    end = _pages(most_image_bytes(layout))
    for spec in sorted(layout.arrays, key=lambda spec: spec.name != "mask_bits"):
        if spec.name != "image":
            offsets[spec.name] = end
            end += -(-lengths.along(spec.axis) * spec.row_bytes // 64) * 64
    return offsets, _pages(end)


def _pages(nbytes: int) -> int:
    """`nbytes`, rounded up to full pages."""
    return -(-nbytes // PAGE) * PAGE


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A pair that lies in a slot.

    Attributes:
        source: source of the pair.
        bytes_read: bytes of its source that were read so far.
        slot: number of its slot.
        jpeg_bytes, json_bytes: sizes of its halves.
        file_name: name of its image.
        future: of what becomes of it.
    """

    source: Source
    bytes_read: int
    slot: int
    jpeg_bytes: int
    json_bytes: int
    file_name: str
    future: Future[Decoded]

    @property
    def message(self) -> tuple[int, int, int, str]:
        """The job as it is sent to a worker."""
        return self.slot, self.jpeg_bytes, self.json_bytes, self.file_name


class Workers:
    """Worker processes that decode pairs; see `Decoder`.

    Each process is served by a thread of this one, in `serve`, which sends it jobs, takes what it
    makes of them, and starts another process in place of one that ends.
    """

    def __init__(self, options: PackOptions, count: int, readers: int, progress: Progress):
        """
        Args:
            options: options of the pack.
            count: number of processes.
            readers: number of threads that call `decode`.
            progress: counts the outcomes.
        """
        self._options = options
        self._count = count
        self._progress = progress
        slots = count * (JOBS_PER_WORKER + SLOTS_AHEAD) + readers * READ_AHEAD
        self._slots = SharedSlots(slots, options)
        self._free_slots: SimpleQueue[int] = SimpleQueue()
        for slot in range(slots):
            self._free_slots.put(slot)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()  # None: there are no more
        self._promises = Promises()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._starting = Lock()  # held while a process is started
        self._stopped = False
        self.services: Sequence[Callable[[], None]] = [self.serve] * count

    def decode(self, source: Source, pair: Pair, bytes_read: int) -> Future[Decoded]:
        """See `Decoder`; a worker decodes the pair, later."""
        slot = self._free_slots.get()
        self._slots.put(slot, pair.jpeg, pair.json)
        job = _Job(
            source=source,
            bytes_read=bytes_read,
            slot=slot,
            jpeg_bytes=len(pair.jpeg),
            json_bytes=len(pair.json),
            file_name=pair.file_name,
            future=self._promises.new(),
        )
        self._jobs.put(job)
        return job.future

    def _release(self, slot: int) -> None:
        """Free a slot, and let a thread that waits for one have it. For any thread."""
        self._slots.free(slot)
        self._free_slots.put(slot)

    def stop(self) -> None:
        """See `Decoder`; no process is left."""
        with self._starting:
            self._stopped = True
        for process in self._processes:
            process.kill()
            process.wait()
        self._promises.cancel()
        for slot in range(self._slots.count):  # a thread may wait for one
            self._free_slots.put(slot)
        for _ in range(self._count):
            self._jobs.put(None)

    def close(self) -> None:
        """See `Decoder`."""
        self._slots.close()

    def serve(self) -> None:
        """Have pairs decoded by a worker, and by another one if it ends, until `stop`.

        It runs in a thread of its own, one for each process of the run. The thread blocks SIGNALS,
        and so do the processes that it starts.

        A pair on which MAX_DEATHS workers ended in a row is rejected. If the last of them was
        killed by SIGKILL, which is how the kernel ends processes when memory runs out, that is a
        MemoryError: the pair is not at fault, and must not be missing.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        sent: deque[_Job] = deque()
        deaths = 0
        worker = self._start_worker()
        try:
            while self._send_jobs(worker, sent):
                job = sent[0]
                try:
                    outcome = worker.connection.recv()
                except (EOFError, OSError):  # it ended, perhaps in the middle of a message
                    deaths += 1
                    how, killed = worker.exit_text()
                    worker = self._start_worker()
                    self._progress.note(
                        f"a worker {how} while it decoded {job.file_name}; another one replaces it"
                    )
                    if deaths == MAX_DEATHS:
                        text = f"{deaths} workers ended while they decoded it; the last one {how}"
                        if killed:
                            name = f"{job.source.path}: {job.file_name}"
                            raise MemoryError(f"{name}: {text}") from None
                        self._keep(sent.popleft(), Reject(job.file_name, "worker-died", text))
                        deaths = 0
                    for unfinished in sent:
                        worker.send(unfinished.message)
                    continue
                if isinstance(outcome, BaseException):
                    raise outcome
                self._keep(sent.popleft(), outcome)
                deaths = 0
        finally:
            worker.connection.close()

    def _send_jobs(self, worker: "_Worker", sent: deque[_Job]) -> bool:
        """Send a worker as many jobs as it holds, waiting for the first; False if there are none.

        They are added to `sent`.
        """
        while len(sent) < JOBS_PER_WORKER:
            try:
                job = self._jobs.get(block=not sent)
            except Empty:
                break
            if job is None:
                return False
            sent.append(job)
            worker.send(job.message)
        return True

    def _keep(self, job: _Job, outcome: Outcome) -> None:
        """Pass on the outcome of a job, with the rows that lie in its slot."""
        self._progress.done(job.source, outcome, job.bytes_read)  # first: it may end the run
        if isinstance(outcome, Packed):
            outcome = replace(outcome, rows=self._slots.rows(job.slot, outcome.lengths))
        self._promises.keep(job.future, Decoded(outcome, partial(self._release, job.slot)))

    def _start_worker(self) -> "_Worker":
        """Start a worker, and wait until it takes jobs."""
        with self._starting:
            if self._stopped:
                raise PackError("the run ends")
            worker = _Worker(self._options, self._slots)
            self._processes.append(worker.process)
        try:
            worker.connection.recv()
        except (EOFError, OSError):
            how, killed = worker.exit_text()
            text = f"a worker process {how} before it took work; see its message above"
            if killed:
                raise MemoryError(text) from None
            raise PackError(text) from None
        return worker


# Libraries' own threads would only compete with the other workers.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


class _Worker:
    """A worker process, and the socket to it. Raises PackError if it cannot be started."""

    def __init__(self, options: PackOptions, slots: SharedSlots):
        mine, its = socket.socketpair()
        self.connection = Connection(mine.detach())
        files = its.fileno(), slots.descriptor
        try:
            with its, naming_refusal("another worker process"):
                self.process = subprocess.Popen(
                    [sys.executable, "-m", __name__, *map(str, (*files, slots.count))],
                    stdin=subprocess.DEVNULL,
                    pass_fds=files,
                    env={
                        **os.environ,
                        **_ONE_THREAD,
                        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    },
                )
        except OSError as error:
            raise PackError(f"a worker process could not be started: {error}") from error
        self.send(options)

    def send(self, message: object) -> None:
        """Send a message; if the process has ended, receiving its answer fails."""
        with suppress(OSError):
            self.connection.send(message)

    def exit_text(self) -> tuple[str, bool]:
        """The end of a process that closed its socket, in words; and True if SIGKILL ended it."""
        self.connection.close()
        code = self.process.wait()
        if code >= 0:
            return f"ended with exit code {code}", False
        killed = code == -signal.SIGKILL
        hint = " (out of memory?)" if killed else ""
        return f"was killed by {signal.Signals(-code).name}{hint}", killed


def main(descriptor: int, slots_descriptor: int, count: int) -> None:
    """Serve one parent until it closes the socket."""
    parent = Connection(descriptor)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        options = parent.recv()
        slots = SharedSlots(count, options, slots_descriptor)
        warm_up(options)
        parent.send("ready")
        while True:
            slot, jpeg_bytes, json_bytes, file_name = parent.recv()
            pair = slots.pair(slot, jpeg_bytes, json_bytes)
            outcome: Outcome | BaseException
            try:
                outcome = attempt(file_name, *pair, options, slots.buffers(slot))
                if isinstance(outcome, Packed):
                    slots.store(slot, outcome)
                    outcome = replace(outcome, rows={})
            except MemoryError as error:  # not the sample's fault, as an OSError: the run ends
                outcome = MemoryError(f"{file_name}: {error}")
            except (OSError, MissingPackage) as error:
                outcome = error
            parent.send(outcome)
    os._exit(0)  # the parent has ended or closed the socket: nothing here needs an orderly end


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
