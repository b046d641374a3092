"""Samples of a pack that is read through a cache are asked for ahead of use, in the order read."""

import logging
import threading
from collections.abc import Sequence

import numpy as np

from sa1bpack.cache.group import Group
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.pack import Pack
from sa1bpack.loading.page_cache import dataset_bytes

# Bytes that are asked for before they are used: what a link of 25 Gbit/s delivers in the time that
# an object store takes to answer, several times over; and at most this part of the cache.
WINDOW_BYTES = 512 << 20
_SHARE_OF_CACHE = 0.25

_IDLE_SECONDS = 10.0

_log = logging.getLogger("sa1bpack")


class Ahead:
    """A thread that asks for the samples of an epoch, batch after batch, some batches ahead.

    It opens their shards as well. What goes wrong here is not an error of the epoch: the thread
    that reads a sample asks for it again.
    """

    def __init__(self, ds: Dataset, batches: Sequence[np.ndarray]):
        """batches: int64 (B,) indices of the dataset each."""
        self._ds, self._batches = ds, batches
        sample = max(1, dataset_bytes(ds) // max(1, len(ds)))
        limit = min(cache.limit for cache in _caches(ds.pack))
        window = min(WINDOW_BYTES, int(_SHARE_OF_CACHE * limit))
        first = len(batches[0]) if len(batches) else 1
        self._window = max(2, window // (sample * first))
        self._changed = threading.Condition()
        self._asked = self._reached = 0
        self._over = False

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._run, name="sa1bpack-ahead", daemon=True).start()

    def reach(self, number: int) -> int:
        """Batch `number` is needed: wait until it is asked for; returns how many batches are."""
        with self._changed:
            self._reached = max(self._reached, number)
            self._changed.notify_all()
            while not (self._over or self._asked > number):
                self._changed.wait(_IDLE_SECONDS)
            return max(self._asked, number + 1)

    def end(self) -> None:
        """Ask for nothing more."""
        self._over = True
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            for number in range(len(self._batches)):
                with self._changed:
                    while not self._over and number > self._reached + self._window:
                        self._changed.wait(_IDLE_SECONDS)
                if self._over:
                    return
                self._ask(self._batches[number])
                with self._changed:
                    self._asked = number + 1
                    self._changed.notify_all()
        except Exception as error:
            _log.info("samples are not asked for in advance any longer: %s", error)
        finally:
            self.end()

    def _ask(self, indices: np.ndarray) -> None:
        numbers, local, _, _ = self._ds.locate_many(indices)
        shards, _ = self._ds.shards.open_many(numbers.tolist())
        wanted: dict[Group, list[int]] = {}
        for number, row in zip(numbers.tolist(), local.tolist(), strict=True):
            for group in shards[number].groups if number in shards else ():
                wanted.setdefault(group, []).append(row)
        for group, rows in wanted.items():
            group.ask(rows)


def _caches(pack: Pack):
    yield from (each.cache for each in pack.cached)
    yield from (each.cache for side in pack.sides for each in side.cached.values())
