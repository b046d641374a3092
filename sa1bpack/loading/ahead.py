"""Shards that are not on this machine are opened ahead of use, in the order of an epoch."""

import logging
import threading
from collections.abc import Sequence

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import OptionError
from sa1bpack.loading.order.orders import Order
from sa1bpack.wording import counted, size_text

# Bytes of shards that are opened before they are used: what a link of 25 Gbit/s delivers in the
# time that an object store takes to answer, several times over; and at most this part of the room.
WINDOW_BYTES = 512 << 20
_SHARE_OF_ROOM = 0.25

# Shards that are opened at once: each is fetched by many requests.
_AT_ONCE = 8

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
    sizes = sorted((ds.manifest.shards[n].bytes for n in numbers.tolist()), reverse=True)
    at_once = sizes[: order.shards_at_once]
    if sum(at_once) > room(ds.pack):
        what = f"{counted(len(at_once), 'shard')} at any time, {size_text(sum(at_once))}"
        raise OptionError(
            f"order is {order!r}, which mixes samples of {what}, but the cache takes "
            f"{size_text(room(ds.pack))}, so that each would be fetched many times: raise "
            "cache_size, use order='local', or sa1bpack.LocalShuffleOrder with a smaller window"
        )


class Ahead:
    """Opens the shards of an epoch, some of them ahead of the batch that is needed.

    What goes wrong here is not an error of the epoch: who reads a sample opens its shard again.
    """

    def __init__(self, ds: Dataset, batches: Sequence[np.ndarray]):
        """batches: int64 (B,) indices of the dataset each."""
        self._ds, self._batches = ds, batches
        self._window = min(WINDOW_BYTES, int(_SHARE_OF_ROOM * room(ds.pack)))
        self._changed = threading.Condition()
        self._asked: list[list[int]] = []  # of each batch, the numbers of its shards
        self._opened: set[int] = set()  # shards that were opened, or cannot be
        self._slots = threading.Semaphore(_AT_ONCE)
        self._ahead: dict[int, int] = {}  # batch → bytes that were asked for with it
        self._reached, self._over = 0, False

    def start(self) -> None:
        """Begin to open shards."""
        threading.Thread(target=self._run, name="sa1bpack-ahead", daemon=True).start()

    def reach(self, number: int) -> int:
        """Batch `number` is needed: wait for its shards; returns how many batches have theirs."""
        with self._changed:
            self._reached = max(self._reached, number)
            self._changed.notify_all()
            while not (self._over or self._has_shards(number)):
                self._changed.wait(_IDLE_SECONDS)
            stop = number + 1
            while stop < len(self._asked) and self._has_shards(stop):
                stop += 1
            return stop

    def _has_shards(self, number: int) -> bool:
        return len(self._asked) > number and self._opened.issuperset(self._asked[number])

    def end(self) -> None:
        """Open nothing more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _run(self) -> None:
        begun: set[int] = set()
        try:
            for number in range(len(self._batches)):
                numbers, _, _, _ = self._ds.locate_many(self._batches[number])
                numbers = np.unique(numbers).tolist()
                new = [n for n in numbers if n not in begun]
                nbytes = sum(self._ds.manifest.shards[n].bytes for n in new)
                with self._changed:
                    while not (self._over or number <= self._reached or self._fits(nbytes)):
                        self._changed.wait(_IDLE_SECONDS)
                    if self._over:
                        break
                    self._ahead[number] = nbytes
                    self._asked.append(numbers)
                    self._changed.notify_all()
                for n in new:
                    begun.add(n)
                    self._slots.acquire()
                    name = f"sa1bpack-open-{n}"
                    threading.Thread(target=self._open, args=(n,), name=name, daemon=True).start()
        except Exception as error:
            _log.info("shards are not opened in advance any longer: %s", error)
            self.end()

    def _fits(self, nbytes: int) -> bool:
        """Whether so many bytes may be asked for besides those that are ahead."""
        for reached in [n for n in self._ahead if n <= self._reached]:
            del self._ahead[reached]
        ahead = sum(self._ahead.values())
        return not nbytes or not ahead or ahead + nbytes <= self._window

    def _open(self, number: int) -> None:
        try:
            if not self._over:
                self._ds.shards.open_many([number])
        except Exception as error:
            _log.info("shard %d cannot be opened in advance: %s", number, error)
        finally:
            self._slots.release()
            with self._changed:
                self._opened.add(number)
                self._changed.notify_all()
