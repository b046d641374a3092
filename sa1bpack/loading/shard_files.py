"""Open files of shards, from which batches are read: one budget per process.

The most recently used files stay open as long as their shards do, two per shard, together at most a
quarter of the process's limit of open files, however many Loaders there are.
"""

import os
import resource
import threading
import weakref
from collections import OrderedDict

import numpy as np

from sa1bpack.dataset.shards import CACHE, OpenShard, is_shortage
from sa1bpack.disk.direct import open_direct_if_possible
from sa1bpack.loading.batch.load_samples import NO_FILE

_MOST_SHARDS = 4096


def most_open_shards() -> int:
    """Shards whose files stay open: an eighth of the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_SHARDS
    return min(max(soft // 8, 1), _MOST_SHARDS)


class ShardFiles:
    """Files of a shard and of its side arrays, open as long as this object lives.

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


class _Cache:
    """The most recently used files, by shard, until their shard is closed.

    Files are opened and closed without holding the lock. Shards may be collected at any point, so
    every change of the dictionary is one step.
    """

    def __init__(self):
        self._pid, self._lock = os.getpid(), threading.Lock()
        # The id of a shard identifies it as long as the reference stored beside it lives: a pack
        # that was reopened, perhaps after a repair, has other shards.
        self._files: OrderedDict[tuple, tuple[weakref.ref, ShardFiles]] = OrderedDict()

    def get(self, shard: OpenShard, names: tuple[str, ...], direct: bool) -> ShardFiles:
        """The files of these arrays and of the side arrays of a shard; opened if need be."""
        if self._pid != os.getpid():  # forked: another thread may have held the lock
            self._pid, self._lock = os.getpid(), threading.Lock()
        key = (id(shard), names, direct)
        with self._lock:
            held = self._files.pop(key, None)
            if held is not None:
                self._files[key] = held  # at the end: it was used last
                return held[1]
        # Without holding the lock: other threads need not wait for a slow file system.
        found = [(shard.path(name), len(shard.arrays[name])) for name in names]
        found += [(part.path, len(part.values)) for part in shard.sides]
        try:
            files = ShardFiles(found, direct)
        except OSError as error:
            if not is_shortage(error):
                raise
            self._drop_half()
            files = CACHE.with_resources(lambda: ShardFiles(found, direct))
        reference = weakref.ref(shard, lambda _: self._files.pop(key, None))
        most, dropped = most_open_shards(), []
        with self._lock:
            self._files[key] = (reference, files)
            count = sum(len(held[1]) for held in list(self._files.values()))
            while count > 2 * most and len(self._files) > 1:
                dropped.append(self._files.popitem(last=False)[1])
                count -= len(dropped[-1][1])
        return files

    def _drop_half(self) -> None:
        with self._lock:
            count = (len(self._files) + 1) // 2
            dropped = [self._files.popitem(last=False) for _ in range(count)]
        del dropped


_cache = _Cache()


def shard_files(shard: OpenShard, names: tuple[str, ...], direct: bool = False) -> ShardFiles:
    """The files of these arrays, then of the shard's side arrays, open as long as the caller keeps
    them.

    direct  open them past the page cache, if their file system can do that

    Raises OSError if one cannot be opened, ResourceShortage if the system refuses more open files.
    """
    return _cache.get(shard, names, direct)
