"""What a pack at a URL says of itself, fetched into a folder that looks like its own.

A summary needs no shard: manifest, index and checksums of the pack are in the cache; here come the
log of its runs, its rejects, two small files of each shard, and what its features say of
themselves.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sa1bpack.errors import FormatError
from sa1bpack.format.arrays import METADATA_NAME
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, read_checksums
from sa1bpack.format.manifest import MANIFEST_NAME, REJECTS_NAME, SHARDS_NAME
from sa1bpack.format.run_log import RUNS_NAME
from sa1bpack.format.side.manifest import read_side_manifest
from sa1bpack.format.side.shards import SIDES_NAME, ShardIdentity
from sa1bpack.remote.origin import Files, Origin, fetch_files


def fetch_pack_records(origin: Origin, root: Path, folder: Path) -> None:
    """Fetch what a pack and its features say of themselves, see `urls.ShardSource.fetch_records`.

    Args:
        origin: the pack.
        root: folder of the cache that has its manifest, index and checksums.
        folder: an empty folder.
    """
    for entry in root.iterdir():
        if entry.name not in (SHARDS_NAME, REJECTS_NAME):
            (folder / entry.name).symlink_to(entry.absolute())
    (folder / SHARDS_NAME).mkdir()
    asked = {name: origin.begin(name) for name in (REJECTS_NAME, RUNS_NAME)}
    for name, future in asked.items():
        data = _bytes_or_none(origin, future)
        if data is not None:
            (folder / name).write_bytes(data)
    if origin.lists:
        for name in origin.folders(f"{SIDES_NAME}/"):
            _fetch_side_records(origin, f"{SIDES_NAME}/{name}", folder / SIDES_NAME / name)


def _bytes_or_none(origin: Origin, future: Future[Any]) -> bytes | None:
    """What was asked for of an origin; None if there is no such file."""
    try:
        return bytes(origin.result(future))
    except FileNotFoundError:
        return None


def _fetch_side_records(origin: Origin, path: str, folder: Path) -> None:
    """Fetch what a feature says of itself, and make folders that its feature shards are named by.

    Of ragged rows, how many items they have is fetched as well.
    """
    names = [name for name in origin.folders(f"{path}/") if not name.startswith(".")]
    for name in names:
        (folder / name).mkdir(parents=True)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = _bytes_or_none(origin, origin.begin(f"{path}/{MANIFEST_NAME}"))
    if manifest is None:
        return
    (folder / MANIFEST_NAME).write_bytes(manifest)
    try:
        is_ragged = read_side_manifest(folder).spec.ragged
    except FormatError:  # which the summary says
        return
    if is_ragged:
        wanted: Files = {f"{name}/{METADATA_NAME}": (None, None) for name in names}
        fetch_files(origin, path, folder, wanted)


def fetch_shard_records(origin: Origin, shards: Sequence[ShardIdentity], folder: Path) -> None:
    """Fetch the checksum file and the attributes of shards, compared with their digests.

    Args:
        origin: the pack.
        shards: its shards.
        folder: see `fetch_pack_records`.

    Raises:
        FormatError: a file is missing, or is not what was written.
        StoreError: the origin cannot be read.
    """
    wanted: dict[str, tuple[int | None, str | None]] = {}
    for shard in shards:
        wanted[f"{shard.name}/{CHECKSUMS_NAME}"] = None, shard.digest
        wanted[f"{shard.name}/{METADATA_NAME}"] = None, None
    shards_folder = folder / SHARDS_NAME
    arrived = fetch_files(origin, SHARDS_NAME, shards_folder, wanted)
    others: dict[str, tuple[int | None, str | None]] = {}
    for shard in shards:
        listed = read_checksums(shards_folder / shard.name / CHECKSUMS_NAME)
        name = f"{shard.name}/{METADATA_NAME}"
        if arrived[name] != listed.get(METADATA_NAME):
            others[name] = None, listed.get(METADATA_NAME)
    fetch_files(origin, SHARDS_NAME, shards_folder, others)
