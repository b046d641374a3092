"""The order for nodes with caches: each reads the same part of the pack in every epoch."""

import numpy as np

from sa1bpack.arguments import whole_number
from sa1bpack.order import functions as pure
from sa1bpack.order.orders import (
    Ordered,
    SeededOrder,
    bounds_digest,
    checked_bounds,
    described,
)


class HomeShuffleOrder(SeededOrder):
    """Every sample once, shuffled; each rank reads the same part of the dataset in every epoch.

    For caches of nodes: what a node has fetched in one epoch is what it reads in the next. The
    shards are put in an order that never changes, and their samples divided into `homes` parts in
    sequence, of equally many samples. Each is shuffled again for every epoch. A batch has equally
    many samples of each home, and the ranks share it in the order of the shards: with a number of
    nodes that divides `homes`, node k of n always has the homes from k * homes // n on; with
    another one, neighbours share the homes between them. `docs/order.md` shows what that saves, and
    what it costs in randomness.

    The global batches are the same for any number of ranks, and a state resumes on any of them.
    With another number of nodes each has another part, and fetches it once.

    The order of the current epoch is kept: 4 bytes per sample, 45 MB for all of SA-1B.

    Args:
        dataset: the dataset to order.
        homes: a multiple of the number of nodes; batch sizes should be multiples of it. 1 or more.
        seed: 0 to 2**64 - 1. Homes do not depend on it.

    Examples:
        >>> order = sa1bpack.HomeShuffleOrder(sa1bpack.open("packed"), homes=2, seed=1)
        >>> sorted(order.take(epoch=0, start=0, stop=3).tolist())
        [0, 1, 2]
    """

    kind = "home-shuffle"
    arranges = True

    def __init__(self, dataset: Ordered, *, homes: int = 64, seed: int = 0):
        super().__init__(dataset, seed)
        self.homes = whole_number("homes", homes, 1, 2**32 - 1)
        self._bounds = checked_bounds(described(dataset).shard_bounds(), self.size)
        self._digest = bounds_digest(self._bounds)
        self._shards = pure.home_shards(len(self._bounds) - 1).astype(np.int64)
        # Places are samples, counted in the order in which homes have the shards.
        sizes = np.diff(self._bounds)[self._shards]
        self._edges = np.concatenate([[0], np.cumsum(sizes)])
        self._first_place = np.empty_like(sizes)  # of each shard
        self._first_place[self._shards] = self._edges[:-1]

    def identity(self) -> dict[str, int | str]:
        return super().identity() | {"homes": self.homes, "shards": self._digest}

    @property
    def shards_at_once(self) -> int:
        """Return of how many shards samples are mixed at any time, by a node at least."""
        return -(-len(self._shards) // self.homes)  # of a node that has one home

    def _take(self, epoch: int, start: int, stop: int) -> np.ndarray:
        key = self._key(epoch)
        whole = self._latest.get(epoch, lambda: pure.home_shuffle(key, self.size, self.homes))
        places = whole[start:stop].astype(np.int64)
        at = np.searchsorted(self._edges, places, side="right") - 1
        return self._bounds[self._shards[at]] + (places - self._edges[at])

    def arranged(self, batch: np.ndarray) -> np.ndarray:
        """Return the samples of a batch, int64 (n,), in the order in which homes have them."""
        shard = np.searchsorted(self._bounds, batch, side="right") - 1
        places = self._first_place[shard] + (batch - self._bounds[shard])
        return batch[np.argsort(places, kind="stable")]
