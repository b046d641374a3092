"""Publishing a pack: index, then manifest, then checksums, each whole or absent."""

import shutil
from pathlib import Path

import msgspec

from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, format_checksums
from sa1bpack.format.files import remove_temporaries, replace_file
from sa1bpack.format.index import build_index, index_arrays
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    Manifest,
    ShardEntry,
    write_manifest,
)
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.zarr_metadata import (
    METADATA_NAME,
    canonical_json,
    group_metadata,
    root_metadata,
)

REJECTS_NAME = "rejects.jsonl"


def publish(root: Path, manifest: Manifest) -> Manifest:
    """Make a pack's published shards visible as one data set; returns the manifest with its index.

    The order makes a kill harmless at any point: group metadata, the new index under its own name,
    the manifest (this one rename switches readers over), the checksums, and only then the removal
    of older indexes. Killed between manifest and checksums, `verify` calls the checksums stale
    until the next publication. The same manifest and shards give the same bytes.

    Raises FormatError if a listed shard is not published, OSError if writing fails.
    """
    root = Path(root)
    (root / SHARDS_NAME).mkdir(parents=True, exist_ok=True)
    _replace_if_other(root / METADATA_NAME, canonical_json(root_metadata()))
    _replace_if_other(root / SHARDS_NAME / METADATA_NAME, canonical_json(group_metadata()))
    index = build_index(root, manifest) if manifest.shards else None
    manifest = msgspec.structs.replace(manifest, index=index)
    write_manifest(root, manifest)
    digests = {path: file_digest(root / path) for path in sorted(top_files(root, manifest))}
    _replace_if_other(root / CHECKSUMS_NAME, format_checksums(digests))
    _remove_old_indexes(root, index)
    return manifest


def top_files(root: Path, manifest: Manifest) -> set[str]:
    """Paths below `root` that the top checksum file covers."""
    paths = {MANIFEST_NAME, METADATA_NAME, f"{SHARDS_NAME}/{METADATA_NAME}"}
    if (root / REJECTS_NAME).exists():
        paths.add(REJECTS_NAME)
    if manifest.index is not None:
        paths.add(f"{manifest.index}/{METADATA_NAME}")
        for spec, rows in index_arrays(manifest).items():
            paths.add(f"{manifest.index}/{spec.name}/{METADATA_NAME}")
            if rows:
                paths.add(f"{manifest.index}/{spec.chunk_path}")
    paths.update(f"{SHARDS_NAME}/{shard.name}/{CHECKSUMS_NAME}" for shard in manifest.shards)
    return paths


def remove_stale(root: Path) -> list[Path]:
    """Remove working files and folders that a killed run left; returns what was removed.

    For the one process that holds the pack's lock: it would remove a running packer's drafts too.
    """
    root = Path(root)
    return remove_temporaries(root) + remove_temporaries(root / SHARDS_NAME)


def scan_shards(root: Path) -> list[ShardEntry]:
    """Manifest entries of all shards published under `root`, listed or not, sorted by name.

    Raises FormatError for a folder that bears a shard's name but is not a whole shard.
    """
    shards = Path(root) / SHARDS_NAME
    if not shards.is_dir():
        return []
    folders = [path for path in shards.iterdir() if path.is_dir() and path.name[0] != "."]
    return [open_shard(folder).entry for folder in sorted(folders)]


def _replace_if_other(path: Path, data: bytes) -> None:
    """Replace a file unless it holds these bytes already."""
    if not path.is_file() or path.read_bytes() != data:
        replace_file(path, data)


def _remove_old_indexes(root: Path, index: str | None) -> None:
    """Remove indexes that the manifest no longer names; open memory maps of them stay valid."""
    for path in sorted(root.glob("index-*")):
        if path.name != index:
            shutil.rmtree(path)
