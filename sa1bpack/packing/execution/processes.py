"""Threads read, worker processes decode, this thread keeps the order.

A pair keeps its slot until the rows made of it are written. Slots and workers are given to the
pairs of a source in their order: the oldest pair of every source can always proceed, whatever waits
after it, so there is no deadlock.
"""

import os
import selectors
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from threading import Lock

from sa1bpack import interrupts
from sa1bpack.errors import PackError
from sa1bpack.packing.execution.worker import JOBS_PER_WORKER, SharedSlots, WorkerProcess
from sa1bpack.packing.sample import Outcome, Packed
from sa1bpack.packing.source_packer import (
    PackRun,
    ShardBuilder,
    SourcePacker,
    read_source,
    stopped_on_error,
)
from sa1bpack.source.pairs import Reject
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
    """A pair that lies in a slot.

    builder
        Takes the outcome.
    sizes
        Bytes of its JPEG and of its JSON.
    bytes_read
        Of its source, when it was read.
    deaths
        Workers that ended while they decoded it.
    """

    builder: ShardBuilder
    index: int
    file_name: str
    slot: int
    sizes: tuple[int, int]
    bytes_read: int
    deaths: int = 0


def pack_with_processes(run: PackRun, packers: Sequence[SourcePacker]) -> None:
    """Run every packer with worker processes. Errors of a source stay in its packer.

    Of sources at URLs, as many are read at once as the request says; by default DOWNLOADS, but no
    more than there are workers, and at least as many as of files.
    """
    request = run.request
    workers, downloads = request.workers, request.downloads
    readers = -(-workers // WORKERS_PER_READER_THREAD)
    if any(isinstance(packer.source.path, Address) for packer in packers):
        readers = downloads or max(readers, min(DOWNLOADS, workers))
    readers = min(len(packers), readers)
    slots = workers * (JOBS_PER_WORKER + SLOTS_AHEAD) + readers * READ_AHEAD
    with closing(SharedSlots(slots, run.state.options)) as shared_slots:
        _Dispatcher(run, packers, shared_slots).run(readers, workers)


class _Dispatcher:
    """Threads read pairs into slots; this thread has workers decode them, and takes the results.

    Inflating and hashing release the GIL. Packers and the progress belong to the thread that holds
    the lock, and a slot to its pair until `_free` is called.
    """

    def __init__(self, run: PackRun, packers: Sequence[SourcePacker], shared_slots: SharedSlots):
        self._run, self._packers, self._progress = run, packers, run.progress
        self._begun: dict[SourcePacker, None] = {}  # ordered; a run may have a thousand sources
        self._unfinished = len(packers)
        self._shared_slots = shared_slots
        self._free_slots: SimpleQueue[int] = SimpleQueue()
        for slot in range(shared_slots.count):
            self._free_slots.put(slot)
        self._jobs: dict[int, Job] = {}
        self._waiting: deque[int] = deque()
        self._count = 0
        self._pool: list[WorkerProcess] = []
        self._lock = Lock()
        self._error: BaseException | None = None  # of a thread
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC)  # readable after a thread has done something
        self._selector = selectors.DefaultSelector()

    def run(self, readers: int, workers: int) -> None:
        """Drive every packer to its end. No thread and no worker is left, whatever happens."""
        self._selector.register(self._wakeup, selectors.EVENT_READ)
        threads = ThreadPoolExecutor(readers, "sa1bpack-reader")
        try:
            with stopped_on_error(self._packers):
                try:
                    for packer in self._packers:
                        threads.submit(self._read, packer)
                    for _ in range(workers):
                        self._start_worker()
                    while self._unfinished:
                        interrupts.check()
                        self._send_jobs()
                        self._receive()
                        with self._lock:
                            for packer in list(self._begun):
                                packer.poll()
                                if packer.finished:
                                    del self._begun[packer]
                                    self._unfinished -= 1
                finally:
                    self._run.stopping.set()
                    for packer in self._packers:
                        if packer.reader is not None:
                            packer.reader.cancel()
                    for _ in range(readers):
                        self._free_slots.put(-1)
                    threads.shutdown(cancel_futures=True)
        finally:
            for worker in self._pool:
                worker.end(kill=self._unfinished > 0)
            self._selector.close()
            os.close(self._wakeup)

    def _start_worker(self) -> None:
        worker = WorkerProcess(self._run.state.options, self._shared_slots)
        self._pool.append(worker)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _send_jobs(self) -> None:
        while self._waiting:
            worker = max(self._pool, key=lambda worker: worker.capacity)
            if worker.capacity == 0:
                return
            number = self._waiting.popleft()
            worker.jobs.append(number)
            job = self._jobs[number]
            # If the worker has ended, reading from it fails, and `_replace_worker` takes its jobs.
            with suppress(OSError):
                worker.connection.send((number, job.slot, *job.sizes, job.file_name))

    def _receive(self) -> None:
        """Wait for threads and for messages, and take one of each worker that has any."""
        for key, _ in self._selector.select(POLL_SECONDS):
            worker = key.data
            if worker is None:
                os.eventfd_read(self._wakeup)
                if self._error is not None:
                    raise self._error
                continue
            with self._lock:
                try:
                    kind, *message = worker.connection.recv()
                except (EOFError, OSError):  # ended; perhaps in the middle of a message
                    self._replace_worker(worker)
                    continue
                if kind == "ready":
                    worker.ready = True
                    continue
                number, result = message
                worker.jobs.remove(number)
                if kind == "failed":
                    raise result
                self._resolve(self._jobs.pop(number), result)

    def _resolve(self, job: Job, outcome: Outcome) -> None:
        if job.builder.ended:  # the source was given up, and the shard with it
            self._free(job.slot)
            return
        if isinstance(outcome, Packed):
            outcome = replace(outcome, rows=self._shared_slots.rows(job.slot, outcome.extent))
        job.builder.resolve(job.index, outcome, partial(self._free, job.slot))
        self._progress.done(job.builder.source, outcome, job.bytes_read)

    def _free(self, slot: int) -> None:
        """The pair in a slot is no longer needed. For any thread."""
        self._shared_slots.free(slot)
        self._free_slots.put(slot)

    def _read(self, packer: SourcePacker) -> None:
        """Put the pairs of a source into slots. In a thread."""
        try:
            with self._lock:
                self._begun[packer] = None
            for builder, pair, bytes_read in read_source(self._run, packer, self._lock):
                slot = self._free_slots.get()
                if slot < 0:  # the run is stopping
                    break
                self._shared_slots.put(slot, pair.jpeg, pair.json)
                sizes = len(pair.jpeg), len(pair.json)
                job = Job(builder, pair.index, pair.file_name, slot, sizes, bytes_read)
                with self._lock:
                    self._jobs[self._count] = job
                    self._waiting.append(self._count)
                    self._count += 1
                os.eventfd_write(self._wakeup, 1)
        except BaseException as error:  # it must reach the run, whatever it is
            self._error = error
        os.eventfd_write(self._wakeup, 1)

    def _replace_worker(self, worker: WorkerProcess) -> None:
        """Start another worker in place of one that ended, and have its jobs done again.

        The job it was decoding may have ended it: a sample to which that happens MAX_DEATHS times
        is rejected. If the last of these workers was killed by SIGKILL, which is how the kernel
        ends processes when memory runs out, the run ends with MemoryError instead.
        """
        self._selector.unregister(worker.connection)
        self._pool.remove(worker)
        how, killed = worker.exit_text()
        if not worker.ready:
            error = MemoryError if killed else PackError
            raise error(f"a worker process {how} before it took work; see its message above")
        self._start_worker()
        self._waiting.extendleft(reversed(worker.jobs))
        if not worker.jobs:
            return
        suspect = worker.jobs[0]
        job = self._jobs[suspect]
        job.deaths += 1
        self._progress.note(
            f"a worker {how} while it decoded {job.file_name}; another one replaces it"
        )
        if job.deaths < MAX_DEATHS:
            return
        detail = f"{job.deaths} workers ended while they decoded it; the last one {how}"
        if killed:  # from outside: the sample is not at fault, and must not be missing
            raise MemoryError(f"{job.builder.source.path}: {job.file_name}: {detail}")
        self._waiting.remove(suspect)
        self._resolve(self._jobs.pop(suspect), Reject(job.file_name, "worker-died", detail))
