"""The samples of a dataset, shard by shard: of a selection in any order, too."""

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.select import Columns


class ShardParts:
    """The samples of a dataset in the order of its pack: a part is those that are in one shard.

    Attributes:
        edges: int64 (p + 1,): the first sample of each part in that order, and their number.
    """

    def __init__(self, dataset: Dataset):
        rows = dataset.rows
        self._order: np.ndarray | None = None  # None: the dataset has the order of the pack
        self._sorted = dataset
        if rows is not None and (np.diff(rows) < 0).any():
            self._order = np.argsort(rows, kind="stable")
            self._sorted = dataset[self._order]
        self.edges = self._sorted.shard_bounds()

    def __len__(self) -> int:
        return len(self.edges) - 1

    def positions(self, part: int) -> np.ndarray:
        """int64 (k,): where the samples of a part are in the dataset."""
        first, stop = self.edges[part : part + 2].tolist()
        if self._order is None:
            return np.arange(first, stop)
        return self._order[first:stop]

    def columns(self, part: int) -> Columns:
        """The metadata of the k samples of a part.

        Raises FormatError if their shard is damaged, StoreError if it cannot be fetched.
        """
        first, stop = self.edges[part : part + 2].tolist()
        columns: list[Columns] = [*self._sorted[first:stop].columns()]
        return columns[0]
