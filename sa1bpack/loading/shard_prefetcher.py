"""The opening of shards that are not on this machine, ahead of use, in the order of an epoch."""

import logging
import threading
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import OptionError
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.loading.order.orders import Order
from sa1bpack.threads import start_thread
from sa1bpack.wording import counted, size_text

# Bytes of shards that are opened before they are used: what a link of 25 Gbit/s delivers in the
# time that an object store takes to answer, several times over; and at most this part of the room.
WINDOW_BYTES = 512 << 20
_SHARE_OF_ROOM = 0.25

# Shards that are opened at once: each is fetched by many requests. And shards of which the small
# arrays alone are fetched, in one round trip of some twenty requests, each over a connection: a
# batch may need as many as it has samples, but a process may have no more than 1,024 open files.
_AT_ONCE = 8
_SMALL_AT_ONCE = 16

# Batches that are looked at for shards to open, each time that one is needed.
_LOOK_AHEAD = 64

_IDLE_SECONDS = 10.0

_log = logging.getLogger("sa1bpack")


def room(pack: Pack) -> int:
    """Bytes of shards that can be on this machine at once, of a pack that has sources of them."""
    return min(source.limit for source in pack.sources)


def check_order(ds: Dataset, order: Order) -> None:
    """Raise OptionError for an order whose shards in use at any time exceed the room for them.

    Each would be fetched again and again.
    """
    if order.shards_at_once is None:
        return
    numbers = np.unique(ds.pack.shard_numbers(ds.rows_at(np.arange(len(ds)))))
    sizes = [ds.pack.fetched_bytes(number) for number in numbers.tolist()]
    at_once = sorted(sizes, reverse=True)[: order.shards_at_once]
    if sum(at_once) > room(ds.pack):
        shards = f"{counted(len(at_once), 'shard')} at any time, {size_text(sum(at_once))}"
        if ds.pack.features:
            shards += " with their features"
        raise OptionError(
            f"order is {order!r}, which mixes samples of {shards}, but the cache takes "
            f"{size_text(room(ds.pack))}, so that each would be fetched many times: raise "
            "cache_size, use order='local', or sa1bpack.LocalShuffleOrder with a smaller window"
        )


class _AskedBatch(NamedTuple):
    """A batch whose shards are being opened.

    Attributes:
        batch: the batch.
        shards: the numbers of its shards.
        nbytes: bytes of those among them that no earlier batch needs.
    """

    batch: OrderedBatch
    shards: list[int]
    nbytes: int


class ShardPrefetcher:
    """The opening of an epoch's shards, some of them ahead of the batch that is needed.

    What goes wrong here is not an error of the epoch: who reads a sample opens its shard again.

    One thread at a time calls `next_batches`; all else is done by threads of its own. Once the
    epoch has ended, they finish the shards that they are opening, which all epochs share.
    """

    def __init__(self, ds: Dataset, batches: Iterator[OrderedBatch]):
        """
        Args:
            ds: the dataset.
            batches: the batches of the epoch, which nobody else takes.
        """
        self._ds = ds
        self._batches = batches
        self._at_once = _SMALL_AT_ONCE if ds.pack.fetches_rows else _AT_ONCE
        # Where rows are fetched next, the shards of later batches would share the way with them.
        self._asks_ahead = not ds.pack.fetches_rows
        self._window = min(WINDOW_BYTES, int(_SHARE_OF_ROOM * room(ds.pack)))
        self._asked: deque[_AskedBatch] = deque()
        self._bytes_ahead = 0  # of the batches that are asked for
        self._not_asked: _AskedBatch | None = None  # the next one, which did not fit
        self._to_open: SimpleQueue[int | None] = SimpleQueue()
        self._opened: dict[int, threading.Event] = {}  # shard → it was opened, or cannot be
        self._over = False

    def start(self) -> None:
        """Begin to open shards."""
        for _ in range(self._at_once):  # daemons: Python need not wait for a fetch when it ends
            start_thread(self._open, "sa1bpack-open")

    def end(self) -> None:
        """Open nothing more."""
        self._over = True
        for opened in list(self._opened.values()):
            opened.set()
        for _ in range(self._at_once):
            self._to_open.put(None)

    def next_batches(self, most: int) -> list[OrderedBatch]:
        """The next batch, and up to `most` in all as far as their shards are here.

        Waits for the shards of the first. Asks for the shards of later batches, as far as these
        fit; but where rows are fetched, not before the second call, by when most of those of the
        first batch have come.
        """
        if not self._asked:
            self._ask(self._next_to_ask())
        first = self._take()
        if self._asks_ahead:
            self._ask_ahead()
        self._asks_ahead = True
        for shard in first.shards:
            while not (self._over or self._opened[shard].wait(_IDLE_SECONDS)):
                pass
        batches = [first.batch]
        while len(batches) < most and self._asked and self._is_here(self._asked[0]):
            batches.append(self._take().batch)
        return batches

    def _take(self) -> _AskedBatch:
        asked = self._asked.popleft()
        self._bytes_ahead -= asked.nbytes
        return asked

    def _is_here(self, asked: _AskedBatch) -> bool:
        return all(self._opened[shard].is_set() for shard in asked.shards)

    def _ask_ahead(self) -> None:
        """Ask for the shards of later batches, as far as they fit into the window."""
        for _ in range(_LOOK_AHEAD):
            following = self._next_to_ask()
            if following is None:
                return
            nbytes = following.nbytes
            if nbytes and self._bytes_ahead and self._bytes_ahead + nbytes > self._window:
                self._not_asked = following
                return
            self._ask(following)

    def _next_to_ask(self) -> _AskedBatch | None:
        """The first batch that is not asked for; None after the last one."""
        following = self._not_asked
        self._not_asked = None
        if following is not None:
            return following
        batch = next(self._batches, None)
        if batch is None:
            return None
        numbers, _, _, _ = self._ds.locate_many(batch.indices)
        shards = np.unique(numbers).tolist()
        new_shards = [shard for shard in shards if shard not in self._opened]
        return _AskedBatch(batch, shards, sum(map(self._ds.pack.fetched_bytes, new_shards)))

    def _ask(self, asked: _AskedBatch | None) -> None:
        assert asked is not None, "no batch is asked for after the last one"
        self._bytes_ahead += asked.nbytes
        self._asked.append(asked)
        for shard in asked.shards:
            if shard not in self._opened:
                self._opened[shard] = threading.Event()
                self._to_open.put(shard)

    def _open(self) -> None:
        while not self._over and (shard := self._to_open.get()) is not None:
            try:
                self._ds.shards.open_many([shard])
            except Exception as error:
                _log.info("shard %d cannot be opened in advance: %s", shard, error)
            self._opened[shard].set()
