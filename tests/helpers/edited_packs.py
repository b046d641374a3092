"""Packs changed by hand: a bit flipped, JSON edited, digests made to fit again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from sample_views import sample_views

from sa1bpack.format.files import format_checksums
from sa1bpack.format.index import publish
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.shard_reader import open_shard


def flip(path: Path, at: int) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Change decoded JSON in place."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def rewrite_checksums(root: Path) -> None:
    """Recompute the digests of all files, as somebody who edits a pack might."""
    for shard in (root / "shards").iterdir():
        if shard.is_dir():
            files = [p for p in shard.rglob("*") if p.is_file() and p.name != "checksums.xxh128"]
            digests = {
                str(path.relative_to(shard)): xxhash.xxh128_hexdigest(path.read_bytes())
                for path in files
            }
            (shard / "checksums.xxh128").write_bytes(format_checksums(digests))
    publish(root, read_manifest(root))


def rewrite_sample(folder: Path, row: int) -> None:
    """Recompute the checksum of a sample of a shard, as docs/format.md specifies it."""
    shard, digest = open_shard(folder), xxhash.xxh3_64()
    parts = sample_views(shard, row)
    for spec in shard.layout.arrays:
        if spec.name != "checksum":
            part = parts[spec.name]
            digest.update((np.diff(part) if spec.offsets else part).tobytes())
    path = folder / "checksum" / "c.0"
    data = bytearray(path.read_bytes())
    data[8 * row : 8 * row + 8] = digest.intdigest().to_bytes(8, "little")
    path.write_bytes(data)
