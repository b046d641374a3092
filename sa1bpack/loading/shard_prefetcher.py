"""The opening of shards that are not on this machine, ahead of use, in the order of an epoch."""

import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import OptionError
from sa1bpack.loading.order.orders import Order
from sa1bpack.threads import start_thread
from sa1bpack.wording import counted, size_text

# Bytes of shards that are opened before they are used: what a link of 25 Gbit/s delivers in the
# time that an object store takes to answer, several times over; and at most this part of the room.
WINDOW_BYTES = 512 << 20
_SHARE_OF_ROOM = 0.25

# Shards that are opened at once: each is fetched by many requests.
_AT_ONCE = 8

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


class ShardPrefetcher:
    """The opening of an epoch's shards, some of them ahead of the batch that is needed.

    What goes wrong here is not an error of the epoch: who reads a sample opens its shard again.
    """

    def __init__(self, ds: Dataset, batches: Sequence[np.ndarray]):
        """
        Args:
            ds: the dataset.
            batches: int64 (B,) indices of the dataset for each batch.
        """
        self._ds = ds
        self._batches = batches
        self._window = min(WINDOW_BYTES, int(_SHARE_OF_ROOM * room(ds.pack)))
        self._asked: list[tuple[list[int], int]] = []  # of each batch, its shards, and new bytes
        self._ahead = self._reached = 0  # new bytes of those from batch `_reached` on
        self._todo: SimpleQueue[int | None] = SimpleQueue()
        self._opened: dict[int, threading.Event] = {}  # shard → it was opened, or cannot be
        self._over = False

    def start(self) -> None:
        """Begin to open shards."""
        for _ in range(_AT_ONCE):  # daemons: Python need not wait for a fetch when it ends
            start_thread(self._open, "sa1bpack-open")

    def end(self) -> None:
        """Open nothing more."""
        self._over = True
        for opened in list(self._opened.values()):
            opened.set()
        for _ in range(_AT_ONCE):
            self._todo.put(None)

    def reach(self, number: int) -> int:
        """Wait for the shards of batch `number`; returns how many batches have theirs.

        One thread at a time. Asks for the shards of later batches, as far as these fit.
        """
        self._ahead -= sum(nbytes for _, nbytes in self._asked[self._reached : number + 1])
        self._reached = number + 1
        stop = min(max(number + 1, len(self._asked) + _LOOK_AHEAD), len(self._batches))
        for k in range(len(self._asked), stop):
            shards, _, _, _ = self._ds.locate_many(self._batches[k])
            shards = np.unique(shards).tolist()
            new = [n for n in shards if n not in self._opened]
            nbytes = sum(map(self._ds.pack.fetched_bytes, new))
            if k > number:
                if nbytes and self._ahead and self._ahead + nbytes > self._window:
                    break
                self._ahead += nbytes
            self._asked.append((shards, nbytes))
            for n in new:
                self._opened[n] = threading.Event()
                self._todo.put(n)
        for n in self._asked[number][0]:
            while not (self._over or self._opened[n].wait(_IDLE_SECONDS)):
                pass
        stop = number + 1
        while stop < len(self._asked) and all(
            self._opened[n].is_set() for n in self._asked[stop][0]
        ):
            stop += 1
        return stop

    def _open(self) -> None:
        while not self._over and (number := self._todo.get()) is not None:
            try:
                self._ds.shards.open_many([number])
            except Exception as error:
                _log.info("shard %d cannot be opened in advance: %s", number, error)
            self._opened[number].set()
