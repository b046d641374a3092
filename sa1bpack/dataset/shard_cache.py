"""The open shards of a process: opened once, kept within one budget of memory maps."""

import gc
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from sa1bpack.dataset.open_shard import OpenShard
from sa1bpack.dataset.resources import is_shortage, mapping_budget, shortage

_T = TypeVar("_T")


class CacheEntry:
    """Where one shard of one pack is kept while it is open: `opened`, else None."""

    __slots__ = ("opened",)

    def __init__(self):
        self.opened: OpenShard | None = None


class ShardCache:
    """Shards of all packs of the process, those that were used least recently dropped first.

    A shard counts with the memory maps that it has. What is dropped is unmapped once no view of it
    is in use any more. Nothing is opened, unmapped or collected under the lock. The lock can be
    taken again by the thread that has it: a garbage collection may begin anywhere, and a finalizer
    that it calls may read samples.
    """

    def __init__(self, limit: int | None = None):
        """limit: memory maps of all shards together; None: `mapping_budget()`."""
        self._limit = limit
        self._lock = threading.RLock()
        self._recent: OrderedDict[CacheEntry, int] = OrderedDict()  # memory maps; last used, last
        self._mappings = 0  # sum of the above
        self._left: deque[CacheEntry] = deque()  # of packs that are gone; still counted
        self._opening: dict[CacheEntry, Future[OpenShard]] = {}
        _caches.add(self)

    @property
    def limit(self) -> int:
        """Memory maps that all open shards may have together."""
        if self._limit is None:
            self._limit = mapping_budget()
        return self._limit

    @property
    def mappings(self) -> int:
        """Memory maps of the shards that are kept."""
        with self._lock:
            self._settle()
            return self._mappings

    def touch(self, entry: CacheEntry) -> None:
        """Note that a shard is used. Needs no lock: it is one step of the interpreter."""
        try:
            self._recent.move_to_end(entry)
        except KeyError:  # dropped meanwhile; the caller has hold of it
            return
        if (opened := entry.opened) is not None:
            for lease in opened.leases:
                lease.touch()

    def keep(self, entry: CacheEntry, opened: OpenShard) -> OpenShard:
        """Keep a shard that was opened, and drop others for it; returns the one that is kept."""
        limit, dropped = self.limit, []
        with self._lock:
            self._settle()
            if entry.opened is not None:
                return entry.opened
            entry.opened = opened
            self._recent[entry] = opened.mappings
            self._mappings += opened.mappings
            self.drop_until(limit, dropped)
        return opened  # `dropped` goes here, after the lock

    def leave(self, entries: Iterable[CacheEntry]) -> None:
        """Let go of the shards of a pack that is gone. Takes no lock: finalizers call it."""
        for entry in entries:
            entry.opened = None
            self._left.append(entry)

    def drop(self, chosen: Callable[[OpenShard], bool]) -> None:
        """Let go of those shards that are chosen; who reads one keeps it until then."""
        dropped = []
        with self._lock:
            self._settle()
            for entry in [each for each in self._recent if each.opened and chosen(each.opened)]:
                self._mappings -= self._recent.pop(entry)
                dropped.append(entry.opened)
                entry.opened = None

    def drop_half(self) -> None:
        """Drop half of the cached shards, and collect garbage, which may hold more."""
        dropped: list[OpenShard | None] = []
        with self._lock:
            self._settle()
            self.drop_until(self._mappings // 2, dropped)
        dropped.clear()
        gc.collect()

    def with_resources(self, work: Callable[[], _T]) -> _T:
        """The result of `work`; if the system refuses it a map or a file, free some and try again.

        To be called with no lock held. Raises ResourceShortage if the second try is refused too,
        MemoryError if ordinary memory ran out.
        """
        try:
            return work()
        except MemoryError:  # which is had by mapping, too
            pass
        except OSError as error:
            if not is_shortage(error):
                raise
        self.drop_half()  # here, where the error no longer has hold of maps
        try:
            return work()
        except OSError as error:
            if not is_shortage(error):
                raise
            raise shortage(error) from error

    def claim(self, entry: CacheEntry, future: "Future[OpenShard]") -> "Future[OpenShard]":
        """The future that a shard is being opened for: the given one if nobody else opens it."""
        return self._opening.setdefault(entry, future)  # one step of the interpreter

    def release(self, entry: CacheEntry, future: "Future[OpenShard]") -> None:
        """End a claim. Who waits for it and got neither a shard nor an error, tries again."""
        if self._opening.get(entry) is future:
            del self._opening[entry]
        future.cancel()  # of no effect on one that has an outcome

    def _settle(self) -> None:
        """Subtract what has been freed from the count. The caller holds the lock."""
        while self._left:
            self._mappings -= self._recent.pop(self._left.popleft(), 0)

    def drop_until(self, limit: int, dropped: list[OpenShard | None]) -> None:
        """Drop shards until the others keep within a limit, all but the last.

        `dropped` gets them: they must outlive the lock, which the caller holds.
        """
        while self._mappings > limit and len(self._recent) > 1:
            entry, mappings = self._recent.popitem(last=False)
            self._mappings -= mappings
            dropped.append(entry.opened)
            entry.opened = None

    def after_fork(self) -> None:
        """In a child: other threads are gone, with the lock and the claims that they had."""
        self._lock = threading.RLock()
        self._opening = {}
        self._mappings = sum(self._recent.values())


_caches: "weakref.WeakSet[ShardCache]" = weakref.WeakSet()

# Shared by all packs of the process.
CACHE = ShardCache()


def _after_fork() -> None:
    for cache in list(_caches):
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork)
