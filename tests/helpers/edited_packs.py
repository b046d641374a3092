"""Packs read and changed by hand: a bit flipped, JSON edited, digests made to fit again."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack.errors import TooManyRejects
from sa1bpack.format.files import format_checksums
from sa1bpack.format.index import publish
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.shard_reader import Shard, open_shard, rows_of_sample
from sa1bpack.format.shard_writer import finished_rows

FIRST, SECOND = "sa_000000-000", "sa_000000-001"
# The format's version in a manifest and in a group: what precedes and follows its minor number.
VERSION, FORMAT = (rb'("%s":\s*\[\s*1,\s*)0(\s*\])' % key for key in (b"version", b"format"))


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


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit of one byte: number `at`, or a fraction of the way through a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at) if isinstance(at, float) else at] ^= 1
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


def unfinished_pack(root: Path, numbers: Sequence[int] = range(10), name="sa_000000") -> Path:
    """Pack photos until the last one, which is rejected, ends the run; the tar, beside the pack."""
    found = members(numbers) | {f"./sa_{numbers[-1]}.json": b"{ not json"}
    tar = write_tar(root.with_name(f"{name}.tar"), found, shuffle=None)
    with pytest.raises(TooManyRejects):
        sa1bpack.pack(tar, root, workers=1, max_rejects=0, **SMALL)
    return tar


def forget_xxh128(root: Path) -> None:
    """Make a pack one of an earlier release, which recorded only the md5 of its sources."""
    edit(root / "manifest.json", lambda found: [each.pop("xxh128") for each in found["sources"]])
    publish(root, read_manifest(root))
