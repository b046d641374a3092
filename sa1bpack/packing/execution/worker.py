"""A worker process: makes samples of the pairs it is sent, and stores them beside the pairs.

Run as `python -m sa1bpack.packing.execution.worker SOCKET MEMORY COUNT`, the first two
inherited descriptors. A fresh interpreter rather than a fork: the parent has threads, and a fork
copies their locks. SIGINT and SIGTERM are blocked here: the parent handles them, and closes the
socket.

Messages to the worker: first the PackOptions, then (number, slot, jpeg bytes, json bytes, file
name) for each job. From it: ("ready",), ("resolved", number, Outcome), ("failed", number, error).
The rows of a Packed are in the slot, not in the message. The worker ends with the socket.
"""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from sa1bpack.errors import PackError
from sa1bpack.interrupts import SIGNALS
from sa1bpack.packing.execution.shared_slots import SharedSlots
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Packed, attempt, warm_up

# Libraries' own threads would only compete with the other workers.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@dataclass
class WorkerProcess:
    """One worker process.

    jobs
        Numbers of the jobs it holds, in the order sent; at most JOBS_PER_WORKER.
    """

    process: subprocess.Popen
    connection: Connection
    ready: bool = False
    jobs: list[int] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        """How many more jobs it may be sent."""
        return JOBS_PER_WORKER - len(self.jobs) if self.ready else 0

    def end(self, kill: bool = False) -> None:
        """Close the socket, which ends the process, and wait for it."""
        self.connection.close()
        if kill:
            self.process.kill()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it, which no crash does."""
        return self.process.returncode == -signal.SIGKILL

    def exit_text(self) -> str:
        """How a process that closed its socket ended."""
        self.end()
        code = self.process.returncode
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if self.killed else ""
        return f"was killed by {name}{hint}"


def start_worker(options: PackOptions, shared_slots: SharedSlots) -> WorkerProcess:
    """Start one worker; it sends ("ready",) once it takes jobs.

    SIGINT and SIGTERM are blocked meanwhile, which it inherits: terminals and job schedulers send
    them to every process of a run, and only the parent handles them. It closes the sockets, which
    ends the workers.
    """
    mine, its = socket.socketpair()
    connection, process = Connection(mine.detach()), None
    try:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with its:
                descriptors = its.fileno(), shared_slots.descriptor
                process = subprocess.Popen(
                    [sys.executable, "-m", __name__, *map(str, (*descriptors, shared_slots.count))],
                    stdin=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    env={
                        **os.environ,
                        **_ONE_THREAD,
                        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    },
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        connection.send(options)
    except BaseException as error:  # Ctrl-C too, delivered once the process has started
        connection.close()
        if process is not None:
            process.kill()
            process.wait()
        if isinstance(error, OSError):
            raise PackError(f"a worker process could not be started: {error}") from error
        raise
    return WorkerProcess(process, connection)


# Jobs a worker holds: the one being decoded and the next.
JOBS_PER_WORKER = 2


def main(descriptor: int, slots_descriptor: int, count: int) -> None:
    """Serve one parent until it closes the socket."""
    parent = Connection(descriptor)
    try:
        options = parent.recv()
        _serve(parent, SharedSlots(count, options, slots_descriptor), options)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent has ended or closed the socket: nothing here needs an orderly end


def _serve(parent: Connection, shared_slots: SharedSlots, options: PackOptions) -> None:
    warm_up(options)
    parent.send(("ready",))
    while True:
        number, slot, jpeg_bytes, json_bytes, file_name = parent.recv()
        pair = shared_slots.pair(slot, jpeg_bytes, json_bytes)
        try:
            outcome = attempt(file_name, *pair, options, shared_slots.buffers(slot))
            if isinstance(outcome, Packed):
                shared_slots.store(slot, outcome)
                outcome = replace(outcome, rows={})
        except (MemoryError, OSError) as error:  # not the sample's fault: the run ends
            if isinstance(error, MemoryError):
                error = MemoryError(f"{file_name}: {error}")
            parent.send(("failed", number, error))
        else:
            parent.send(("resolved", number, outcome))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
