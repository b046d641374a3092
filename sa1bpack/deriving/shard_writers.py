"""The writers of the feature shards of one shard."""

from collections.abc import Callable

import numpy as np

from sa1bpack.deriving.target import FeatureTarget, ShardToDo
from sa1bpack.errors import OptionError
from sa1bpack.format.side.rows import FeatureRows, no_rows
from sa1bpack.format.side.writer import FeatureShardWriter


class ShardWriters:
    """The writers of the feature shards of one shard, one for each feature that lacks its own.

    A context manager: what is not published is left to a call that resumes, or discarded where the
    rows cannot be stored, as what computed them will change.

    Attributes:
        samples: samples, from the first on, whose rows all of them have.
    """

    def __init__(
        self,
        open_writer: Callable[[FeatureTarget, ShardToDo, np.ndarray], FeatureShardWriter],
        shard: ShardToDo,
        counts: np.ndarray,
    ):
        """
        Args:
            open_writer: opens the writer of a feature for the shard.
            shard: the shard.
            counts: int64 (N,), rows of each sample.
        """
        self._open_writer = open_writer
        self._shard = shard
        self._counts = counts
        self._targets: dict[str, FeatureTarget] = {}
        self._writers: dict[str, FeatureShardWriter] = {}

    @property
    def samples(self) -> int:
        """See the class."""
        if len(self._writers) < len(self._targets):
            return 0
        return min((writer.samples for writer in self._writers.values()), default=0)

    def add(self, target: FeatureTarget) -> None:
        """Add a feature, and open its writer if it is known what its rows are."""
        self._targets[target.name] = target
        if target.spec is not None:
            self._writers[target.name] = self._open_writer(target, self._shard, self._counts)

    def append(self, name: str, rows: FeatureRows | None, counts: np.ndarray, first: int) -> None:
        """Append the rows of the next samples, unless the feature has them.

        Args:
            name: name of the feature.
            rows: their rows; None: there are none, of a kind that is not known.
            counts: int64 (k,), rows of each sample.
            first: the first of the samples.
        """
        target = self._targets.get(name)
        if target is None:  # whose feature shard existed before
            return
        if name not in self._writers:
            if target.spec is None:  # then all samples before have no rows
                return
            self._writers[name] = self._open_writer(target, self._shard, self._counts)
        writer = self._writers[name]
        if writer.samples > first:  # a call that was killed has left them
            return
        if writer.samples < first:
            writer.append(no_rows(writer.spec), self._counts[writer.samples : first])
        if rows is None:
            rows = no_rows(writer.spec)
        writer.append(rows, counts)

    def publish(self) -> list[str]:
        """Publish the feature shards; returns the names of those that no other process has."""
        return [name for name, writer in self._writers.items() if writer.publish()]

    def __enter__(self) -> "ShardWriters":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers.values():
            if kind is not None and issubclass(kind, OptionError):
                writer.discard()
            else:
                writer.leave()
