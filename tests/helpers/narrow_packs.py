"""Packs of a small layout whose images have any stored width, for the tests of the format."""

from pathlib import Path

import numpy as np
from reading_packs import made_sample, publish_shards, write_shard

from sa1bpack.format.layout import Layout

NARROW = Layout(image_size=16, mask_size=8)
MASKS_OF_SHARDS = {"sa_000000-000": (2, 0, 5, 1), "sa_000000-001": (), "sa_000001-000": (0, 3, 4)}


def sample_of(number: int, masks: int, layout: Layout = NARROW) -> dict[str, np.ndarray]:
    """A sample of random content that depends on `number` only."""
    return made_sample(number, masks, layout, narrow=True)


def shard_of(shards: Path, name: str, masks: tuple[int, ...], first: int, layout=NARROW):
    """Publish a shard of samples, of numbers from the first one down; its manifest entry."""
    samples = [sample_of(first - row, count, layout) for row, count in enumerate(masks)]
    return write_shard(shards, name, samples, layout)


def pack_of(root: Path, layout: Layout = NARROW):
    """Publish a pack of three shards, the middle one empty, with descending ids; its manifest."""
    entries = [
        shard_of(root / "shards", name, masks, 1000 * number + 99, layout)
        for number, (name, masks) in enumerate(MASKS_OF_SHARDS.items())
    ]
    records = {"sources": [{"name": "sa_000000"}], "counts": {"rejects": 0}}
    return publish_shards(root, entries, layout, options={"fit": "pad"}, **records)
