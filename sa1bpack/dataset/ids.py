"""Finding image ids: one at a time or many at once, without an object per sample."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY


@dataclass(frozen=True)
class IdLookup:
    """Where image ids are among n samples.

    ids    int64 (n,)
    order  int64 (n,): stable argsort of the ids
    path   where the order was read from, and need not be right; None: it was computed
    """

    ids: np.ndarray
    order: np.ndarray
    path: Path | None = None

    @classmethod
    def of(cls, ids: np.ndarray) -> "IdLookup":
        """Sort int64 (n,) ids."""
        return cls(ids, np.argsort(ids, kind="stable"))

    def positions(self, wanted: np.ndarray) -> np.ndarray:
        """int64 (k,): the first position of each id, -1 if there is none.

        wanted  int64 (k,), in any order

        Raises FormatError if the order that was read is none.
        """
        count = len(self.ids)
        if not count or not len(wanted):
            return np.full(len(wanted), -1)
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
