"""Worker processes that make samples, the memory that they share, and the threads that serve them.

They make the same samples by the same `attempt_group` as a run without workers does, so they
produce the same bytes. A group of pairs keeps its slot of the memory until the rows made of it are
written. Slots and workers are given to the groups of a source in their order: the oldest group of
every source can always proceed, whatever waits after it, so there is no deadlock.

The pairs of a group on which a worker has ended are decoded one by one, to find the one to blame.

A worker runs as `python -m sa1bpack.packing.workers SOCKET MEMORY COUNT`, the first two inherited
descriptors. A fresh interpreter rather than a fork: the parent has threads, and a fork copies their
locks. SIGINT and SIGTERM are blocked in it: terminals and job schedulers send them to every process
of a run, and only the parent handles them.

Messages to a worker: first the PackOptions, then (slot, spans of pairs, whether the rows go into
the slot) for each job. From it: one message when it takes work, then a GroupOutcome, or an error
that ends the run, for each job in turn. Rows that are in the slot are not in the message. The
worker ends with the socket.
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
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from threading import Lock
from typing import NamedTuple

import numpy as np

from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import MissingPackage, PackError
from sa1bpack.format.layout import AxisLengths, Layout
from sa1bpack.interrupts import SIGNALS
from sa1bpack.packing.decoder import Decoded, Promises
from sa1bpack.packing.groups import GroupOutcome, attempt_group, joined_groups, pairs_per_group
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.runs import MAX_RUNS
from sa1bpack.packing.sample import (
    MAX_BITS,
    Buffers,
    Packed,
    PairBytes,
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
# (more than a group of SA-1B's pairs needs) is returned.
KEPT_BYTES = 16 << 20
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


class PairSpan(NamedTuple):
    """The bytes of a pair in a slot.

    Attributes:
        file_name: name of its image.
        start: offset of its first byte in the slot.
        jpeg_bytes, json_bytes: sizes of its halves.
    """

    file_name: str
    start: int
    jpeg_bytes: int
    json_bytes: int


class SharedSlots:
    """Slots of shared memory, each with the pairs of a group, and after them the rows made of it.

    They lie in an unnamed file, which the kernel frees with the last process, however that ends.
    """

    def __init__(self, count: int, options: PackOptions, descriptor: int | None = None):
        """Make the slots, or map those that another process made: the file at `descriptor`."""
        self.count = count
        self._options = options
        self._layout = options.layout
        self._samples = pairs_per_group(options, in_workers=True)
        self._slot_bytes = PAIR_BYTES + self._most_row_bytes(MAX_JSON_BYTES)
        with naming(f"address space for {count} groups of pairs at once"):
            if descriptor is None:
                descriptor = os.memfd_create("sa1bpack", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, count * self._slot_bytes)
            self._map = mmap.mmap(descriptor, count * self._slot_bytes)
        self.descriptor = descriptor
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._lengths = [(0, 0)] * count

    def put(self, slot: int, pairs: Sequence[Pair]) -> tuple[PairSpan, ...]:
        """Copy the pairs of a group into a slot; returns where they are."""
        spans = []
        start = 0
        all_json_bytes = 0
        for pair in pairs:
            span = PairSpan(pair.file_name, start, len(pair.jpeg), len(pair.json))
            copied = self.pair(slot, span)
            copied.jpeg[:] = pair.jpeg  # type: ignore[index]  # a view of the memory
            copied.json[:] = pair.json  # type: ignore[index]
            spans.append(span)
            start += len(pair.jpeg) + len(pair.json)
            all_json_bytes += len(pair.json)
        self._lengths[slot] = start, all_json_bytes
        return tuple(spans)

    def pair(self, slot: int, span: PairSpan) -> PairBytes:
        """A pair in a slot, without a copy."""
        start = slot * self._slot_bytes + span.start
        pair = self._bytes[start : start + span.jpeg_bytes + span.json_bytes].data
        return PairBytes(span.file_name, pair[: span.jpeg_bytes], pair[span.jpeg_bytes :])

    def buffers(self, slot: int) -> Buffers:
        """Memory for the large rows that are made of the group in a slot."""
        area = self._row_area(slot)
        bits = _pages(self._samples * most_image_bytes(self._layout))
        return Buffers(self._options, self._samples, area[:bits], area[bits:])

    def fits(self, lengths: AxisLengths) -> bool:
        """True if a slot has room for rows of these lengths, as it has for those of any pair."""
        _, end = _row_offsets(self._layout, self._samples, lengths)
        return PAIR_BYTES + end <= self._slot_bytes

    def store(self, slot: int, packed: Packed) -> None:
        """Copy the rows made of a slot's group into the slot, except those made there."""
        for name, target in self.rows(slot, packed.lengths).items():
            if target.ctypes.data != packed.rows[name].ctypes.data:
                target[...] = packed.rows[name]

    def rows(self, slot: int, lengths: AxisLengths) -> dict[str, np.ndarray]:
        """The rows in a slot of samples of these lengths, without a copy."""
        area = self._row_area(slot)
        offsets, _ = _row_offsets(self._layout, self._samples, lengths)
        rows = {}
        for spec in self._layout.arrays:
            shape = (lengths.along(spec.axis), *spec.row_shape)
            rows[spec.name] = np.ndarray(shape, spec.dtype, area, offsets[spec.name])
        return rows

    def _row_area(self, slot: int) -> np.ndarray:
        start = slot * self._slot_bytes + PAIR_BYTES
        return self._bytes[start : (slot + 1) * self._slot_bytes]

    def _most_row_bytes(self, json_bytes: int) -> int:
        """Bytes that the rows of a record of that size can take at most, in a group's slot."""
        masks = min(json_bytes // LEAST_ANNOTATION_BYTES, MAX_ANNOTATIONS)
        if self._options.records != SA1B:  # a polygon of few bytes has many runs
            json_bytes = MAX_RUNS
            masks = MAX_ANNOTATIONS
        if self._options.max_masks is not None:
            masks = min(masks, self._options.max_masks)
        if self._layout.bits:
            masks = min(masks, MAX_BITS // self._layout.array("mask_bits").row_bytes)
        lengths = AxisLengths(self._samples, masks, json_bytes)
        return _row_offsets(self._layout, self._samples, lengths)[1]

    def free(self, slot: int) -> None:
        """Free a slot, whose pairs and rows are no longer needed.

        Memory of each beyond KEPT_BYTES is returned to the system.
        """
        pair_bytes, json_bytes = self._lengths[slot]
        start = slot * self._slot_bytes
        self._return_memory(start, pair_bytes)
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


def _row_offsets(
    layout: Layout, most_samples: int, lengths: AxisLengths
) -> tuple[dict[str, int], int]:
    """Byte offset of each array's rows in a row area, and the end of the last, in full pages.

    The images have room for the largest ones, and the bits follow, so that both begin with a page
    and can be written from there; then the others, at multiples of 64 bytes.
    """
    offsets = {"image": 0}
    end = _pages(most_samples * most_image_bytes(layout))
    for spec in sorted(layout.arrays, key=lambda spec: spec.name != "mask_bits"):
        if spec.name != "image":
            offsets[spec.name] = end
            end += -(-lengths.along(spec.axis) * spec.row_bytes // 64) * 64
    return offsets, _pages(end)


def _pages(nbytes: int) -> int:
    """`nbytes`, rounded up to full pages."""
    return -(-nbytes // PAGE) * PAGE


_Message = tuple[int, tuple[PairSpan, ...], bool]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A group of pairs that lie in a slot, or one pair of it.

    Attributes:
        source: source of the pairs.
        bytes_read: bytes of their source that were read so far.
        slot: number of their slot.
        spans: where in it they are.
        future: of what becomes of the group.
        outcomes: those of the pairs of a group that are decoded one by one, so far.
        group: number of pairs of that group; 0 if all are decoded at once.
    """

    source: Source
    bytes_read: int
    slot: int
    spans: tuple[PairSpan, ...]
    future: Future[Decoded]
    outcomes: list[GroupOutcome] = field(default_factory=list)
    group: int = 0

    @property
    def message(self) -> _Message:
        """The job as it is sent to a worker; rows of a pair of a group do not go into the slot."""
        return self.slot, self.spans, self.group == 0

    def one_by_one(self) -> list["_Job"]:
        """The pairs of the group as jobs of their own."""
        group = len(self.spans)
        return [replace(self, spans=(span,), group=group) for span in self.spans]

    def names(self) -> str:
        """The images, in a message."""
        first = self.spans[0].file_name
        if len(self.spans) == 1:
            return first
        return f"one of {len(self.spans)} images, {first} to {self.spans[-1].file_name}"


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

    def decode(self, source: Source, pairs: Sequence[Pair], bytes_read: int) -> Future[Decoded]:
        """See `Decoder`; a worker decodes the pairs, later."""
        slot = self._free_slots.get()
        job = _Job(
            source=source,
            bytes_read=bytes_read,
            slot=slot,
            spans=self._slots.put(slot, pairs),
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

        Of a group on which one ended, the pairs are decoded one by one. A pair on which MAX_DEATHS
        workers ended in a row is rejected. If the last of them was
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
                        f"a worker {how} while it decoded {job.names()}; another one replaces it"
                    )
                    if len(job.spans) > 1:
                        sent.popleft()
                        sent.extendleft(reversed(job.one_by_one()))
                        deaths = 0
                    elif deaths == MAX_DEATHS:
                        text = f"{deaths} workers ended while they decoded it; the last one {how}"
                        if killed:
                            name = f"{job.source.path}: {job.names()}"
                            raise MemoryError(f"{name}: {text}") from None
                        reject = Reject(job.names(), "worker-died", text)
                        self._keep(sent.popleft(), GroupOutcome(None, (reject,)))
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

    def _keep(self, job: _Job, outcome: GroupOutcome) -> None:
        """Pass on the outcome of a job, with the rows that lie in its slot.

        That of a group which is decoded pair by pair is passed on with its last pair.
        """
        self._progress.done(job.source, outcome, job.bytes_read)  # first: it may end the run
        if job.group:
            job.outcomes.append(outcome)
            if len(job.outcomes) < job.group:
                return
            outcome = joined_groups(job.outcomes)
        elif outcome.packed is not None and not outcome.packed.rows:
            rows = self._slots.rows(job.slot, outcome.packed.lengths)
            outcome = replace(outcome, packed=replace(outcome.packed, rows=rows))
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
            slot, spans, in_slot = parent.recv()
            pairs = [slots.pair(slot, span) for span in spans]
            outcome: GroupOutcome | BaseException
            try:
                outcome = attempt_group(pairs, options, slots.buffers(slot))
                packed = outcome.packed
                if packed is not None and in_slot and slots.fits(packed.lengths):
                    slots.store(slot, packed)
                    outcome = replace(outcome, packed=replace(packed, rows={}))
            except MemoryError as error:  # not the samples' fault, as an OSError: the run ends
                outcome = MemoryError(f"{spans[0].file_name}: {error}")
            except (OSError, MissingPackage) as error:
                outcome = error
            parent.send(outcome)
    os._exit(0)  # the parent has ended or closed the socket: nothing here needs an orderly end


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
