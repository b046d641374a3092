"""Publishing a pack: index, manifest and checksums, each written atomically, in a safe order."""

from pathlib import Path

import msgspec
import xxhash

from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, format_checksums
from sa1bpack.format.files import (
    flush_folder,
    make_folder,
    remove_published,
    remove_temporaries,
    replace_file,
)
from sa1bpack.format.index import build_index, index_arrays
from sa1bpack.format.manifest import (
    MANIFEST_NAME,
    SHARDS_NAME,
    Manifest,
    is_index_name,
    manifest_bytes,
    write_manifest,
)
from sa1bpack.format.zarr_metadata import (
    METADATA_NAME,
    canonical_json,
    group_files,
    group_metadata,
    root_metadata,
)

REJECTS_NAME = "rejects.jsonl"


def publish(root: Path, manifest: Manifest, *, rebuild_index: bool = False) -> Manifest:
    """Make a pack's published shards visible as one data set; returns the manifest with its index.

    rebuild_index
        Write the index also if it exists: it may be damaged, and is replaced in one step.

    The order makes a kill harmless at any point: group metadata, the new index under its own name,
    manifest and checksums, and only then the removal of older indexes. The rename of the manifest
    switches readers over. A manifest that says `complete` comes after its checksums, any other
    before them: so the checksums always fit a complete pack, and a kill makes them stale only
    where `verify` expects it. For this, a complete pack must be published as not complete before
    shards are added to it. The same manifest and shards give the same bytes.

    Raises FormatError if a listed shard is not published, OSError if writing fails.
    """
    root = Path(root)
    make_folder(root / SHARDS_NAME)
    # A killed run may have renamed what is listed now without flushing it.
    for folder in (root, root / SHARDS_NAME):
        flush_folder(folder)
    _replace_if_other(root / METADATA_NAME, canonical_json(root_metadata()))
    _replace_if_other(root / SHARDS_NAME / METADATA_NAME, canonical_json(group_metadata()))
    index = build_index(root, manifest, rebuild=rebuild_index) if manifest.shards else None
    manifest = msgspec.structs.replace(manifest, index=index)
    steps = (_write_checksums, write_manifest)
    for step in steps if manifest.complete else reversed(steps):
        step(root, manifest)
    remove_old_indexes(root, index)
    return manifest


def _write_checksums(root: Path, manifest: Manifest) -> None:
    """Write the top checksum file of a pack with this manifest, which may not be written yet."""
    digests = {MANIFEST_NAME: xxhash.xxh3_128_hexdigest(manifest_bytes(manifest))}
    for path in sorted(top_files(root, manifest) - {MANIFEST_NAME}):
        digests[path] = file_digest(root / path)
    _replace_if_other(root / CHECKSUMS_NAME, format_checksums(digests))


def top_files(root: Path, manifest: Manifest) -> set[str]:
    """Paths below `root` that the top checksum file covers."""
    paths = {MANIFEST_NAME, METADATA_NAME, f"{SHARDS_NAME}/{METADATA_NAME}"}
    if (root / REJECTS_NAME).exists():
        paths.add(REJECTS_NAME)
    if manifest.index is not None:
        paths |= {f"{manifest.index}/{path}" for path in group_files(index_arrays(manifest))}
    paths.update(f"{SHARDS_NAME}/{shard.name}/{CHECKSUMS_NAME}" for shard in manifest.shards)
    return paths


def remove_stale(root: Path, keep: Path | None = None) -> list[Path]:
    """Remove working files and folders that a killed run left, except `keep`; returns them.

    Only for the process that holds the pack's lock: those of a running packer would go, too.
    """
    root = Path(root)
    return remove_temporaries(root, keep) + remove_temporaries(root / SHARDS_NAME)


def shard_folders(root: Path) -> list[Path]:
    """Folders of all published shards, listed or not, sorted by name."""
    shards = Path(root) / SHARDS_NAME
    if not shards.is_dir():
        return []
    return sorted(path for path in shards.iterdir() if path.is_dir() and path.name[0] != ".")


def _replace_if_other(path: Path, data: bytes) -> None:
    """Replace a file unless it already holds these bytes."""
    if not path.is_file() or path.read_bytes() != data:
        replace_file(path, data)


def remove_old_indexes(root: Path, index: str | None) -> None:
    """Remove indexes that the manifest no longer names; their open memory maps stay valid."""
    for path in sorted(root.iterdir()):
        if is_index_name(path.name) and path.name != index:
            remove_published(path)
