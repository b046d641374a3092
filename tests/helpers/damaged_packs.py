"""Damage to the packs that `repair` is tested with."""

from pathlib import Path

FIRST, SECOND = "sa_000000-000", "sa_000000-001"
# The format's version in a manifest and in a group: what precedes and follows its minor number.
VERSION, FORMAT = (rb'("%s":\s*\[\s*1,\s*)0(\s*\])' % key for key in (b"version", b"format"))


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit of one byte, `at` of the way through a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


def files_of(expected: dict[str, bytes], *, shard: str | None) -> list[str]:
    """Files with bytes in them: of one shard, or of the pack itself."""
    inside = f"shards/{shard}/" if shard else ""
    own = [name for name in expected if not name.startswith("shards/sa_")]
    names = [name for name in expected if name.startswith(inside)] if shard else own
    return [name for name in names if expected[name]]
