"""Threads read and write, worker processes decode, this thread keeps the order.

A pair keeps its slot of the arena until the rows made of it are written. Slots are given to the
pairs of a source in their order, and so are workers: the oldest pair of every source can always
move, whatever waits behind it, and there is no deadlock.
"""

import selectors
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from sa1bpack.errors import PackError, SourceError
from sa1bpack.packing.engines.arena import Arena
from sa1bpack.packing.engines.crew import WorkerHandle, start_worker
from sa1bpack.packing.engines.descriptors import enough_descriptors, needed_with_processes
from sa1bpack.packing.engines.feeder import (
    Feeder,
    FeederFailed,
    PairRead,
    PassedOver,
    SourceFailed,
    SourceRead,
)  # fmt: skip
from sa1bpack.packing.engines.worker import JOBS_IN_HAND
from sa1bpack.packing.lane import Lane, stopped_on_error
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Packed
from sa1bpack.packing.unit import Outcome, Rejected
from sa1bpack.packing.watch import Watch

# One thread inflates and hashes as much as this many workers decode (benchmarks/inflate.py).
WORKERS_PER_FEEDER = 6

# Slots beyond those of the jobs in hand, for each worker and each thread that reads: rows that wait
# for an earlier pair or for the disk, and pairs that are read ahead.
SLOTS_AHEAD = 1
READ_AHEAD = 2

# A sample that was in work while so many workers crashed is rejected.
MAX_DEATHS = 3

# Shards being published wake nobody; they are looked after this often, in seconds.
POLL_SECONDS = 0.05


@dataclass(eq=False)
class Job:
    """One pair on its way through a worker.

    deaths
        Workers that ended while they had this job in work.
    """

    pair: PairRead
    deaths: int = 0

    @property
    def wanted(self) -> bool:
        """False when its source was given up, and its shard with it."""
        return self.pair.lane.wants(self.pair.index)


def pack_with_processes(
    lanes: Sequence[Lane], options: PackOptions, workers: int, watch: Watch
) -> None:
    """Pack every lane with `workers` processes. Errors of a source stay in its lane."""
    feeders = min(len(lanes), -(-workers // WORKERS_PER_FEEDER))
    slots = workers * (JOBS_IN_HAND + SLOTS_AHEAD) + feeders * READ_AHEAD
    with enough_descriptors(needed_with_processes(options, workers, feeders, slots), workers):
        arena = Arena(slots, options)
        try:
            feeder = Feeder(list(lanes), feeders, arena)
            try:
                feeder.start()
                dispatcher = _Dispatcher(lanes, options, workers, watch, feeder, arena)
                with stopped_on_error(lanes):
                    dispatcher.run()
            finally:
                feeder.stop()
        finally:
            arena.close()


class _Dispatcher:
    def __init__(self, lanes, options, workers, watch, feeder, arena):
        self._begun: dict[Lane, None] = {}  # in their order; a run may have a thousand lanes
        self._unfinished = len(lanes)
        self._options: PackOptions = options
        self._watch: Watch = watch
        self._feeder: Feeder = feeder
        self._arena: Arena = arena
        self._jobs: dict[int, Job] = {}
        self._waiting: deque[int] = deque()
        self._count = 0
        self._crew: list[WorkerHandle] = []
        self._size = workers
        self._selector = selectors.DefaultSelector()
        self._selector.register(feeder.wakeup, selectors.EVENT_READ)

    def run(self) -> None:
        """Drive every lane to its end; whatever happens, no worker is left."""
        try:
            for _ in range(self._size):
                self._hire()
            while self._unfinished:
                self._send_jobs()
                self._receive()
                self._poll_lanes()
            for worker in self._crew:
                worker.end()
        except BaseException:
            for worker in self._crew:
                worker.end(kill=True)
            raise
        finally:
            self._selector.close()

    def _hire(self) -> None:
        worker = start_worker(self._options, self._arena)
        self._crew.append(worker)
        self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _poll_lanes(self) -> None:
        for lane in list(self._begun):
            lane.poll()
            if lane.finished:
                del self._begun[lane]
                self._unfinished -= 1

    def _send_jobs(self) -> None:
        while self._waiting:
            worker = max(self._crew, key=lambda worker: worker.room)
            if worker.room == 0:
                return
            number = self._waiting.popleft()
            worker.jobs.append(number)
            pair = self._jobs[number].pair
            # When the worker has ended, reading from it tells, and `_bury` takes its jobs back.
            with suppress(OSError):
                worker.connection.send(
                    (number, pair.slot, pair.jpeg_bytes, pair.json_bytes, pair.file_name)
                )

    def _receive(self) -> None:
        """Wait for news; take one message of each worker that has any, and all of the feeder."""
        for key, _ in self._selector.select(POLL_SECONDS):
            worker = key.data
            if worker is None:
                for event in self._feeder.drain():
                    self._take_event(event)
                continue
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):  # ended; perhaps in the middle of a message
                self._bury(worker)
            else:
                self._take_message(worker, *message)

    # What the feeder says

    def _take_event(self, event) -> None:
        if isinstance(event, FeederFailed):
            raise event.error
        if not event.lane.finished:
            self._begun[event.lane] = None
        match event:
            case PassedOver(lane, index, digest, bytes_read):
                if lane.error is None:
                    self._pass_over(lane, index, digest)
                    self._watch.passed_over(lane.source, bytes_read)
            case PairRead(lane, index, digest):
                if lane.error is not None:
                    self._feeder.free(event.slot)
                    return
                lane.begin(index, digest)
                self._jobs[self._count] = Job(event)
                self._waiting.append(self._count)
                self._count += 1
            case SourceRead(lane, reader, pairs):
                if lane.error is None:
                    for reject in lane.end(reader, pairs):
                        self._watch.reject(lane.source, reject)
                    self._drop_unwanted(lane)
                self._watch.source_done(lane.source)
            case SourceFailed(lane, error):
                if lane.error is None:
                    lane.fail(error)
                    self._drop_unwanted(lane)
                self._watch.source_done(lane.source)

    def _pass_over(self, lane: Lane, index: int, digest: bytes) -> None:
        try:
            lane.pass_over(index, digest)
        except SourceError as error:
            lane.fail(error)
            self._drop_unwanted(lane)
            self._watch.source_done(lane.source)

    def _drop_unwanted(self, lane: Lane) -> None:
        """Throw away the waiting jobs of a source that was given up.

        Those that a worker has are closed when it says that they are done.
        """
        for number in [n for n in self._waiting if self._jobs[n].pair.lane is lane]:
            if not self._jobs[number].wanted:
                self._waiting.remove(number)
                self._feeder.free(self._jobs.pop(number).pair.slot)

    # What the workers say

    def _take_message(self, worker: WorkerHandle, kind: str, *message) -> None:
        if kind == "ready":
            worker.ready = True
            return
        number, result = message
        worker.jobs.remove(number)
        job = self._jobs.pop(number)
        if not job.wanted:
            self._feeder.free(job.pair.slot)
        elif kind == "failed":
            raise result
        else:
            self._take_outcome(job, result)

    def _take_outcome(self, job: Job, outcome: Outcome) -> None:
        pair = job.pair
        if isinstance(outcome, Packed):
            outcome = replace(outcome, rows=self._arena.rows(pair.slot, outcome.extent))
        pair.lane.resolve(pair.index, outcome, partial(self._feeder.free, pair.slot))
        self._watch.done(pair.lane.source, outcome, pair.bytes_read)

    # When a worker dies

    def _bury(self, worker: WorkerHandle) -> None:
        """Put another worker in place of one that ended, and have its jobs done again.

        The job that it had in work may be what ended it: a sample to which that happens
        MAX_DEATHS times is rejected. Not if the last worker was killed by SIGKILL, which is how the
        kernel ends processes when memory runs out: then the run ends with MemoryError.
        """
        self._selector.unregister(worker.connection)
        self._crew.remove(worker)
        how = worker.exit_text()
        if not worker.ready:
            error = MemoryError if worker.killed else PackError
            raise error(f"a worker process {how} before it took work; see its message above")
        self._hire()
        suspect = next(iter(worker.jobs), None)
        for number in reversed(worker.jobs):
            if self._jobs[number].wanted:
                self._waiting.appendleft(number)
            else:
                self._feeder.free(self._jobs.pop(number).pair.slot)
        if suspect in self._jobs:
            self._strike(suspect, how, worker.killed)

    def _strike(self, number: int, how: str, killed: bool) -> None:
        job = self._jobs[number]
        job.deaths += 1
        name = job.pair.file_name
        self._watch.note(f"a worker {how} while it decoded {name}; another one goes on")
        if job.deaths < MAX_DEATHS:
            return
        detail = f"{job.deaths} workers ended while they decoded it; the last one {how}"
        if killed:  # from outside: the sample is not at fault, and may not be missing for it
            raise MemoryError(f"{job.pair.lane.source.path}: {name}: {detail}")
        self._waiting.remove(number)
        self._take_outcome(self._jobs.pop(number), Rejected(name, "worker-died", detail))
