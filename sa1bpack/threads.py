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
from pathlib import Path
from typing import Any

from sa1bpack.errors import ThreadRefused

# Limit on the processes and threads of the control group, as it is seen in a container.
_LIMIT_OF_GROUP = Path("/sys/fs/cgroup/pids.max")


class ThreadPool(ThreadPoolExecutor):
    """A pool of threads. `submit` and `map` raise ThreadRefused if one cannot be started."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """See ThreadPoolExecutor, which starts a thread here if all others are busy."""
        with naming_refusal():
            return super().submit(work, *arguments, **options)


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread, which the process does not wait for when it ends.

    Args:
        work: what it does.
        name: its name.

    Raises:
        ThreadRefused: the system refuses it.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    with naming_refusal():
        thread.start()
    return thread


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
