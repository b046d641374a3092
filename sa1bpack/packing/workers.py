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
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import PackError
from sa1bpack.format.files import naming
from sa1bpack.format.layout import AxisLengths, Layout
from sa1bpack.interrupts import SIGNALS
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import (
    MAX_BITS,
    Buffers,
    Outcome,
    Packed,
    attempt,
    most_image_bytes,
    warm_up,
)
from sa1bpack.source.annotations import MAX_ANNOTATIONS
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import MAX_JPEG_BYTES, MAX_JSON_BYTES, Pair, Reject
from sa1bpack.threads import naming_refusal

if TYPE_CHECKING:
    from sa1bpack.packing.source_packer import Made, PackRun

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

    def put(self, slot: int, jpeg, json) -> None:
        """Copy a pair into a slot."""
        self._lengths[slot] = len(jpeg), len(json)
        targets = self.pair(slot, len(jpeg), len(json))
        for target, data in zip(targets, (jpeg, json), strict=True):
            target[:] = data

    def pair(self, slot: int, jpeg_bytes: int, json_bytes: int) -> tuple[memoryview, memoryview]:
        """The JPEG and the JSON in a slot, without a copy."""
        start = slot * self._slot_bytes
        both = memoryview(self._bytes[start : start + jpeg_bytes + json_bytes])
        return both[:jpeg_bytes], both[jpeg_bytes:]

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
        (offsets, _) = _row_offsets(self._layout, lengths)
        return {
            spec.name: np.ndarray(
                (lengths.along(spec.axis), *spec.row_shape), spec.dtype, area, offsets[spec.name]
            )
            for spec in self._layout.arrays
        }

    def _row_area(self, slot: int) -> np.ndarray:
        start = slot * self._slot_bytes + PAIR_BYTES
        return self._bytes[start : (slot + 1) * self._slot_bytes]

    def _most_row_bytes(self, json_bytes: int) -> int:
        """Bytes that the rows of a record of that size can take at most."""
        masks = min(json_bytes // LEAST_ANNOTATION_BYTES, MAX_ANNOTATIONS)
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
        pair = slot * self._slot_bytes
        rows = slot * self._slot_bytes + PAIR_BYTES
        most = {pair: jpeg_bytes + json_bytes, rows: self._most_row_bytes(json_bytes)}
        for start, used in most.items():
            if used > KEPT_BYTES:
                self._map.madvise(mmap.MADV_REMOVE, start + KEPT_BYTES, _pages(used - KEPT_BYTES))

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


@dataclass(frozen=True)
class _Job:
    """A pair that lies in a slot."""

    source: Source
    message: tuple[int, int, int, str]  # to the worker: slot, bytes of JPEG and JSON, file name
    bytes_read: int  # of its source, when it was read
    made: "Future[Made]"


class Workers:
    """Worker processes that decode samples.

    Each process is served by a thread here, which sends it jobs and takes what it makes of them,
    and starts another one in place of a process that ends.
    """

    def __init__(self, run: "PackRun", readers: int):
        """
        Args:
            run: what all packers of the run share.
            readers: number of threads that call `decode`.
        """
        self._run = run
        count = run.request.workers
        slots = count * (JOBS_PER_WORKER + SLOTS_AHEAD) + readers * READ_AHEAD
        self._slots = SharedSlots(slots, run.ledger.options)
        self._free_slots: SimpleQueue[int] = SimpleQueue()
        for slot in range(slots):
            self._free_slots.put(slot)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._processes: list[subprocess.Popen] = []
        self._lock = Lock()  # for stopping

    def decode(self, source: Source, pair: Pair, bytes_read: int) -> "Future[Made]":
        """See `InlineDecoder`; a worker decodes the pair, later."""
        slot = self._free_slots.get()
        made = Future()
        self._slots.put(slot, pair.jpeg, pair.json)
        message = slot, len(pair.jpeg), len(pair.json), pair.file_name
        with self._lock:
            if self._run.stopping.is_set():
                made.cancel()
            else:
                self._jobs.put(_Job(source, message, bytes_read, made))
        return made

    def _free(self, slot: int) -> None:
        """Free a slot, and let a thread that waits for one have it. For any thread."""
        self._slots.free(slot)
        self._free_slots.put(slot)

    def stop(self) -> None:
        """See `InlineDecoder`; no process is left."""
        with self._lock:  # after this, no job is added and no process started
            self._run.stopping.set()
        for process in self._processes:
            process.kill()
            process.wait()
        for slot in range(self._slots.count):  # a thread may wait for one
            self._free_slots.put(slot)
        for _ in range(self._run.request.workers):
            self._jobs.put(None)

    def close(self) -> None:
        """See `InlineDecoder`."""
        self._slots.close()

    def serve(self) -> None:
        """Serve worker processes, one after the other, until `stop`.

        It runs in a thread of its own, one for each process of the run. The thread blocks SIGNALS,
        and so do the processes that it starts.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        held: deque[_Job] = deque()
        try:
            self._have_done(held)
        except BaseException as error:  # whatever it is, the run must end with it
            self._run.fail(error)
            while (job := self._jobs.get()) is not None:
                job.made.cancel()
        finally:
            for job in held:  # which the run has not waited for
                job.made.cancel()

    def _have_done(self, held: deque[_Job]) -> None:
        """Have jobs done by a worker until there are no more; `held` are those that it was sent.

        The first of them may have ended it: a sample to which that happens MAX_DEATHS times is
        rejected. If the last of these workers was killed by SIGKILL, which is how the kernel ends
        processes when memory runs out, the run ends with MemoryError instead.
        """
        worker = self._started()
        deaths = 0
        try:
            while True:
                while len(held) < JOBS_PER_WORKER:
                    try:
                        job = self._jobs.get(block=not held)
                    except Empty:
                        break
                    if job is None:
                        return
                    held.append(job)
                    worker.send(job.message)
                job = held[0]
                name = held[0].message[-1]
                try:
                    outcome = worker.connection.recv()
                except (EOFError, OSError):  # ended; perhaps in the middle of a message
                    how, killed = worker.exit_text()
                    worker = self._started()
                    deaths = deaths + 1
                    text = f"a worker {how} while it decoded {name}"
                    self._run.progress.note(f"{text}; another one replaces it")
                    if deaths == MAX_DEATHS:
                        text = f"{deaths} workers ended while they decoded it; the last one {how}"
                        # From outside: the sample is not at fault, and must not be missing.
                        if killed:
                            raise MemoryError(f"{job.source.path}: {name}: {text}") from None
                        self._resolve(held.popleft(), Reject(name, "worker-died", text))
                        deaths = 0
                    for each in held:
                        worker.send(each.message)
                    continue
                if isinstance(outcome, BaseException):
                    raise outcome
                self._resolve(held.popleft(), outcome)
                deaths = 0
        finally:
            worker.connection.close()

    def _resolve(self, job: _Job, outcome: Outcome) -> None:
        if isinstance(outcome, Packed):
            outcome = replace(outcome, rows=self._slots.rows(job.message[0], outcome.lengths))
        job.made.set_result((outcome, partial(self._free, job.message[0])))
        self._run.progress.done(job.source, outcome, job.bytes_read)

    def _started(self) -> "_Worker":
        """A worker that takes jobs."""
        with self._lock:
            if self._run.stopping.is_set():
                raise PackError("the run ends")
            worker = _Worker(self._run.ledger.options, self._slots)
            self._processes.append(worker.process)
        try:
            worker.connection.recv()
        except (EOFError, OSError):
            how, killed = worker.exit_text()
            error = MemoryError if killed else PackError
            raise error(
                f"a worker process {how} before it took work; see its message above"
            ) from None
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
            try:
                outcome = attempt(file_name, *pair, options, slots.buffers(slot))
                if isinstance(outcome, Packed):
                    slots.store(slot, outcome)
                    outcome = replace(outcome, rows={})
            except MemoryError as error:  # not the sample's fault, as an OSError: the run ends
                outcome = MemoryError(f"{file_name}: {error}")
            except OSError as error:
                outcome = error
            parent.send(outcome)
    os._exit(0)  # the parent has ended or closed the socket: nothing here needs an orderly end


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
