"""Samples of which rows were fetched: compared, and entered where they are in memory.

The table of files has the address of what was received for each array of a sample, as it has that
of a memory map, and the same kernel copies, converts and unpacks it.
"""

from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.shards import (
    ArrayRef,
    ArrivedSample,
    ComingSample,
    Location,
    OpenShard,
    ShardArrays,
    address_of,
)
from sa1bpack.format.files import byte_view
from sa1bpack.loading.batch.tables import IN_MEMORY
from sa1bpack.loading.located_samples import LocatedSamples


class _Memory(NamedTuple):
    """Bytes of an array that are in memory.

    Attributes:
        data: uint8 (n,), the bytes.
        first: the first of them in the array's file.
    """

    data: np.ndarray
    first: int


def enter_arrived(
    located: LocatedSamples,
    k: int,
    asked: ComingSample | None,
    direct: bool,
    files: np.ndarray,
) -> list[np.ndarray]:
    """Wait for the rows of a sample, and enter where they are in memory.

    Args:
        located: the samples of a batch.
        k: position of the sample in it, of whose shard something is fetched.
        asked: what was asked for of it, if anything was.
        direct: read what is on this machine past the page cache.
        files: FILE (p,), out; NO_FILE until the rows are there.

    Returns:
        The rows, which must be kept until the sample is loaded.

    Raises:
        Whatever `OpenShard.copy_sample` raises.
    """
    spec = located.spec
    shard = located.shard(k)
    sample = located.tables.samples[k]
    location = Location.of(sample)
    arrived = shard.arrived(location, asked, spec.chosen, direct)
    own_rows = None
    if shard.has_arrays_here:
        own_rows = shard.copy_sample(location, None, direct, arrived.coming, spec.chosen)
    rows = []
    for file, ref in zip(files, spec.refs, strict=True):
        memory = _memory(shard, location, ref, arrived, own_rows)
        rows.append(memory.data)
        file["address"] = address_of(memory.data) - memory.first
        file["first"] = memory.first
        file["stop"] = memory.first + len(memory.data)
        if ref.name == "image":  # zeros at the end of a canvas are not fetched
            sample["image_bytes"] = min(int(sample["image_bytes"]), len(memory.data))
    files["descriptor"] = IN_MEMORY
    return rows


def _memory(
    shard: OpenShard,
    location: Location,
    ref: ArrayRef,
    arrived: ArrivedSample,
    own_rows: ShardArrays | None,
) -> _Memory:
    """The bytes of an array that a sample has.

    Args:
        shard: its shard.
        location: its place.
        ref: the array.
        arrived: what was fetched of the sample, and its rows of features.
        own_rows: its rows of arrays of the shard that is on this machine; None: it is not.
    """
    coming = arrived.coming.rows(ref)
    if coming is not None:
        return _Memory(coming.memory(), coming.first * coming.spec.row_bytes)
    if ref.feature >= 0:  # on this machine, or without values
        feature = shard.features[ref.feature]
        rows = feature.spec.row_range(location.shard_row, location.first_mask, location.stop_mask)
        first, _ = feature.span(*rows)
        values = arrived.features[ref.feature].values
        return _Memory(byte_view(values), first * feature.spec.values.row_bytes)
    if own_rows is None:  # it has no rows of the array
        return _Memory(np.empty(0, np.uint8), 0)
    return _Memory(byte_view(own_rows.arrays[ref.name]), shard.first_byte(location, ref.name))
