"""Samples of a pack that is read through a cache are made present, and held, while being read."""

from collections.abc import Iterable

from sa1bpack.cache.group import Held
from sa1bpack.dataset.open_shard import OpenShard
from sa1bpack.errors import FormatError


class Present:
    """Samples that are present within a `with` statement: their shards', and their side arrays'.

    Leaving it lets the cache remove them again, so nothing that is a view of their memory maps may
    be used afterwards. Samples of packs of this machine cost nothing here: they are always present.

    errors  within the statement: why samples are not to be read, by their position
    """

    def __init__(self, samples: Iterable[tuple[OpenShard | None, int]], count: bool = True):
        """
        samples  (shard, row in it) of each; None for a shard that cannot be opened
        count    them as hits or misses of the cache
        """
        self.errors: dict[int, FormatError] = {}
        self._count, self._held = count, []
        self._where: dict[object, dict[int, list[int]]] = {}  # group → row → positions
        for position, (shard, row) in enumerate(samples):
            for group in () if shard is None else shard.groups:
                self._where.setdefault(group, {}).setdefault(row, []).append(position)

    def __enter__(self) -> "Present":
        """Fetch what is missing, all of it at once.

        Raises StoreError if that is impossible, CacheFull if the cache has no room, OSError if its
        disk fails.
        """
        held: list[tuple[Held, dict[int, list[int]]]] = self._held
        try:
            for group, rows in self._where.items():
                held.append((group.hold(rows), rows))
            for each, rows in held:
                each.wait(self._count)
                for row, error in each.damage.items():
                    self.errors |= dict.fromkeys(rows[row], error)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        while self._held:
            self._held.pop()[0].release()
