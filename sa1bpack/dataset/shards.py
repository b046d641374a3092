"""The shards of one or several packs, opened when they are first used, several at once."""

import _thread
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from sa1bpack.dataset import shard_cache
from sa1bpack.dataset.open_shard import OpenShard, open_checked
from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.dataset.shard_cache import CacheEntry
from sa1bpack.errors import FormatError, ResourceShortage
from sa1bpack.format import Layout, Shard, ShardEntry
from sa1bpack.format.manifest import SHARDS_NAME
from sa1bpack.format.side.part import SidePart
from sa1bpack.urls import Lease

# Shards that one call opens at the same time: opening waits for a file system, not for a processor.
MAX_OPENERS = 16

# A shard to open: its number, its entry, and the future that others wait for.
_Claim = tuple[int, CacheEntry, "Future[OpenShard]"]


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a shard is: the folder of its pack, and its number there."""

    folder: PackFolder
    number: int

    @property
    def entry(self) -> ShardEntry:
        """Its entry in the manifest of its pack."""
        return self.folder.manifest.shards[self.number]

    @property
    def path(self) -> Path:
        """The folder of the shard."""
        return self.folder.root / SHARDS_NAME / self.entry.name

    @property
    def first_row(self) -> int:
        """Its first row in its pack."""
        return self.folder.first_row[self.number]

    @property
    def first_mask(self) -> int:
        """Its first mask in its pack."""
        return self.folder.first_mask[self.number]

    @property
    def image_id(self) -> np.ndarray:
        """int64 (n,): its image ids, by the index of its pack."""
        first, stop = self.folder.first_row[self.number : self.number + 2]
        return self.folder.index.image_id[first:stop]

    @property
    def mask_offset(self) -> np.ndarray:
        """int64 (n + 1,): its mask offsets, from 0, by the index of its pack."""
        first, stop = self.folder.first_row[self.number : self.number + 2]
        return self.folder.index.mask_offset[first : stop + 1] - self.first_mask


class Shards:
    """The shards of a `Pack`, in its order. `shards[k]` is a checked format Shard.

    A shard is opened on first use. Before it is handed out, everything that a view of it relies on
    is checked, see `open_shard.open_checked`. It is opened by one thread, with no lock held, and
    other threads that ask for it wait for that one. An error is not remembered: the next call
    tries again.

    All packs of a process together keep within one budget of memory maps, see `ShardCache`: shards
    that were used least recently are dropped. Views that are still in use stay valid. Safe in
    threads and after fork.

    places     where each shard is
    first_row  first row of each shard, counted over all of them, and the number of all rows
    """

    def __init__(
        self,
        places: list[ShardPlace],
        layout: Layout,
        open_parts: Callable[[int], tuple[tuple[SidePart, ...], tuple[Lease, ...]]] | None = None,
    ):
        """
        open_parts  opens the parts of side arrays for a shard, by its number, and says what keeps
                    them in place; None: there are none
        """
        self._open_parts = open_parts
        self._cache = shard_cache.CACHE
        self._entries: dict[int, CacheEntry] = {}
        self._layout = layout
        self.places = places
        self.first_row = [0, *accumulate(place.entry.samples for place in places)]

    def __del__(self):
        self._cache.leave(self._entries.values())

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Shard:
        """The shard of that number, 0 to K - 1. Raises as `open` does."""
        return self.open(number).shard

    def open(self, number: int) -> OpenShard:
        """The shard of that number with its maps.

        Raises IndexError if there is none, FormatError naming the file and what is wrong with it,
        OSError if a file cannot be opened, ResourceShortage if the system refuses a map or a file
        for lack of resources.
        """
        entry = self._entries.get(number)
        opened = None if entry is None else entry.opened
        if opened is not None:
            self._cache.touch(entry)
            return opened
        found, failed = self.open_many([number])
        if failed:
            raise failed[number]
        return found[number]

    def open_many(
        self, numbers: Iterable[int]
    ) -> tuple[dict[int, OpenShard], dict[int, Exception]]:
        """Several shards by number, and the error of each that cannot be opened.

        Those that are not open yet are opened at the same time, by at most MAX_OPENERS threads.
        None of them opens anything after the call. Call it with no lock held.

        An error is a FormatError or an OSError. Raises ResourceShortage, which is not the fault of
        a shard, and IndexError for a number that does not exist, before anything is opened.
        """
        found: dict[int, OpenShard] = {}
        failed: dict[int, Exception] = {}
        todo = []
        for number in dict.fromkeys(numbers):
            entry = self._entry(number)
            opened = entry.opened
            if opened is None:
                todo.append((number, entry))
            else:
                self._cache.touch(entry)
                found[number] = opened
        while todo:
            todo = self._open_or_wait(todo, found, failed)
        return found, failed

    def __repr__(self) -> str:
        return f"<{len(self)} shards, {self.open_count} open>"

    @property
    def open_count(self) -> int:
        """Shards that are open now."""
        return sum(entry.opened is not None for entry in list(self._entries.values()))

    def folder(self, number: int) -> Path:
        """The folder of a shard."""
        return self.places[number].path

    # ------------------------------------------------------------------------------------- opening

    def _entry(self, number: int) -> CacheEntry:
        if not 0 <= number < len(self):
            raise IndexError(f"shard {number} of a dataset which has {len(self)}")
        return self._entries.get(number) or self._entries.setdefault(number, CacheEntry())

    def _open_or_wait(self, todo, found, failed) -> list[tuple[int, CacheEntry]]:
        """Open shards that no other thread is opening, and wait for the others.

        Returns those that another thread gave up without an error, such as at Ctrl-C.
        """
        if _state.opening:
            # In a finalizer that this thread runs while it opens shards: the thread that opens
            # these may be waiting for this one.
            for number, entry in todo:
                _note(number, self._outcome(number, entry), found, failed)
            return []
        claims: list[_Claim] = []
        others: list[_Claim] = []
        with _opening():
            try:
                for number, entry in todo:
                    mine: Future[OpenShard] = Future()
                    claims.append((number, entry, mine))
                    future = self._cache.claim(entry, mine)
                    if future is not mine:
                        others.append((number, entry, future))
                        claims.pop()
                self._open_claims(claims)
            finally:
                for _, entry, future in claims:
                    self._cache.release(entry, future)
            again = []
            for number, entry, future in claims + others:
                try:
                    outcome = future.exception() or future.result()
                except CancelledError:
                    again.append((number, entry))
                else:
                    _note(number, outcome, found, failed)
        return again

    def _open_claims(self, claims: list[_Claim]) -> None:
        """Open shards in this thread and in others that help it.

        It returns after those that have begun to open one. A helper that begins later finds nothing
        to do, and has hold of nothing: neither of this object nor of a shard.
        """
        todo = deque(partial(self._open_claim, *claim) for claim in claims)
        running: list[_thread.LockType] = []  # of each helper: held until it ends
        try:
            for _ in range(min(MAX_OPENERS, len(claims)) - 1):
                # Not a threading.Thread: its `start` waits for ever for a thread that begins
                # without memory to run in. This one is not missed, the others do its work.
                try:
                    _thread.start_new_thread(_help, (todo, running))
                except (RuntimeError, MemoryError):  # the system refuses more threads
                    break
            _call_all(todo)
        finally:
            todo.clear()
            for helper in list(running):
                helper.acquire()

    def _open_claim(self, number: int, entry: CacheEntry, future: "Future[OpenShard]") -> None:
        """Open one shard for those who wait for it."""
        try:
            outcome = self._outcome(number, entry)
            with suppress(InvalidStateError):  # given up meanwhile, at Ctrl-C
                if isinstance(outcome, OpenShard):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)
        finally:
            self._cache.release(entry, future)

    def _outcome(self, number: int, entry: CacheEntry) -> OpenShard | Exception:
        """The shard, opened if it is not yet, or why it cannot be."""
        opened = entry.opened  # another thread may have ended just before this one's claim
        if opened is not None:
            return opened
        try:
            opened = self._cache.with_resources(lambda: self._checked(number))
        except Exception as error:
            return error
        return self._cache.keep(entry, opened)

    def _checked(self, number: int) -> OpenShard:
        place = self.places[number]
        folder, leases = place.folder, ()
        if folder.source is not None:
            digest = folder.digests[place.number]
            leases = (folder.source.bring(place.entry, digest, self._layout),)
        opened = open_checked(
            place.path,
            place.entry,
            self._layout,
            place.image_id,
            place.mask_offset,
            place.folder.index_path(""),
        )
        opened = replace(opened, leases=leases) if leases else opened
        return opened if self._open_parts is None else opened.with_sides(*self._open_parts(number))


def _help(todo: deque[Callable[[], None]], running: list) -> None:
    """What a helper does: a part of the calls. `running` gets a lock that it holds until then."""
    ends = _thread.allocate_lock()
    with ends, _opening():
        running.append(ends)
        _call_all(todo)


def _call_all(todo: deque[Callable[[], None]]) -> None:
    """Make one call after another until none is left. Several threads may share them."""
    while todo:
        try:
            call = todo.popleft()
        except IndexError:  # another thread was quicker
            return
        call()


def _note(number: int, outcome: OpenShard | Exception, found: dict, failed: dict) -> None:
    """Enter a shard, or why it cannot be opened; anything else is raised."""
    if isinstance(outcome, OpenShard):
        found[number] = outcome
    elif isinstance(outcome, ResourceShortage) or not isinstance(outcome, (FormatError, OSError)):
        raise outcome
    else:
        failed[number] = outcome


class _State(threading.local):
    """Of a thread: whether it opens shards, or waits for those that others open."""

    opening = False


_state = _State()


@contextmanager
def _opening() -> Iterator[None]:
    _state.opening = True
    try:
        yield
    finally:
        _state.opening = False
