"""What batches are read with: open files of shards, and of each thread scratch memory and an AIO
context.

The most recently used files stay open as long as their shards do, two per shard, together at most a
quarter of the process's limit of open files, however many Loaders there are.
"""

import os
import resource
import threading
import time
import weakref
from collections import OrderedDict

import numpy as np

from sa1bpack.dataset.shards import CACHE, OpenShard, is_shortage
from sa1bpack.disk.aio import CONTEXTS, Context
from sa1bpack.disk.direct import aligned, open_direct_if_possible
from sa1bpack.loading.batch.load_samples import NO_FILE, Means, Place, Samples, load_samples
from sa1bpack.loading.stats import Read

_MOST_SHARDS = 4096


def most_open_shards() -> int:
    """Shards whose files stay open: an eighth of the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_SHARDS
    return min(max(soft // 8, 1), _MOST_SHARDS)


class ShardFiles:
    """Files of a shard and of its features, open as long as this object lives.

    table  int64 (k, 3): the last columns of `load_samples.Samples.files` for each: its descriptor,
           NO_FILE for an array without rows; whether it is opened past the page cache; and, known
           of those, whether the system tells this process which of its pages are in memory
    """

    def __init__(self, files: list[tuple[str, int]], direct: bool):
        """Open them: path, and rows of the array. Raises OSError."""
        self.table = np.tile(np.array([NO_FILE, 0, 0]), (len(files), 1))
        for (path, rows), entry in zip(files, self.table, strict=True):
            if not rows:
                continue
            if direct and (file := open_direct_if_possible(path)) is not None:
                entry[:] = file, True, tells_what_is_in_memory(path, file)
            else:
                entry[0] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __len__(self) -> int:
        return len(self.table)

    def __del__(self, close=os.close):  # bound: at interpreter exit `os` may be gone
        for descriptor in self.table[:, 0].tolist():
            if descriptor >= 0:
                close(descriptor)


def tells_what_is_in_memory(path: str, file: int) -> bool:
    """Whether mincore answers truthfully; to others than the owner and writers it says "all"."""
    return os.fstat(file).st_uid == os.geteuid() or os.access(path, os.W_OK)


class OpenFiles:
    """The most recently used files, by shard, until their shard is closed.

    Files are opened and closed without holding the lock. Shards may be collected at any point, so
    every change of the dictionary is one step.
    """

    def __init__(self):
        self._lock = threading.Lock()
        # The id of a shard identifies it as long as the reference stored beside it lives: a pack
        # that was reopened, perhaps after a repair, has other shards.
        self._files: OrderedDict[tuple, tuple[weakref.ref, ShardFiles]] = OrderedDict()

    def get(self, shard: OpenShard, names: tuple[str, ...], direct: bool) -> ShardFiles:
        """The files of these arrays, then of the shard's features, open as long as the caller
        keeps them.

        direct  open them past the page cache, if their file system can do that

        Raises OSError if one cannot be opened, ResourceShortage if the system refuses more.
        """
        key = (id(shard), names, direct)
        with self._lock:
            held = self._files.pop(key, None)
            if held is not None:
                self._files[key] = held  # at the end: it was used last
                return held[1]
        # Without holding the lock: other threads need not wait for a slow file system.
        found = [(shard.path(name), len(shard.arrays[name])) for name in names]
        found += [(part.path, len(part.values)) for part in shard.features]
        try:
            files = ShardFiles(found, direct)
        except OSError as error:
            if not is_shortage(error):
                raise
            dropped = self._least_recent(len(self._files))  # about half of the files
            del dropped
            files = CACHE.with_resources(lambda: ShardFiles(found, direct))
        reference = weakref.ref(shard, lambda _: self._files.pop(key, None))
        with self._lock:
            self._files[key] = (reference, files)
        dropped = self._least_recent(2 * most_open_shards())
        del dropped
        return files

    def _least_recent(self, most: int) -> list:
        """Take out files until there are at most so many, or those of one shard; returns them, for
        the caller to close, which holds no lock."""
        dropped = []
        with self._lock:
            count = sum(len(files) for _, files in list(self._files.values()))
            while count > most and len(self._files) > 1:
                dropped.append(self._files.popitem(last=False)[1])
                count -= len(dropped[-1])
        return dropped

    def after_fork(self) -> None:
        """In a child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


# Shared by all Loaders of the process.
OPEN_FILES = OpenFiles()
os.register_at_fork(after_in_child=OPEN_FILES.after_fork)


# Scratch memory that a thread begins with; it grows to what its samples need.
_FIRST_SCRATCH = 1 << 20


class SampleReader:
    """Scratch memory and, to read past the page cache, a context of the system.

    For one thread at a time, which calls `close` when it ends.
    """

    def __init__(self, direct: bool, scratch: np.ndarray | None = None):
        """`scratch`: memory of a reader that was closed; None: new memory. It grows as needed.

        Raises ResourceShortage or OSError if the system refuses a context.
        """
        self.direct = direct
        self._counts = np.zeros(4, np.int64)  # see load_samples.CACHED
        self._spent = np.zeros(1, np.int64)  # nanoseconds
        self._reads: list[Read] = []
        self._scratch = aligned(_FIRST_SCRATCH) if scratch is None else scratch
        self._context: Context | None = CONTEXTS.take() if direct else None

    def load(self, samples: Samples, place: Place, first: int, stop: int) -> None:
        """Load samples `first` to `stop` of a batch: `load_samples`, until its scratch memory
        suffices.

        Raises OSError if the context is unusable, MemoryError if there is no scratch memory.
        """
        begin = time.perf_counter()
        context = 0 if self._context is None else self._context.value
        self._counts[:] = 0
        while outcome := load_samples(
            Means(context, self._scratch, self._counts, self._spent), samples, place, first, stop
        ):
            if outcome < 0:
                broken, self._context = self._context, None
                broken.close()  # its requests write to the buffer until it is closed
                self._context = CONTEXTS.take()
                raise OSError(-outcome, f"io_getevents: {os.strerror(-outcome)}")
            self._scratch = aligned(outcome * 5 // 4)
        counts = self._counts.tolist()
        self._reads.append(Read(begin, begin + self._spent.item() / 1e9, *counts))

    def taken(self) -> list[Read]:
        """The calls since this was asked last, in their order."""
        reads, self._reads = self._reads, []
        return reads

    def close(self) -> np.ndarray:
        """Give the context back, and return the scratch memory."""
        context, self._context = self._context, None
        if context is not None:
            CONTEXTS.give_back(context)
        return self._scratch
