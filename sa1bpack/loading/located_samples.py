"""The samples of a batch, once it is known where they are."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sa1bpack.dataset.shards import OpenShard
from sa1bpack.loading.batch.mask_choice import MaskChoice
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.batch.tables import SampleTables
from sa1bpack.loading.look_up import LookUp
from sa1bpack.loading.order.epoch import OrderedBatch
from sa1bpack.loading.sample_reader import ShardFiles


class LocatedShards:
    """The distinct shards of batches that are located together, and their open files.

    Attributes:
        shards: the shards.
        fetched: bool (s,), of which of them something is fetched.
        files: read past the page cache, or through it → the files of all of the shards that are
            here, and FILE (s, p), a row for each shard.
    """

    def __init__(self, shards: Sequence[OpenShard]):
        self.shards = shards
        self.fetched = np.array([shard.is_fetched for shard in shards], np.bool_)
        self.files: dict[bool, tuple[list[ShardFiles], np.ndarray]] = {}


@dataclass(frozen=True, eq=False)
class LocatedSamples:
    """The samples of a batch, and the shards that they are in.

    Attributes:
        ordered: which batch it is, with the samples that could be located.
        spec: layout of batches in their buffers.
        look_up: finds samples in their shards, and in copies that are checked.
        choice: which masks are kept.
        tables: where the arrays of the samples are.
        shards: the shards.
        shard_at: int64 (n,), which of these each sample is in.
    """

    ordered: OrderedBatch
    spec: BatchSpec
    look_up: LookUp
    choice: MaskChoice
    tables: SampleTables
    shards: LocatedShards
    shard_at: np.ndarray

    def __len__(self) -> int:
        return len(self.shard_at)

    def shard(self, k: int) -> OpenShard:
        """The shard of sample k."""
        return self.shards.shards[int(self.shard_at[k])]
