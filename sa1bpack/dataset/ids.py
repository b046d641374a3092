"""Finding image ids: one at a time or many at once, without an object per sample."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY

# From a sixteenth of the samples on, a table of all ids is faster than a search for each one.
_MANY = 16
# A table has an entry for each number between the lowest and the highest id: at most so many per
# sample. The ids of SA-1B have few gaps.
_WIDEST = 8


@dataclass(frozen=True)
class IdLookup:
    """Where image ids are among n samples.

    ids     int64 (n,)
    stored  int64 (n,): stable argsort of the ids, as it was read; need not be right
    path    where it was read from
    """

    ids: np.ndarray
    stored: np.ndarray | None = None
    path: Path | None = None

    @cached_property
    def order(self) -> np.ndarray:
        """int64 (n,): stable argsort of the ids; computed once unless it was read."""
        return np.argsort(self.ids, kind="stable") if self.stored is None else self.stored

    def positions(self, wanted: np.ndarray) -> np.ndarray:
        """int64 (k,): the first position of each id, -1 if there is none.

        wanted  int64 (k,), in any order

        Raises FormatError if the order that was read is none.
        """
        count = len(self.ids)
        if not count or not len(wanted):
            return np.full(len(wanted), -1)
        if len(wanted) * _MANY < count:
            return self._searched(wanted)
        low, high = int(self.ids.min()), int(self.ids.max())
        if high - low < _WIDEST * count:
            return self._from_table(wanted, low, high)
        by_id = np.argsort(wanted)  # each search begins where the last one ended, in the cache
        found = np.empty(len(wanted), np.int64)
        found[by_id] = self._searched(wanted[by_id])
        return found

    def _from_table(self, wanted: np.ndarray, low: int, high: int) -> np.ndarray:
        """`positions` by a table from ids, of `low` to `high`, to positions."""
        count = len(self.ids)
        table = np.full(high - low + 2, -1, np.int32 if count < 1 << 31 else np.int64)
        table[self.ids[::-1] - low] = np.arange(count - 1, -1, -1)  # of several, the first
        inside = (wanted >= low) & (wanted <= high)
        return table[np.where(inside, wanted, high + 1) - low].astype(np.int64)

    def _searched(self, wanted: np.ndarray) -> np.ndarray:
        """`positions` by a binary search for each id."""
        count = len(self.ids)
        try:
            at = np.searchsorted(self.ids, wanted, sorter=self.order)
            found = self.order[np.minimum(at, count - 1)]
            bad = bool(found.min() < 0 or found.max() >= count)
        except (IndexError, ValueError):  # numpy's words for a row that does not exist
            bad = True
        if bad:
            raise FormatError(f"{self.path}: a row is not from 0 to {count - 1}; {REMEDY}")
        return np.where(self.ids[found] == wanted, found, -1)

    def repeated(self) -> np.ndarray:
        """int64 (r,): positions of all samples whose id another one has, sorted by id."""
        ordered = self.ids[self.order]
        same = ordered[1:] == ordered[:-1]
        return self.order[np.append(same, False) | np.append(False, same)]
