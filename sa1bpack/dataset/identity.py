"""What identifies the samples of a dataset and their order: content, not the place of a pack.

The fingerprint is an XXH3-64 of the digests of the shards that have the samples, and of the rows in
them, as docs/format.md specifies. It is the same for the same samples in a pack that has grown, in
a merged one, and over several packs: orders and states of a selection depend on nothing else.
"""

import numpy as np
import xxhash

from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import Rows, shard_bounds
from sa1bpack.masks import MaskRule

_VERSION = b"sa1bpack samples 1\n"


def fingerprint(pack: Pack, rows: Rows, rule: MaskRule | None = None) -> str:
    """16 hexadecimal digits. Raises FormatError if the checksum file of a shard is missing.

    rule  which masks the samples have; None for all
    """
    numbers, first, count = stretches(pack, rows)
    shards = len(pack.shards)
    used_at = np.full(shards, len(numbers))
    used_at[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of an index given twice, the last
    used = np.argsort(used_at, kind="stable")[: np.count_nonzero(used_at < len(numbers))]
    ordinal = np.empty(shards, np.int64)
    ordinal[used] = np.arange(len(used))
    digest = xxhash.xxh3_64(_VERSION)
    digests = pack.digests
    digest.update("".join(f"{digests[number]}\n" for number in used.tolist()).encode())
    digest.update(np.stack([ordinal[numbers], first, count], 1).astype("<i8").tobytes())
    if rule is not None:
        digest.update(f"{rule.as_text()}\n".encode())
    return digest.hexdigest()


def stretches(pack: Pack, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The longest stretches of neighbouring rows of one shard, in the order of the rows.

    Returns the shard's number, the first row in the shard, and the number of rows: int64 (s,) each.
    """
    if isinstance(rows, range) and rows.step == 1:
        edges = shard_bounds(pack.shards.first_row, rows)
        starts = rows.start + edges[:-1]
    else:
        rows = np.asarray(rows)
        breaks = np.diff(rows) != 1
        breaks |= np.diff(pack.shard_numbers(rows)) != 0
        edges = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(rows)]])
        starts = rows[edges[:-1]] if len(rows) else rows
        edges = edges if len(rows) else edges[:1]
    numbers = pack.shard_numbers(starts)
    first = starts - np.array(pack.shards.first_row)[numbers]
    return numbers, first, np.diff(edges)
