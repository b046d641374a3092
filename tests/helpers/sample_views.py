"""One sample of a shard, as views of its memory maps."""

import numpy as np

from sa1bpack.format.layout import Layout
from sa1bpack.format.shard_reader import Shard, rows_of_sample
from sa1bpack.format.shard_writer import finished_rows


def sample_views(shard: Shard, row: int) -> dict[str, np.ndarray]:
    """Rows by array name: per-sample arrays lack their first axis, offsets are one row more."""
    rows = rows_of_sample(shard, row, lambda spec, first, stop: shard[spec.name][first:stop])
    single = [spec.name for spec in shard.layout.arrays if spec.axis == "sample"]
    return {
        name: rows[name][0] if name in single and not name.endswith("_offset") else rows[name]
        for name in rows
    }


def sample_checksum(layout: Layout, sample: dict[str, np.ndarray]) -> int:
    """The checksum that a shard stores of a sample."""
    return int(finished_rows(layout, sample)["checksum"][0])
