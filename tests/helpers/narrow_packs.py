"""Packs of a small layout whose images have any stored width, for the tests of the format."""

from pathlib import Path
from typing import Any

from format_files import Sample, layout_of, publish, write_shard
from reading_packs import made_sample

NARROW = layout_of(image_size=16, mask_size=8)
MASKS_OF_SHARDS = {"sa_000000-000": (2, 0, 5, 1), "sa_000000-001": (), "sa_000001-000": (0, 3, 4)}


def sample_of(number: int, masks: int, layout: dict[str, Any] = NARROW) -> Sample:
    """A sample of random content that depends on `number` only."""
    return made_sample(number, masks, layout, narrow=True)


def shard_of(shards: Path, name: str, masks: tuple[int, ...], first: int, layout=NARROW) -> None:
    """Write a shard of samples, of numbers from the first one down."""
    samples = [sample_of(first - row, count, layout) for row, count in enumerate(masks)]
    write_shard(shards, name, samples, layout)


def pack_of(root: Path, layout: dict[str, Any] = NARROW) -> None:
    """Publish a pack of three shards, the middle one empty, with descending ids."""
    for number, (name, masks) in enumerate(MASKS_OF_SHARDS.items()):
        shard_of(root / "shards", name, masks, 1000 * number + 99, layout)
    records = {"sources": [{"name": "sa_000000"}], "counts": {"rejects": 0}}
    publish(root, MASKS_OF_SHARDS, layout=layout, options={"fit": "pad"}, **records)
