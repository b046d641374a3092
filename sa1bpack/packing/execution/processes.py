"""Threads read and write, worker processes decode, this thread keeps the order.

A pair keeps its slot until the rows made of it are written. Slots and workers are given to the
pairs of a source in their order: the oldest pair of every source can always proceed, whatever waits
after it, so there is no deadlock.
"""

import selectors
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from sa1bpack import interrupts
from sa1bpack.errors import PackError, SourceError
from sa1bpack.packing.execution.inline import SOURCE_FILES, enough_descriptors, files_needed
from sa1bpack.packing.execution.shared_slots import SharedSlots
from sa1bpack.packing.execution.source_reader import (
    PairRead,
    PairSkipped,
    ReaderFailed,
    SourceFailed,
    SourceRead,
    SourceReaders,
)
from sa1bpack.packing.execution.worker import JOBS_PER_WORKER, WorkerProcess, start_worker
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.request import Request
from sa1bpack.packing.sample import Outcome, Packed, Rejected
from sa1bpack.packing.source_packer import SourcePacker, stopped_on_error
from sa1bpack.urls import Address

# One thread inflates and hashes as much as this many workers decode (benchmarks/inflate.py).
WORKERS_PER_READER_THREAD = 6

# Tars at URLs that are read at once by default: a stream is often slower than a thread inflates.
DOWNLOADS = 4

# Slots beyond those of the workers' jobs, per worker and per reader thread: rows that wait for an
# earlier pair or for the disk, and pairs that are read ahead.
SLOTS_AHEAD = 1
READ_AHEAD = 2

# A sample that so many workers crashed on is rejected.
MAX_DEATHS = 3

# The publication of a shard wakes nobody; it is polled this often, in seconds.
POLL_SECONDS = 0.05


@dataclass(eq=False)
class Job:
    """One pair on its way through a worker.

    deaths
        Workers that ended while they decoded it.
    """

    pair: PairRead
    deaths: int = 0

    @property
    def wanted(self) -> bool:
        """False once its source was given up, and its shard with it."""
        return self.pair.packer.wants(self.pair.index)


def pack_with_processes(
    packers: Sequence[SourcePacker],
    options: PackOptions,
    request: Request,
    progress: Progress,
) -> None:
    """Run every packer with worker processes. Errors of a source stay in its packer.

    Of sources at URLs, as many are read at once as the request says; by default DOWNLOADS, but no
    more than there are workers, and at least as many as of files.
    """
    workers, downloads = request.workers, request.downloads
    reader_threads = -(-workers // WORKERS_PER_READER_THREAD)
    if any(isinstance(packer.source.path, Address) for packer in packers):
        reader_threads = downloads or max(reader_threads, min(DOWNLOADS, workers))
    reader_threads = min(len(packers), reader_threads)
    slots = workers * (JOBS_PER_WORKER + SLOTS_AHEAD) + reader_threads * READ_AHEAD
    # Per source: the shard being filled, and the one whose last samples are being decoded. There
    # are more only if shards are smaller than the number of slots.
    filling = 2 * reader_threads + slots // options.samples_per_shard
    needed = files_needed(options, filling, others=2 * workers + reader_threads * SOURCE_FILES)
    with enough_descriptors(needed, workers):
        shared_slots = SharedSlots(slots, options)
        try:
            readers = SourceReaders(list(packers), reader_threads, shared_slots)
            try:
                readers.start()
                dispatcher = _Dispatcher(packers, options, workers, progress, readers, shared_slots)
                with stopped_on_error(packers):
                    dispatcher.run()
            finally:
                readers.stop()
        finally:
            shared_slots.close()


class _Dispatcher:
    def __init__(self, packers, options, workers, progress, readers, shared_slots):
        self._begun: dict[SourcePacker, None] = {}  # ordered; a run may have a thousand sources
        self._unfinished = len(packers)
        self._options: PackOptions = options
        self._progress: Progress = progress
        self._readers: SourceReaders = readers
        self._shared_slots: SharedSlots = shared_slots
        self._jobs: dict[int, Job] = {}
        self._waiting: deque[int] = deque()
        self._count = 0
        self._pool: list[WorkerProcess] = []
        self._size = workers
        self._selector = selectors.DefaultSelector()
        self._selector.register(readers.wakeup, selectors.EVENT_READ)

    def run(self) -> None:
        """Drive every packer to its end. No worker is left, whatever happens."""
        try:
            for _ in range(self._size):
                self._start_worker()
            while self._unfinished:
                interrupts.check()
                self._send_jobs()
                self._receive()
                self._poll_packers()
            for worker in self._pool:
                worker.end()
        except BaseException:
            for worker in self._pool:
                worker.end(kill=True)
            raise
        finally:
            self._selector.close()

    def _start_worker(self) -> None:
        worker = start_worker(self._options, self._shared_slots)
        self._pool.append(worker)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _poll_packers(self) -> None:
        for packer in list(self._begun):
            packer.poll()
            if packer.finished:
                del self._begun[packer]
                self._unfinished -= 1

    def _send_jobs(self) -> None:
        while self._waiting:
            worker = max(self._pool, key=lambda worker: worker.capacity)
            if worker.capacity == 0:
                return
            number = self._waiting.popleft()
            worker.jobs.append(number)
            pair = self._jobs[number].pair
            # If the worker has ended, reading from it fails, and `_replace_worker` takes its jobs.
            with suppress(OSError):
                worker.connection.send(
                    (number, pair.slot, pair.jpeg_bytes, pair.json_bytes, pair.file_name)
                )

    def _receive(self) -> None:
        """Wait for messages; take one of each worker that has any, and all of the readers."""
        for key, _ in self._selector.select(POLL_SECONDS):
            worker = key.data
            if worker is None:
                for event in self._readers.drain():
                    self._take_event(event)
                continue
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):  # ended; perhaps in the middle of a message
                self._replace_worker(worker)
            else:
                self._take_message(worker, *message)

    # Events of the readers

    def _take_event(self, event) -> None:
        if isinstance(event, ReaderFailed):
            raise event.error
        if not event.packer.finished:
            self._begun[event.packer] = None
        match event:
            case PairSkipped(packer, index, digest, bytes_read):
                if packer.error is None:
                    self._skip(packer, index, digest)
                    self._progress.advance(packer.source, bytes_read)
            case PairRead(packer, index, digest):
                if packer.error is not None:
                    self._readers.free(event.slot)
                    return
                packer.begin(index, digest)
                self._jobs[self._count] = Job(event)
                self._waiting.append(self._count)
                self._count += 1
            case SourceRead(packer, reader, pairs):
                if packer.error is None:
                    for reject in packer.end(reader, pairs):
                        self._progress.reject(packer.source, reject)
                    self._drop_unwanted(packer)
                self._progress.source_done(packer.source)
            case SourceFailed(packer, error):
                if packer.error is None:
                    packer.fail(error)
                    self._drop_unwanted(packer)
                self._progress.source_done(packer.source)

    def _skip(self, packer: SourcePacker, index: int, digest: bytes) -> None:
        try:
            packer.skip(index, digest)
        except SourceError as error:
            packer.fail(error)
            self._drop_unwanted(packer)
            self._progress.source_done(packer.source)

    def _drop_unwanted(self, packer: SourcePacker) -> None:
        """Drop the waiting jobs of a source that was given up.

        Those that a worker holds are dropped when it reports them done.
        """
        for number in [n for n in self._waiting if self._jobs[n].pair.packer is packer]:
            if not self._jobs[number].wanted:
                self._waiting.remove(number)
                self._readers.free(self._jobs.pop(number).pair.slot)

    # Messages of the workers

    def _take_message(self, worker: WorkerProcess, kind: str, *message) -> None:
        if kind == "ready":
            worker.ready = True
            return
        number, result = message
        worker.jobs.remove(number)
        job = self._jobs.pop(number)
        if not job.wanted:
            self._readers.free(job.pair.slot)
        elif kind == "failed":
            raise result
        else:
            self._take_outcome(job, result)

    def _take_outcome(self, job: Job, outcome: Outcome) -> None:
        pair = job.pair
        if isinstance(outcome, Packed):
            outcome = replace(outcome, rows=self._shared_slots.rows(pair.slot, outcome.extent))
        pair.packer.resolve(pair.index, outcome, partial(self._readers.free, pair.slot))
        self._progress.done(pair.packer.source, outcome, pair.bytes_read)

    # When a worker dies

    def _replace_worker(self, worker: WorkerProcess) -> None:
        """Start another worker in place of one that ended, and have its jobs done again.

        The job it was decoding may have ended it: a sample to which that happens MAX_DEATHS times
        is rejected. If the last of these workers was killed by SIGKILL, which is how the kernel
        ends processes when memory runs out, the run ends with MemoryError instead.
        """
        self._selector.unregister(worker.connection)
        self._pool.remove(worker)
        how = worker.exit_text()
        if not worker.ready:
            error = MemoryError if worker.killed else PackError
            raise error(f"a worker process {how} before it took work; see its message above")
        self._start_worker()
        suspect = next(iter(worker.jobs), None)
        for number in reversed(worker.jobs):
            if self._jobs[number].wanted:
                self._waiting.appendleft(number)
            else:
                self._readers.free(self._jobs.pop(number).pair.slot)
        if suspect in self._jobs:
            self._count_death(suspect, how, worker.killed)

    def _count_death(self, number: int, how: str, killed: bool) -> None:
        job = self._jobs[number]
        job.deaths += 1
        name = job.pair.file_name
        self._progress.note(f"a worker {how} while it decoded {name}; another one replaces it")
        if job.deaths < MAX_DEATHS:
            return
        detail = f"{job.deaths} workers ended while they decoded it; the last one {how}"
        if killed:  # from outside: the sample is not at fault, and must not be missing
            raise MemoryError(f"{job.pair.packer.source.path}: {name}: {detail}")
        self._waiting.remove(number)
        self._take_outcome(self._jobs.pop(number), Rejected(name, "worker-died", detail))
