"""Damage to the packs that `repair` is tested with."""

import json
from pathlib import Path

import xxhash

FIRST, SECOND = "sa_000000-000", "sa_000000-001"
# The format's version in a manifest and in a group: what precedes and follows its minor number.
VERSION, FORMAT = (rb'("%s":\s*\[\s*1,\s*)0(\s*\])' % key for key in (b"version", b"format"))


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit of one byte, `at` of the way through a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


def forget_xxh128(root: Path) -> None:
    """Make a pack one of an earlier release, which recorded only the md5 of its sources."""
    manifest = json.loads((root / "manifest.json").read_text())
    for source in manifest["sources"]:
        assert source["md5"] and source.pop("xxh128")
    data = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    before = xxhash.xxh3_128_hexdigest((root / "manifest.json").read_bytes())
    sums = (root / "checksums.xxh128").read_text()
    assert before in sums
    (root / "manifest.json").write_bytes(data)
    (root / "checksums.xxh128").write_text(sums.replace(before, xxhash.xxh3_128_hexdigest(data)))


def files_of(expected: dict[str, bytes], *, shard: str | None) -> list[str]:
    """Files with bytes in them: of one shard, or of the pack itself."""
    inside = f"shards/{shard}/" if shard else ""
    own = [name for name in expected if not name.startswith("shards/sa_")]
    names = [name for name in expected if name.startswith(inside)] if shard else own
    return [name for name in names if expected[name]]
