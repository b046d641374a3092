"""Packs read and changed by hand: a bit flipped, JSON edited, digests made to fit again."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from format_files import (
    SUMS,
    checksums,
    digest_of,
    layout_in,
    publish,
    sample_checksum,
    sample_views,
)
from shard_files import writable_array
from small_tars import members, pack_small, write_tar

from sa1bpack.errors import TooManyRejects

FIRST, SECOND = "sa_000000-000", "sa_000000-001"
# The format's version in a manifest and in a group: what precedes and follows its minor number.
VERSION, FORMAT = (rb'("%s":\s*\[\s*1,\s*)0(\s*\])' % key for key in (b"version", b"format"))


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
            files = [path for path in shard.rglob("*") if path.is_file() and path.name != SUMS]
            digests = {str(path.relative_to(shard)): digest_of(path) for path in files}
            (shard / SUMS).write_bytes(checksums(digests))
    publish(root)


def rewrite_sample(folder: Path, row: int) -> None:
    """Recompute the checksum of a sample of a shard."""
    checksum = sample_checksum(layout_in(folder), sample_views(folder, row))
    writable_array(folder, "checksum")[row] = checksum


def unfinished_pack(root: Path, numbers: Sequence[int] = range(10), name="sa_000000") -> Path:
    """Pack photos until the last one, which is rejected, ends the run; the tar, beside the pack."""
    found = members(numbers) | {f"./sa_{numbers[-1]}.json": b"{ not json"}
    tar = write_tar(root.with_name(f"{name}.tar"), found, shuffle=None)
    with pytest.raises(TooManyRejects):
        pack_small(tar, root, max_rejects=0)
    return tar


def forget_xxh128(root: Path) -> None:
    """Make a pack one of an earlier release, which recorded only the md5 of its sources."""
    edit(root / "manifest.json", lambda found: [each.pop("xxh128") for each in found["sources"]])
    publish(root)


def lose_shard(root: Path, name: str) -> None:
    """Leave a complete pack as sa1bpack 0.1 did that had lost a shard: without a trace of it.

    One rename in a part of a job had failed; the part was repeated, and the job finalized.
    """
    shutil.rmtree(root / "shards" / name)
    manifest = json.loads((root / "manifest.json").read_text())
    kept = [entry for entry in manifest["shards"] if entry["name"] != name]
    (lost,) = [entry for entry in manifest["shards"] if entry["name"] == name]
    counts = manifest["counts"]
    counts["images"] -= lost["samples"]
    counts["masks"] -= lost["masks"]
    counts["annotations"] -= lost["annotations"]
    publish(root, [entry["name"] for entry in kept], counts=counts)
