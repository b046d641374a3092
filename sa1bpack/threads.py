"""Threads, and the error if the system refuses to start one.

Every thread of this package is started here: `concurrent.futures` and `threading` raise a bare
RuntimeError, which says neither which limit was reached nor that the data are not at fault.
"""

import errno
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sa1bpack.errors import ThreadRefused

# Limit on the processes and threads of the control group, as it is seen in a container.
_LIMIT_OF_GROUP = Path("/sys/fs/cgroup/pids.max")

# How long a thread waits at a time; it is woken when there is something to do.
_IDLE_SECONDS = 10.0


class ThreadPool(ThreadPoolExecutor):
    """A pool of threads. `submit` and `map` raise ThreadRefused if one cannot be started."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """See ThreadPoolExecutor, which starts a thread here if all others are busy.

        Work that is refused is never done. ThreadPoolExecutor queues it before it starts a thread,
        and so a thread that has become idle may do it all the same: if one has begun, nothing was
        refused, and the future is that of its result; otherwise nobody begins it any more.
        """
        future: Future[Any] = Future()
        try:
            with naming_refusal():
                queued = super().submit(_complete, future, partial(work, *arguments, **options))
        except ThreadRefused:
            if future.cancel():
                raise
        else:
            queued.add_done_callback(partial(_cancel_with, future))
        return future


def _complete(future: Future[Any], call: Callable[[], Any]) -> None:
    """Do the work of a future, unless that was cancelled. In a thread of a pool."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
        # The error's traceback refers to this frame, so this frame must not keep the future.
        del future, call
    else:
        future.set_result(result)


def _cancel_with(future: Future[Any], queued: Future[None]) -> None:
    """Cancel a future if its place in the queue was, by `shutdown(cancel_futures=True)`."""
    if queued.cancelled():
        future.cancel()


class Slots:
    """Places for threads that do something at the same time: others wait until one is free.

    Attributes:
        count: number of places.
    """

    def __init__(self, count: int):
        self.count = count
        self._free = count
        self._changed = threading.Condition()

    def take(self, is_over: Callable[[], bool]) -> bool:
        """Wait for a place and take it. False if nothing is to be done any more.

        Args:
            is_over: whether that is so; `wake` has threads that wait ask again.
        """
        with self._changed:
            while not self._changed.wait_for(lambda: self._free > 0 or is_over(), _IDLE_SECONDS):
                pass
            if is_over():
                return False
            self._free -= 1
            return True

    def give_back(self) -> None:
        """Leave a place to another thread."""
        with self._changed:
            self._free += 1
            self._changed.notify()

    def wake(self) -> None:
        """Have the threads that wait ask whether there is still something to do."""
        with self._changed:
            self._changed.notify_all()


def start_thread(
    work: Callable[[], object], name: str, *, awaited_at_exit: bool = False
) -> threading.Thread:
    """Start a thread, which the process does not wait for when it ends.

    Args:
        work: what it does.
        name: its name.
        awaited_at_exit: `join_awaited` waits for it: it runs code of a user, or of libraries in
            C++, which end the process ("terminate called") if they meet an interpreter that has
            ended. Whoever starts it sees to it that it ends.

    Raises:
        ThreadRefused: the system refuses it.
    """
    if awaited_at_exit:
        work = partial(_run_awaited, work)
    thread = threading.Thread(target=work, name=name, daemon=True)
    if awaited_at_exit:
        _awaited[id(thread)] = thread
    try:
        with naming_refusal():
            thread.start()
    except ThreadRefused:
        _awaited.pop(id(thread), None)
        raise
    return thread


# The threads in progress that the end of the process waits for, by their id.
_awaited: dict[int, threading.Thread] = {}


def _run_awaited(work: Callable[[], object]) -> None:
    try:
        work()
    finally:
        _awaited.pop(id(threading.current_thread()), None)


def join_awaited() -> None:
    """Wait until all threads have ended that are awaited at exit."""
    for thread in list(_awaited.values()):
        thread.join()


@contextmanager
def naming_refusal(started: str = "another thread") -> Iterator[None]:
    """Raise ThreadRefused if the system refuses a thread, or a process, that the block starts.

    Args:
        started: what the block starts.
    """
    try:
        yield
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        raise _refused(started, str(error)) from error
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOMEM) or error.filename is not None:
            raise
        raise _refused(started, str(error.strerror)) from error


def _refused(started: str, reason: str) -> ThreadRefused:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = "no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    of_group = ""
    with suppress(OSError):
        of_group = f", the pids limit of the container is {_LIMIT_OF_GROUP.read_text().strip()}"
    return ThreadRefused(
        f"the system refuses {started} ({reason}); this process has {threading.active_count()} "
        f"threads. `ulimit -u` is {limits}{of_group}: raise the limit (ulimit -u, docker run "
        "--pids-limit, pids.max of the cgroup), end other processes, or use fewer workers and "
        "threads; a thread also needs address space (ulimit -v)"
    )
