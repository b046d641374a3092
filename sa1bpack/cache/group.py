"""A folder of a cache in use: its samples are made present, and held while they are read.

Every process follows the same rules, by locks of the system on each block (see `locks`), so that
it does not matter which one is killed, or when:

- who reads a block has its shared lock, from before it looks at the stamp until it has read;
- who fetches a block has its exclusive lock, and has set the stamp to PARTIAL before it writes. The
  samples are compared with their checksums in memory, then written, then the stamp says that they
  are present, and the lock becomes a shared one in one step;
- who removes a block has its exclusive lock, and sets the stamp to PARTIAL before it does.

So a present stamp under any lock means complete and checked; and a kill leaves a block as it was,
or PARTIAL, which the next one to lock it overwrites or removes. Within a process, one entry per
block says how many hold it and who fetches it: only that thread changes the process's lock.
"""

import errno
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from sa1bpack.cache.blocks import ABSENT, PARTIAL, Blocks, inode_of, now
from sa1bpack.cache.build import changed, is_replaced
from sa1bpack.cache.contents import Contents
from sa1bpack.cache.fetch import Damage, Fetch
from sa1bpack.cache.locks import PATIENCE
from sa1bpack.cache.requests import Requests, waits
from sa1bpack.cache.room import SLOT_BLOCKS, Cache
from sa1bpack.errors import CacheFull, StoreError
from sa1bpack.format.files import read_at, write_at

# Waits for a block that another process fetches, in seconds.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.0005, 0.02


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


class Held:
    """Samples that are asked for, are present once `wait` has returned, and stay until `release`.

    damage  after `wait`: errors of those that the origin has only damaged
    """

    def __init__(self, group: "Group", rows: Iterable[int]):
        per_block = group.blocks.about.per_block
        self._group, self.damage = group, Damage()
        self._wanted: dict[int, list[int]] = {}
        for row in rows:
            self._wanted.setdefault(row // per_block, []).append(row)
        self._mine, self._others = group.pin(self._wanted)
        self._fetched: list[int] = []

    def begin(self) -> None:
        """Begin to fetch what is missing, as far as that goes without waiting."""
        self._group.begin(self._mine, self._fetched)

    def wait(self, count: bool) -> None:
        """Wait until the samples are present; the caller releases them, whatever happens.

        count  them as hits or misses

        Raises StoreError if they cannot be fetched, CacheFull if there is no room, OSError if the
        disk of the cache fails.
        """
        group, wanted = self._group, self._wanted
        if any(not each.done() for each in (*self._mine.values(), *self._others.values())):
            with waits():
                self._make_ready()
        else:
            self._make_ready()
        for block, own in wanted.items():
            damage = group.damage(block)
            self.damage |= {row: damage[row] for row in own if row in damage}
        group.blocks.touch(list(wanted))
        if count:
            missed = sum(len(wanted[block]) for block in self._fetched)
            group.requests.count(sum(map(len, wanted.values())) - missed, missed)

    def _make_ready(self) -> None:
        self._group.make_ready(self._mine, self._fetched)
        for block, outcome in self._others.items():
            self._fetched += self._group.wait_for(block, outcome)

    def release(self) -> None:
        """Let the samples be removed again."""
        wanted, self._wanted = self._wanted, {}
        self._group.give_up(self._mine)
        self._group.unpin(wanted)


class Group:
    """The samples of one folder of a cache. One object per process and folder.

    folder    the folder
    blocks    its Blocks
    contents  its Contents
    """

    def __init__(
        self, cache: Cache, blocks: Blocks, contents: Contents, requests: Requests, path: str
    ):
        """path: of the folder in the origin."""
        self.folder, self.blocks, self.contents = blocks.folder, blocks, contents
        self.requests = requests
        self._cache, self._path = cache, path
        self._base = blocks.about.slot * SLOT_BLOCKS
        self._files = [inode_of(path) for path in blocks.paths()]  # which memory maps are of
        self._entries: dict[int, _Entry] = {}
        self._lock = threading.RLock()  # of the entries; a finalizer may read samples

    @property
    def mappings(self) -> int:
        """Memory maps that it has once all its small arrays are in use."""
        return 2 + len(self.contents.arrays) - len(self.contents.large)

    # -------------------------------------------------------------------------------- for readers

    def hold(self, rows: Iterable[int]) -> Held:
        """Pin samples, in any order, and begin to fetch what is missing; then call `wait`."""
        held = Held(self, rows)
        try:
            held.begin()
        except BaseException:
            held.release()
            raise
        return held

    def ask(self, rows: Iterable[int]) -> list[Future]:
        """Begin to fetch what is missing, and hold nothing: for samples that are needed soon.

        Counts them as hits or misses. Returns what is in progress; what fails is tried again by who
        holds the samples.
        """
        rows = list(rows)
        per_block = self.blocks.about.per_block
        wanted: dict[int, int] = {}
        for row in rows:
            block = row // per_block
            if self.blocks.stamps[block] <= PARTIAL:  # only a hint: nothing is held
                wanted[block] = wanted.get(block, 0) + 1
        if not wanted:
            self.requests.count(len(rows), 0)
            return []
        mine, _ = self.pin(wanted)
        fetched: list[int] = []
        try:
            self.begin(mine, fetched)
        finally:
            self.give_up(mine)
            self.unpin(wanted)
        missed = sum(wanted[block] for block in fetched)
        self.requests.count(len(rows) - missed, missed)
        return [mine[block] for block in fetched]

    # ------------------------------------------------------------------------------- entries

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
        if self.blocks.stamps[block] <= PARTIAL:
            return False
        if not self._cache.readers.acquire(self._base + block, exclusive=False):
            return False
        if self.blocks.stamps[block] > PARTIAL:
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

    # ----------------------------------------------------------------------------- making ready

    def begin(self, mine: dict[int, Future], fetched: list[int]) -> None:
        """Make blocks ready, or begin to fetch them, as far as that goes without waiting.

        fetched  gets the blocks that are being fetched
        """
        for block in mine:
            self._begin(block, mine[block], fetched, wait=False)

    def _begin(self, block: int, outcome: Future, fetched: list[int], wait: bool) -> None:
        if outcome.done() or outcome.running():
            return
        state = self._try(block, outcome, wait)
        if state is None:
            fetched.append(block)
        elif state:
            self.settle(block, True)

    def make_ready(self, mine: dict[int, Future], fetched: list[int]) -> None:
        """Wait until the blocks that this thread pinned are ready. Raises as `Held.wait`."""
        pause, limit = _SHORTEST_WAIT, time.monotonic() + PATIENCE
        waiting = [block for block, outcome in mine.items() if not outcome.running()]
        while waiting := [b for b in waiting if not (mine[b].done() or mine[b].running())]:
            for block in waiting:
                self._begin(block, mine[block], fetched, wait=True)
            if all(mine[block].done() or mine[block].running() for block in waiting):
                break
            if time.monotonic() > limit:
                raise StoreError(
                    f"{self.folder}: another process has been fetching a sample for "
                    f"{PATIENCE:.0f} s; was it stopped? End it, and this one fetches it"
                )
            time.sleep(pause * (1 + random.random()))
            pause = min(2 * pause, _LONGEST_WAIT)
        for outcome in mine.values():
            self._result(outcome)

    def wait_for(self, block: int, outcome: Future) -> list[int]:
        """Wait for another thread of this process to make a pinned block ready, or do it.

        Returns the block if this thread fetched it.
        """
        while not self._result(outcome):
            with self._lock:  # it was asked for in advance, and given up
                entry = self._entries[block]
                if entry.ready:
                    break
                mine = entry.outcome is None
                if mine:
                    entry.outcome = Future()
                outcome = entry.outcome
            if mine:
                fetched: list[int] = []
                try:
                    self.make_ready({block: outcome}, fetched)
                finally:
                    self.give_up({block: outcome})
                return fetched
        return []

    def _result(self, outcome: Future) -> bool:
        try:
            return outcome.result(PATIENCE)
        except TimeoutError:
            raise StoreError(
                f"{self.requests.origin.url}: no answer to a request within {PATIENCE:.0f} s"
            ) from None

    def _try(self, block: int, outcome: Future, wait: bool) -> bool | None:
        """Make a block ready, or begin to fetch it, as far as that goes at once.

        outcome  of this thread's work on it, which runs from when it is being fetched
        wait     for room

        Returns True if it is ready; None if it is being fetched, and then `settle` is called for
        it; False if another process has it, or there is no room.
        """
        locks, at, stamps = self._cache.readers, self._base + block, self.blocks.stamps
        if stamps[block] not in (ABSENT, PARTIAL):
            if not locks.acquire(at, exclusive=False):
                return False
            if stamps[block] < -PARTIAL and self._is_sound(block):
                stamps[block] = abs(stamps[block])
            if stamps[block] > PARTIAL:
                return True
        if not locks.acquire(at, exclusive=True):  # others read it, or fetch it
            locks.release(at)
            return False
        if stamps[block] > PARTIAL:  # fetched meanwhile
            locks.acquire(at, exclusive=False)
            return True
        if stamps[block] < -PARTIAL:
            stamps[block] = PARTIAL  # its room is taken
        elif not self._cache.take_block(self.blocks, block, wait):
            locks.release(at)
            return False
        fetch = Fetch(self, block)
        outcome.set_running_or_notify_cancel()
        try:
            fetch.begin()
        except BaseException as error:  # no request was made
            self.settle(block, error)
            raise
        return None

    def _is_sound(self, block: int) -> bool:
        """Whether the samples of a block are in the files as they were written."""
        parts = []
        for path, edges in zip(self.blocks.paths(), self.blocks.edges, strict=True):
            low, high = edges[block : block + 2].tolist()
            data = np.empty(high - low, np.uint8)
            if data.size:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    read_at(file, data, low, path)
                finally:
                    os.close(file)
            parts.append(data)
        return not self.check(block, parts)

    def check(self, block: int, parts: Sequence[np.ndarray]) -> dict[int, str]:
        """What is wrong with each sample of a block whose bytes differ from their checksum.

        parts  of each large file, uint8 (n,): the bytes of the block, or those that are stored
        """
        rows = self.rows(block)
        edges = self.contents.edges(np.arange(rows.start, rows.stop + 1))
        found = {}
        for k, row in enumerate(rows):
            own = [
                part[edge[k] - edge[0] : edge[k + 1] - edge[0]]
                for part, edge in zip(parts, edges.tolist(), strict=True)
            ]
            if (text := self.contents.check(row, own)) is not None:
                found[row] = text
        return found

    def rows(self, block: int) -> range:
        """The samples of a block."""
        count = self.blocks.about.per_block
        return range(block * count, min((block + 1) * count, self.contents.samples))

    def spans(self, block: int) -> list[tuple[str, int, int]]:
        """The path of each large file in the origin, and the bytes of it that a block needs."""
        found, last = [], self.rows(block)[-1]
        start = self.contents.edges(np.array([last]))[:, 0].tolist()
        for array, name in enumerate(self.blocks.about.files):
            low = int(self.blocks.edges[array, block])
            found.append(
                (f"{self._path}/{name}", low, start[array] + self.contents.stored(last, array))
            )
        return found

    def write(self, block: int, parts: Sequence) -> None:
        """Write the bytes of a block, which are checked. Raises CacheFull, OSError."""
        each = zip(self.blocks.paths(), self._files, self.blocks.edges, parts, strict=True)
        for path, inode, edges, part in each:
            if not len(part):
                continue
            if inode_of(path) != inode:
                raise StoreError(
                    f"{path}: the folder of the cache was removed or replaced while it was in use; "
                    "open the pack again"
                )
            file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._write(file, part, int(edges[block]), path)
            finally:
                os.close(file)

    def _write(self, file: int, data, position: int, path: Path) -> None:
        while True:
            try:
                write_at(file, data, position, path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                full = error
            if not self._cache.make_room(2 * len(data)):
                raise CacheFull(
                    f"{path}: the disk of the cache is full ({full.strerror}), and nothing in the "
                    "cache can be removed: free some of it, or choose another folder"
                ) from full

    def finished(self, block: int, damaged: bool) -> None:
        """A block was written under its exclusive lock: present from now on, with a shared lock."""
        self.blocks.stamps[block] = -now() if damaged else now()
        self._cache.readers.acquire(self._base + block, exclusive=False)

    def given_up(self, block: int) -> None:
        """A block could not be fetched: remove what there is of it, under its exclusive lock."""
        self._cache.give_back(self.blocks, block)

    def replaced(self) -> StoreError | None:
        """The error if the origin has something else in place of this folder now."""
        found = is_replaced(self.requests, self._path, self.folder)
        return changed(self.requests, self._path) if found else None

    def after_fork(self) -> None:
        """In a child: it holds nothing."""
        self._lock, self._entries = threading.RLock(), {}
        self.requests.after_fork()


_groups: "weakref.WeakValueDictionary[tuple, Group]" = weakref.WeakValueDictionary()
_mutex = threading.RLock()


def shared(blocks: Blocks, make: Callable[[], Group]) -> Group:
    """The group of a folder, one object per process: the one that is in use, or a new one.

    A folder that was removed and made again is another one.
    """
    key = blocks.folder, blocks.inode
    with _mutex:
        found = _groups.get(key)
        if found is None:
            found = _groups[key] = make()
        return found


def _after_fork() -> None:
    global _mutex
    _mutex = threading.RLock()
    for group in list(_groups.values()):
        group.after_fork()


os.register_at_fork(after_in_child=_after_fork)
