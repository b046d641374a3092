"""Threads read, worker processes decode and write, this thread keeps the order.

A pair's outcome takes effect in the order of its tar (Lane.resolve), so a worker holds a decoded
sample until its turn comes and it is told where to write it. No sample waits for another that has
not been sent to a worker yet, and a worker is never sent more than it has buffers for, so the
oldest pair of every source can always move: there is no deadlock.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait

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
from sa1bpack.packing.lane import Lane
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.unit import Accepted, Grant, Outcome, Rejected
from sa1bpack.packing.watch import Watch

# One thread inflates and hashes as much as this many workers decode (benchmarks/inflate.py).
WORKERS_PER_FEEDER = 6

# A sample that was in work while so many workers crashed is rejected.
MAX_DEATHS = 3

# Shards being published wake nobody; they are looked after this often, in seconds.
POLL_SECONDS = 0.05


@dataclass(eq=False)
class Job:
    """One pair on its way through a worker.

    held
        Its worker has decoded it and keeps the rows.
    resolved
        Its outcome is known.
    grant
        Where it goes, once that is known. A job that lost its worker afterwards is done again, and
        then written there.
    deaths
        Workers that ended while they had this job in work.
    """

    pair: PairRead
    worker: WorkerHandle | None = None
    held: bool = False
    resolved: bool = False
    grant: Grant | None = None
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
    slots = workers * JOBS_IN_HAND + 2 * feeders
    with enough_descriptors(needed_with_processes(options, workers, feeders, slots), workers):
        arena = Arena(slots)
        try:
            feeder = Feeder(list(lanes), feeders, arena)
            try:
                dispatcher = _Dispatcher(lanes, options, workers, watch, feeder, arena)
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
        self._number_of: dict[tuple[Lane, int], int] = {}
        self._waiting: deque[int] = deque()
        self._count = 0
        self._crew: list[WorkerHandle] = []
        self._size = workers

    def run(self) -> None:
        """Drive every lane to its end; whatever happens, no worker is left."""
        try:
            for _ in range(self._size):
                self._crew.append(start_worker(self._options, self._arena))
            while self._unfinished:
                self._send_jobs()
                self._receive()
                self._poll_lanes()
        except BaseException:
            for worker in self._crew:
                worker.end(kill=True)
            raise
        for worker in self._crew:
            worker.end()

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
            job = self._jobs[number]
            job.worker = worker
            worker.jobs.append(number)
            pair = job.pair
            self._tell(
                worker, ("job", number, pair.slot, pair.jpeg_bytes, pair.json_bytes, pair.file_name)
            )

    def _tell(self, worker: WorkerHandle, message: tuple) -> None:
        # When it has ended, reading from it tells, and `_bury` takes its jobs back.
        with suppress(OSError):
            worker.connection.send(message)

    def _receive(self) -> None:
        """Wait for news and deal with all of it."""
        sources = {worker.connection: worker for worker in self._crew}
        for source in wait([*sources, self._feeder.wakeup], timeout=POLL_SECONDS):
            if source is self._feeder.wakeup:
                for event in self._feeder.drain():
                    self._take_event(event)
                continue
            while source.poll():
                try:
                    message = source.recv()
                except (EOFError, OSError):  # ended; perhaps in the middle of a message
                    self._bury(sources[source])
                    break
                self._take_message(sources[source], *message)

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
                self._number_of[lane, index] = self._count
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
        """Throw away the jobs that a source has left when it was given up.

        Those that a worker decodes or writes just now are closed when it says so.
        """
        for number in [n for n, job in self._jobs.items() if job.pair.lane is lane]:
            job = self._jobs[number]
            if job.wanted:
                continue
            if job.worker is None:
                self._waiting.remove(number)
                self._close(number)
            elif job.held and job.grant is None:
                self._drop(number)

    # What the workers say

    def _take_message(self, worker: WorkerHandle, kind: str, *message) -> None:
        match kind:
            case "ready":
                worker.ready = True
            case "resolved":
                self._take_outcome(*message)
            case "written":
                job = self._jobs[message[0]]
                if job.wanted:
                    job.pair.lane.written(job.pair.index)
                self._close(message[0])
            case "failed":
                number, error = message
                if self._jobs[number].wanted:
                    raise error
                self._close(number)

    def _take_outcome(self, number: int, outcome: Outcome) -> None:
        job = self._jobs[number]
        if not job.wanted:
            if isinstance(outcome, Accepted):
                self._drop(number)
            else:
                self._close(number)
            return
        job.held = isinstance(outcome, Accepted)
        if not job.resolved:
            self._settle(number, outcome)
        elif not job.held:  # done again, after its first worker died
            name = job.pair.file_name
            raise PackError(f"{name} was decoded once, and could not be again: {outcome}")
        elif job.grant is not None:
            self._tell(job.worker, ("write", number, job.grant.folder, job.grant.at))

    def _settle(self, number: int, outcome: Outcome) -> None:
        """Make an outcome known to the lane, and pass on the grants that follow from it."""
        job = self._jobs[number]
        lane = job.pair.lane
        job.resolved = True
        if not isinstance(outcome, Accepted):
            self._close(number)
        for grant in lane.resolve(job.pair.index, outcome):
            granted = self._number_of[lane, grant.index]
            self._jobs[granted].grant = grant
            # Its worker may have died since; then the next one is told when it has decoded it.
            if self._jobs[granted].held:
                self._tell(self._jobs[granted].worker, ("write", granted, grant.folder, grant.at))
        self._watch.done(lane.source, outcome, job.pair.bytes_read)

    def _drop(self, number: int) -> None:
        """A decoded sample will not be written; its buffers are free."""
        self._tell(self._jobs[number].worker, ("drop", number))
        self._close(number)

    def _close(self, number: int) -> None:
        """Nothing more happens to a job."""
        job = self._jobs.pop(number)
        del self._number_of[job.pair.lane, job.pair.index]
        if job.worker is not None:
            job.worker.jobs.remove(number)
        self._feeder.free(job.pair.slot)

    # When a worker dies

    def _bury(self, worker: WorkerHandle) -> None:
        """Put another worker in place of one that ended, and have its jobs done again.

        The job that it had in work may be what ended it: a sample to which that happens
        MAX_DEATHS times is rejected. Not if the last worker was killed by SIGKILL, which is how the
        kernel ends processes when memory runs out: then the run ends with MemoryError.
        """
        how = worker.exit_text()
        if not worker.ready:
            error = MemoryError if worker.killed else PackError
            raise error(f"a worker process {how} before it took work; see its message above")
        self._crew[self._crew.index(worker)] = start_worker(self._options, self._arena)
        unfinished = (n for n in worker.jobs if not self._jobs[n].held)
        suspect = next(unfinished, next(iter(worker.jobs), None))
        for number in reversed(worker.jobs):
            job = self._jobs[number]
            job.worker, job.held = None, False
            if job.wanted:
                self._waiting.appendleft(number)
            else:
                self._close(number)
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
        if job.resolved:
            raise PackError(f"{name}: {detail}")
        self._waiting.remove(number)
        self._settle(number, Rejected(name, "worker-died", detail))
