"""Worker processes, as their parent starts and ends them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from sa1bpack.errors import PackError
from sa1bpack.packing.execution.shared_slots import SharedSlots
from sa1bpack.packing.execution.worker import JOBS_PER_WORKER
from sa1bpack.packing.options import PackOptions

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


@contextmanager
def _signals_kept_from_children() -> Iterator[None]:
    """Block SIGINT and SIGTERM, which a child inherits.

    Terminals and job schedulers send them to every process of a run. Only the parent handles them:
    it closes the sockets, which ends the workers.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(options: PackOptions, shared_slots: SharedSlots) -> WorkerProcess:
    """Start one worker; it sends ("ready",) once it takes jobs."""
    mine, its = socket.socketpair()
    connection, process = Connection(mine.detach()), None
    try:
        with its, _signals_kept_from_children():
            process = _start_process(its.fileno(), shared_slots)
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


def _start_process(descriptor: int, shared_slots: SharedSlots) -> subprocess.Popen:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sa1bpack.packing.execution.worker",
            *map(str, (descriptor, shared_slots.descriptor, shared_slots.count)),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=(descriptor, shared_slots.descriptor),
        env={
            **os.environ,
            **_ONE_THREAD,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
    )
