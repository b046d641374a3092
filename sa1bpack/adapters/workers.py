"""Worker processes of a DataLoader: what they send, and how one that ends is noticed."""

import errno
import os
import pickle
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from sa1bpack.errors import LoaderError, LoaderTimeout, ResourceShortage
from sa1bpack.threads import start_thread
from sa1bpack.user_code import error_text

# Batches of worker processes are sent through this folder.
SHARED_MEMORY = Path("/dev/shm")

# How often a consumer that waits for a batch looks whether a worker has ended, and a worker whether
# its main process has, in seconds.
LOOK_SECONDS = 0.5

# What torch and Python say where the system refuses shared memory, or another open file.
_NO_MEMORY = re.compile(r"unable to [^<]*</?(torch_[^/>]*)>")
_NO_FILES = re.compile(r"received \d+ items of ancdata|Too many open files")
_TIMED_OUT = "DataLoader timed out"

# Signal that ended a worker → what that may mean.
_REASONS = {
    "SIGKILL": "often the system does that for lack of memory (see dmesg): use fewer workers",
    "SIGTERM": "another program has asked it to end",
    "SIGBUS": f"often {SHARED_MEMORY} is full, or a file of the pack was cut short",
}


def end_with_parent() -> None:
    """Have this worker process end soon after the one that it belongs to, whatever it is doing.

    torch looks for that every five seconds, and while it waits for the next batch alone: a worker
    within a batch that does not come, as of a store that does not answer, would outlive the job.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    start_thread(watch, "sa1bpack-parent")


def made_to_send(collate: Callable[[Any], Any], samples: Any) -> Any:
    """The batch that a collate function makes of samples; in a worker process, ready to be sent."""
    if get_worker_info() is None:
        return collate(samples)
    with naming_shortage():
        batch = collate(samples)
    return Pickled(batch)


class Pickled:
    """What a worker sends, as bytes: unpickled, it is the object itself.

    torch pickles what a worker returns in another thread, where an error is printed and the object
    is lost: the consumer would wait for it until its timeout. Here it is pickled where an error
    reaches the consumer.
    """

    def __init__(self, value: Any):
        """Pickle an object. Raises ResourceShortage, and LoaderError if it cannot be pickled."""
        with naming_shortage():
            try:
                self._data = bytes(ForkingPickler.dumps(value))
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise LoaderError(
                    f"a batch cannot be sent from a worker process: {error_text(error)}. What a "
                    "transform puts into samples must be picklable, or choose num_workers=0"
                ) from error

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)


@contextmanager
def naming_shortage() -> Iterator[None]:
    """Turn a refusal of shared memory or of an open file into a ResourceShortage."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        shortage = shortage_of(error)
        if shortage is None:
            raise
        raise shortage from error


def shortage_of(error: BaseException) -> ResourceShortage | None:
    """The ResourceShortage that an error of torch or of the system is; None if it is another."""
    text = str(error)
    if isinstance(error, ResourceShortage):
        return error
    if getattr(error, "errno", None) == errno.EMFILE or _NO_FILES.search(text):
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ResourceShortage(
            "a batch of a worker process cannot be sent or received, because `ulimit -n` allows "
            f"{files} open files, and each tensor takes one: raise it (`ulimit -n 65536`), use "
            "fewer workers or a smaller prefetch_factor, or call "
            "torch.multiprocessing.set_sharing_strategy('file_system') at the start of the program"
        )
    refused = _NO_MEMORY.search(text)
    if refused is None:
        return None
    with suppress(OSError):  # torch leaves the file
        (SHARED_MEMORY / refused[1]).unlink()
    return ResourceShortage(
        f"{SHARED_MEMORY} has no room for a batch of a worker process: provide more (docker run "
        "--shm-size), or use fewer workers, a smaller batch_size or prefetch_factor, or "
        "sa1bpack.Loader"
    )


class WatchedWorkers(_MultiProcessingDataLoaderIter):
    """torch's iterator over batches of worker processes, which notices at once if one has ended.

    torch itself looks at them when the timeout of a batch has passed, unless a signal of theirs
    tells it; it does not count SIGTERM or `os._exit(0)` among those.
    """

    def _try_get_data(self, timeout: float = LOOK_SECONDS) -> tuple[bool, Any]:
        """Wait for the data of a batch. Returns whether it came, and the data."""
        end = time.monotonic() + timeout
        while True:
            left = max(0.0, end - time.monotonic())
            came, data = super()._try_get_data(  # type: ignore[no-untyped-call] # torch's
                min(left, LOOK_SECONDS)
            )
            if came or left <= LOOK_SECONDS:
                return came, data

    def explained(self, error: BaseException, subject: Callable[[int], str]) -> BaseException:
        """The error that reaches the consumer, for one that torch raised.

        Args:
            error: the error.
            subject: number of a batch that was sent in this epoch → what it is, as text.
        """
        shortage = shortage_of(error)
        if shortage is not None:
            return shortage
        if not isinstance(error, RuntimeError):
            return error
        for number, worker in enumerate(self._workers):
            if worker.exitcode is not None:
                unfinished = [
                    batch for batch, task in self._task_info.items() if tuple(task) == (number,)
                ]
                doing = ""
                if unfinished:
                    doing = f" It was making {subject(min(unfinished))}."
                return LoaderError(
                    f"worker process {worker.pid} of the DataLoader has ended, "
                    f"{_how_it_ended(worker.exitcode)}.{doing}"
                )
        if str(error).startswith(_TIMED_OUT):
            awaited = subject(self._rcvd_idx)
            return LoaderTimeout(
                f"{awaited} was not ready after {self._timeout:g} seconds: a transform that takes "
                "longer, or a stuck disk; raise timeout if that is meant"
            )
        return error


def _how_it_ended(code: int) -> str:
    """How a process ended, and what that may mean."""
    if code == 0:
        return "with exit code 0: another program has asked it to (SIGTERM), or a transform did it"
    if code > 0:
        return f"with exit code {code}: a transform, or a library that it calls, has ended it"
    name = f"signal {-code}"
    if -code in [*signal.Signals]:
        name = signal.Signals(-code).name
    return f"by {name}: {_REASONS.get(name, 'a library that its transform calls has failed')}"
