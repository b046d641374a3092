"""Tasks on a Ray cluster. Nothing else imports ray.

A task is a call of a function. If its process or node dies, Ray calls it again elsewhere, perhaps
while the lost call still runs: it must do no harm then.

No task is ever cancelled, because Ray aborts this process if one ends in that moment. Who leaves
early disconnects, and Ray ends the processes of every task of this connection.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sa1bpack import interrupts
from sa1bpack.errors import ClusterError, MissingPackage, OptionError, OutputLocked
from sa1bpack.progress import ProgressOption, report, reporting_steps

try:
    import ray
except ImportError as error:
    raise MissingPackage(
        "a Ray cluster needs the package ray: pip install 'ray>=2.40', here and on every node"
    ) from error

# Calls of a task whose process or node dies, after the first.
RETRIES = 5

# How long the head of a cluster may take to accept a connection, in seconds.
CONNECT_SECONDS = 20

# A process whose node is lost may hold its locks for this long, in seconds (NFS: 90).
LOCK_SECONDS = 120

# How often the caller can look for signals while tasks run, in seconds.
POLL_SECONDS = 0.5


_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Needs:
    """A task's demands on its node: a number of cores and of GPUs, and memory in bytes."""

    cores: float
    memory: float
    gpus: float = 0

    def __str__(self) -> str:
        return f"{self.cores:.0f} cores, {self.gpus:.0f} GPU and {self.memory / 1e9:.1f} GB"


@dataclass(frozen=True)
class Died:
    """The outcome of a task whose process or node died in every call.

    Attributes:
        why: how the process or node of the last call ended, in words.
    """

    why: str

    def __str__(self) -> str:
        return f"its task died {RETRIES + 1} times, the last time with {self.why}"


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster; in the end, tasks that still run are ended.

    Meanwhile what is printed goes to stderr. The handlers of signals stay those of this program.
    """
    if ray.is_initialized():
        raise OptionError(
            "ray is initialized in this process, whose tasks would be ended with those of this "
            "call: call ray.shutdown() first, or use the command, in a process of its own"
        )
    where = address or os.environ.get("RAY_ADDRESS", "")
    host, colon, port = where.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():  # else "auto", "local", or what ray itself refuses
        try:  # where nothing listens, ray would try for many minutes
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise ClusterError(f"no Ray cluster at {where}: {error}") from error
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"no Ray cluster at {where}: {error}") from error
    finally:
        with suppress(ValueError):  # not the main thread: its handlers have not changed
            for number, handler in handlers.items():
                signal.signal(number, handler)
    with redirect_stdout(sys.stderr):  # where ray reports processes that died, also in the end
        try:
            yield
        finally:
            ray.shutdown()


def _shortage(needs: Needs) -> str | None:
    """A message if no node can take such a task now."""
    largest = Needs(cores=0, memory=0)
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        resources = node["Resources"]
        cores = resources.get("CPU", 0)
        memory = resources.get("memory", 0)
        gpus = resources.get("GPU", 0)
        if cores >= needs.cores and memory >= needs.memory and gpus >= needs.gpus:
            return None
        largest = Needs(
            cores=max(largest.cores, cores),
            memory=max(largest.memory, memory),
            gpus=max(largest.gpus, gpus),
        )
    return f"no node has {needs} for a task now (the largest have {largest}): waiting for one"


def run_tasks(
    address: str | None,
    function: Callable[..., Any],
    tasks: Mapping[str, Mapping[str, Any]],
    needs: Needs,
    say: Callable[[str], object] = report,
) -> Iterator[tuple[str, Any]]:
    """Run tasks on a cluster, and yield the outcome of each as it ends.

    Leaving the loop early ends the tasks that still run.

    Args:
        address: as in `ray.init`. None: RAY_ADDRESS, or this machine alone.
        function: a function of a module of this package, which every node has.
        tasks: name of each task → keyword arguments of its call.
        needs: what each task asks Ray for.
        say: called with a message if no node can take such a task now: Ray waits for one, perhaps
            in vain. Default: print it on stderr.

    Yields:
        (name, what the function returned, or Died).

    Raises:
        ClusterError: no cluster can be reached.
        OptionError: ray is initialized in this process.
        Whatever a task raises.
    """
    with _connected(address):
        shortage = _shortage(needs)
        if tasks and shortage is not None:
            say(shortage)
        task = ray.remote(function)
        running = {}
        for name, call in tasks.items():
            named = task.options(
                name=f"sa1bpack {name}",
                num_cpus=needs.cores,
                memory=needs.memory,
                num_gpus=needs.gpus,
                max_retries=RETRIES,
            )
            running[named.remote(**call)] = name
        while running:
            interrupts.check()
            ended, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            for reference in ended:
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except ray.exceptions.RayError as error:
                    first = str(error).strip().partition("\n")[0]
                    outcome = Died(f"{type(error).__name__}: {first}")
                yield running.pop(reference), outcome


def run_parts(
    address: str | None,
    function: Callable[..., Any],
    names: Sequence[str],
    call: Mapping[str, Any],
    needs: Needs,
    progress: ProgressOption = None,
    unit: str = "task",
    sizes: Mapping[str, int] | None = None,
) -> tuple[dict[str, Any], dict[str, Died]]:
    """Run tasks, each of which is one part of a job, as `run_tasks` does.

    Args:
        address, function, needs: as in `run_tasks`.
        names: names of the parts: the K-th of the N is called with `part`, (K, N), and with `call`.
        call: keyword arguments of every call.
        progress: the user's option, told the sizes of the tasks that ended, and of all.
        unit: what sizes are counted in.
        sizes: name → size, of the parts that are to be run. None: all, each of size 1.

    Returns:
        name → what its task returned, and name → why it returned nothing.
    """
    if sizes is None:
        sizes = dict.fromkeys(names, 1)
    tasks = {}
    for number, name in enumerate(names, start=1):
        if name in sizes:
            tasks[name] = {**call, "part": (number, len(names))}
    results: dict[str, Any] = {}
    died: dict[str, Died] = {}
    with reporting_steps(progress, unit, sum(sizes.values())) as step:
        for name, outcome in run_tasks(address, function, tasks, needs):
            if isinstance(outcome, Died):
                died[name] = outcome
            else:
                results[name] = outcome
            step(sizes[name])
    return results, died


def once_unlocked(call: Callable[[], _Result]) -> _Result:
    """The result of a call, repeated as long as a lost process holds the lock that it needs.

    Raises OutputLocked if one holds it after LOCK_SECONDS.
    """
    end = time.monotonic() + LOCK_SECONDS
    while True:
        interrupts.check()
        try:
            return call()
        except OutputLocked:
            if time.monotonic() > end:
                raise
        time.sleep(POLL_SECONDS)
