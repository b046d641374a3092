"""Which blocks of a folder this process uses: who holds each, and which thread makes it ready.

Within a process, one entry per block says how many hold it and who fetches it: only that thread
changes the process's lock on it.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import Future

from sa1bpack.cache.blocks import PARTIAL, Blocks
from sa1bpack.cache.folder import SLOT_BLOCKS, Cache
from sa1bpack.errors import FormatError

# Errors of samples, by row.
Damage = dict[int, FormatError]


class _Entry:
    """A block that this process uses.

    pins     how often it is held
    ready    present, with this process's shared lock
    damage   of its samples, once it is ready
    outcome  of the thread that makes it ready: None if there is no such thread
    """

    __slots__ = ("damage", "outcome", "pins", "ready")

    def __init__(self):
        self.pins, self.ready = 0, False
        self.damage: Damage = {}
        self.outcome: Future[bool] | None = None


class Uses:
    """The blocks of one folder that this process uses. The methods may be called by any thread."""

    def __init__(self, cache: Cache, blocks: Blocks):
        self._cache, self._blocks = cache, blocks
        self._base = blocks.about.slot * SLOT_BLOCKS
        self._entries: dict[int, _Entry] = {}
        self._lock = threading.RLock()  # of the entries; a finalizer may read samples

    def pin(self, blocks: Iterable[int]) -> tuple[dict[int, Future], dict[int, Future]]:
        """Pin blocks: those that this thread must make ready, or give up; those that others do."""
        mine: dict[int, Future] = {}
        others: dict[int, Future] = {}
        with self._lock:
            for block in blocks:
                entry = self._entries.get(block)
                if entry is None:
                    entry = self._entries[block] = _Entry()
                    entry.ready = self._is_ready(block)
                entry.pins += 1
                if entry.ready:
                    continue
                if entry.outcome is None:
                    entry.outcome = mine[block] = Future()
                else:
                    others[block] = entry.outcome
        return mine, others

    def _is_ready(self, block: int) -> bool:
        """Whether a block is present, and has a shared lock of this process from now on."""
        if self._blocks.stamps[block] <= PARTIAL:
            return False
        if not self._cache.readers.acquire(self._base + block, exclusive=False):
            return False
        if self._blocks.stamps[block] > PARTIAL:
            return True
        self._cache.readers.release(self._base + block)
        return False

    def unpin(self, blocks: Iterable[int]) -> None:
        """Give up pins; what nobody holds is unlocked."""
        with self._lock:
            for block in blocks:
                if (entry := self._entries.get(block)) is not None:  # a forked child has none
                    entry.pins -= 1
                    self._drop_if_unused(block, entry)

    def give_up(self, mine: dict[int, Future]) -> None:
        """End the work on those blocks that are neither ready nor being fetched."""
        for block, outcome in mine.items():
            if not outcome.done() and not outcome.running():
                self.settle(block, False)

    def damage(self, block: int) -> Damage:
        """What is damaged of a pinned block that is ready."""
        return self._entries[block].damage

    def _drop_if_unused(self, block: int, entry: _Entry) -> None:
        if entry.pins == 0 and entry.outcome is None:
            if entry.ready:
                self._cache.readers.release(self._base + block)
            del self._entries[block]

    def settle(self, block: int, found: bool | Damage | BaseException) -> None:
        """End the work on a block.

        found  what is damaged of it if it is ready now; True: nothing; False or an error: it is not
        """
        with self._lock:
            entry = self._entries[block]
            outcome, entry.outcome = entry.outcome, None
            entry.ready = found is True or isinstance(found, dict)
            entry.damage = found if isinstance(found, dict) else {}
            if not entry.ready:
                self._cache.readers.release(self._base + block)
            self._drop_if_unused(block, entry)
        if isinstance(found, BaseException):
            outcome.set_exception(found)
        else:
            outcome.set_result(found is not False)

    def take_over(self, block: int) -> tuple[Future | None, bool]:
        """Who makes a pinned block ready, and whether that is this thread from now on.

        None if it is ready.
        """
        with self._lock:
            entry = self._entries[block]
            if entry.ready:
                return None, False
            mine = entry.outcome is None
            if mine:
                entry.outcome = Future()
            return entry.outcome, mine

    def after_fork(self) -> None:
        """In a child: it holds nothing."""
        self._lock, self._entries = threading.RLock(), {}
