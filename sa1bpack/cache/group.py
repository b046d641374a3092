"""A folder of a cache in use: its samples are made present, and held while they are read.

Every process follows the same rules, by locks of the system on each block (see `locks`), so that
it does not matter which one is killed, or when:

- who reads a block has its shared lock, from before it looks at the stamp until it has read;
- who fetches a block has its exclusive lock, and has set the stamp to PARTIAL before it writes. The
  samples are compared with their checksums in memory, then written, then the stamp says that they
  are present, and the lock becomes a shared one in one step;
- who removes a block has its exclusive lock, and sets the stamp to PARTIAL before it does.

So a present stamp under any lock means complete and checked; and a kill leaves a block as it was,
or PARTIAL, which the next one to lock it overwrites or removes. Within a process, `uses` says which
thread changes the process's lock.
"""

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from sa1bpack.cache.block_bytes import BlockBytes
from sa1bpack.cache.blocks import ABSENT, PARTIAL, Blocks, now
from sa1bpack.cache.build import changed, is_replaced
from sa1bpack.cache.contents import Contents
from sa1bpack.cache.fetch import Fetch
from sa1bpack.cache.folder import SLOT_BLOCKS, Cache
from sa1bpack.cache.locks import PATIENCE
from sa1bpack.cache.requests import Requests, waits
from sa1bpack.cache.uses import Damage, Uses
from sa1bpack.errors import StoreError

# Waits for a block that another process fetches, in seconds.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.0005, 0.02


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
        self._mine, self._others = group.uses.pin(self._wanted)
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
            damage = group.uses.damage(block)
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
        self._group.uses.give_up(self._mine)
        self._group.uses.unpin(wanted)


class Group:
    """The samples of one folder of a cache. One object per process and folder.

    folder    the folder
    blocks    its Blocks
    contents  its Contents
    requests  to its origin
    uses      which blocks this process uses
    bytes     those of its blocks
    """

    def __init__(
        self, cache: Cache, blocks: Blocks, contents: Contents, requests: Requests, path: str
    ):
        """path: of the folder in the origin."""
        self.folder, self.blocks, self.contents = blocks.folder, blocks, contents
        self.requests = requests
        self.uses, self.bytes = Uses(cache, blocks), BlockBytes(cache, blocks, contents, path)
        self._cache, self._path = cache, path
        self._base = blocks.about.slot * SLOT_BLOCKS

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
        mine, _ = self.uses.pin(wanted)
        fetched: list[int] = []
        try:
            self.begin(mine, fetched)
        finally:
            self.uses.give_up(mine)
            self.uses.unpin(wanted)
        missed = sum(wanted[block] for block in fetched)
        self.requests.count(len(rows) - missed, missed)
        return [mine[block] for block in fetched]

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
            self.uses.settle(block, True)

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
            outcome, mine = self.uses.take_over(block)  # it was asked for in advance, and given up
            if outcome is None:
                break
            if mine:
                fetched: list[int] = []
                try:
                    self.make_ready({block: outcome}, fetched)
                finally:
                    self.uses.give_up({block: outcome})
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
            if stamps[block] < -PARTIAL and self.bytes.are_sound(block):
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
            self.uses.settle(block, error)
            raise
        return None

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
        self.uses.after_fork()
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
