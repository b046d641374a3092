"""Open files of shards, which batches are read from: one budget for the whole process.

The files that were used last stay open, two per shard, together at most a quarter of the process's
limit of open files, however many Loaders there are. A file that is used meanwhile stays open
until nobody needs it.
"""

import os
import resource
import threading
import weakref

from sa1bpack.batch.copy_samples import NO_FILE
from sa1bpack.dataset.shards import OpenShard

_MOST_SHARDS = 4096


def most_open_shards() -> int:
    """Shards whose files stay open: an eighth of the soft limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_SHARDS
    return min(max(soft // 8, 1), _MOST_SHARDS)


class ShardFiles:
    """The files of two arrays of a shard, open as long as this lives.

    descriptors  of the two; NO_FILE for an array without rows
    """

    def __init__(self, shard: OpenShard, names: tuple[str, str]):
        """Open them. Raises OSError."""
        self.descriptors = [NO_FILE, NO_FILE]
        for number, name in enumerate(names):
            if len(shard.arrays[name]):
                self.descriptors[number] = os.open(shard.path(name), os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self):
        for descriptor in self.descriptors:
            if descriptor >= 0:
                os.close(descriptor)


class _Cache:
    """The files that were used last, by shard. Files are opened and closed without the lock."""

    def __init__(self):
        self._lock = threading.Lock()
        # A shard's number in memory stands for it as long as the reference beside it lives: a pack
        # that was opened again, perhaps after a repair, has other shards.
        self._files: dict[tuple, tuple[weakref.ref, ShardFiles]] = {}

    def get(self, shard: OpenShard, names: tuple[str, str]) -> ShardFiles:
        key = (id(shard), names)
        with self._lock:
            held = self._files.pop(key, None)
            if held is not None and held[0]() is shard:
                self._files[key] = held  # after the others: it was used last
                return held[1]
        files = ShardFiles(shard, names)  # other threads need not wait for a slow file system
        most, dropped = most_open_shards(), [held]
        with self._lock:
            self._files[key] = (weakref.ref(shard), files)
            while len(self._files) > most:
                dropped.append(self._files.pop(next(iter(self._files))))
        return files

    def forget(self) -> None:
        """Let go of files whose shards are gone; those that a batch still needs stay open."""
        with self._lock:
            gone = [key for key, (shard, _) in self._files.items() if shard() is None]
            dropped = [self._files.pop(key) for key in gone]
        del dropped

    def begin_in_child(self) -> None:
        """After a fork: another thread may have held the lock."""
        self._lock = threading.Lock()


_cache = _Cache()
os.register_at_fork(after_in_child=_cache.begin_in_child)


def shard_files(shard: OpenShard, names: tuple[str, str]) -> ShardFiles:
    """The files of these two arrays, for as long as the caller keeps them. Raises OSError."""
    return _cache.get(shard, names)


def forget_closed_shards() -> None:
    """Close the files of shards that nobody has open any more."""
    _cache.forget()
