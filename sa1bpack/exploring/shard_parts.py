"""The samples of a dataset, shard by shard: of a selection in any order, too."""

from collections.abc import Iterable

import numpy as np

from sa1bpack.dataset.columns import Columns
from sa1bpack.dataset.condition_values import values_of_samples
from sa1bpack.dataset.conditions import Condition
from sa1bpack.dataset.dataset import Dataset


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
        # Features may be fetched with their shards, so those that nobody asks for are not opened.
        self._bare = self._sorted.with_options(features=())
        self._without_features = values_of_samples(self._bare.pack).keys()

    def __len__(self) -> int:
        return len(self.edges) - 1

    def positions(self, part: int) -> np.ndarray:
        """int64 (k,): where the samples of a part are in the dataset."""
        first, stop = self.edges[part : part + 2].tolist()
        if self._order is None:
            return np.arange(first, stop)
        return self._order[first:stop]

    def name_features(self, conditions: Iterable[Condition]) -> bool:
        """True if conditions compare a feature."""
        operands = {operand for condition in conditions for operand in condition.operands()}
        return not operands <= self._without_features

    def columns(self, part: int, conditions: Iterable[Condition] = ()) -> Columns:
        """The metadata of the k samples of a part, with features if conditions compare one.

        Raises FormatError if their shard is damaged, StoreError if it cannot be fetched.
        """
        dataset = self._sorted if self.name_features(conditions) else self._bare
        first, stop = self.edges[part : part + 2].tolist()
        columns: list[Columns] = [*dataset[first:stop].columns()]
        return columns[0]
