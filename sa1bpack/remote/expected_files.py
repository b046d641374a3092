"""The files that a pack must have, on a server that does not say which there are.

They follow from what the pack says of itself: its manifest, its checksum file, and those of its
shards and of the features that have what it keeps of records. Each is asked for its size.
"""

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from sa1bpack.errors import FormatError, OptionError, VersionError
from sa1bpack.format.arrays import METADATA_NAME
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, is_inside, read_checksums
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, Manifest, read_manifest
from sa1bpack.format.side.kept import kept_keys
from sa1bpack.format.side.manifest import TOP_FILES, is_side
from sa1bpack.format.side.shards import SIDES_NAME, shard_identities
from sa1bpack.paths import exists
from sa1bpack.remote.bucket import Bucket
from sa1bpack.remote.origin import AT_ONCE, EndsEarly, no_pack


def expected_files(origin: Bucket) -> dict[str, int]:
    """Path → bytes, of those of the files of a pack that the server has.

    Raises:
        NotAPack: there is no manifest.
        OptionError: it is that of a feature, whose feature shards nothing lists.
        FormatError: the manifest is damaged.
        StoreError: the server cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="sa1bpack-verify-") as name:
        folder = Path(name)
        for file in (MANIFEST_NAME, CHECKSUMS_NAME):
            data = _read(origin, file)
            if data is not None:
                (folder / file).write_bytes(data)
        if not exists(folder / MANIFEST_NAME):
            raise no_pack(origin.url, MANIFEST_NAME)
        if is_side(folder):
            raise OptionError(
                f"{origin.url}: a feature on a server that does not say which files there are, so "
                "that its feature shards are not known: verify it where it was uploaded from"
            )
        paths = {MANIFEST_NAME, *_listed_in(folder)}
        try:
            manifest = read_manifest(folder)
        except VersionError as error:
            raise VersionError(str(error).replace(name, origin.url)) from None
        except FormatError:  # which the check says
            manifest = None
        if manifest is not None:
            paths |= _files_below(origin, folder, manifest)
    sizes = _answers(origin, sorted(filter(is_inside, paths)), origin.begin_size, empty=0)
    return {path: size for path, size in sizes.items() if size is not None}


def _files_below(origin: Bucket, folder: Path, manifest: Manifest) -> set[str]:
    """Paths of the files of shards, and of the features of what the pack keeps of records.

    Args:
        origin: the pack.
        folder: has its checksum file.
        manifest: its manifest.
    """
    paths = set()
    folders = []
    for shard in manifest.shards:
        path = f"{SHARDS_NAME}/{shard.name}"
        folders.append(path)
        paths.add(f"{path}/{METADATA_NAME}")
        for spec, rows in manifest.layout.array_rows(shard.lengths).items():
            paths.add(f"{path}/{spec.name}/{METADATA_NAME}")
            if rows:
                paths.add(f"{path}/{spec.chunk_path}")
    for feature, feature_shards in _kept_features(folder, manifest).items():
        paths |= {f"{feature}/{file}" for file in TOP_FILES}
        folders += [f"{feature}/{name}" for name in feature_shards]
    for path, listed in _checksum_files(origin, folders).items():
        paths |= {f"{path}/{file}" for file in listed}
    return paths


def _read(origin: Bucket, path: str) -> bytes | None:
    """A small file; None if there is none."""
    answers: dict[str, bytes | None] = _answers(origin, [path], origin.begin)
    return answers[path]


def _listed_in(folder: Path) -> set[str]:
    """The paths in the checksum file of a folder, and its own; none of one that is damaged."""
    try:
        return {CHECKSUMS_NAME, *read_checksums(folder / CHECKSUMS_NAME)}
    except (FormatError, OSError):  # which the check says
        return {CHECKSUMS_NAME}


def _kept_features(folder: Path, manifest: Manifest) -> dict[str, list[str]]:
    """Path of each feature that a pack keeps of records → names of its feature shards."""
    try:
        names = [shard.feature_shard for shard in shard_identities(folder, manifest)]
        keys = kept_keys(manifest.options, folder)
    except (FormatError, OSError):  # which the check says
        return {}
    return {f"{SIDES_NAME}/{key.name}": names for key in keys}


def _checksum_files(origin: Bucket, folders: Iterable[str]) -> dict[str, set[str]]:
    """Path of each folder → the paths in its checksum file."""
    wanted = {f"{path}/{CHECKSUMS_NAME}": path for path in folders}
    listed = {}
    with tempfile.TemporaryDirectory(prefix="sa1bpack-verify-") as name:
        for file, data in _answers(origin, list(wanted), origin.begin).items():
            if data is not None:
                Path(name, CHECKSUMS_NAME).write_bytes(data)
                listed[wanted[file]] = _listed_in(Path(name))
    return listed


def _answers(
    origin: Bucket, paths: Sequence[str], begin: Callable[[str], Future[Any]], empty: Any = b""
) -> dict[str, Any]:
    """Path → what `begin` asked for of it; None if there is no such file, `empty` of an empty one.

    Raises StoreError.
    """
    answers: dict[str, Any] = {}
    pending: deque[tuple[str, Future[Any]]] = deque()
    unasked = iter(paths)
    try:
        while True:
            for path in islice(unasked, AT_ONCE - len(pending)):
                pending.append((path, begin(path)))
            if not pending:
                return answers
            path, future = pending.popleft()
            answers[path] = None
            with suppress(FileNotFoundError):
                try:
                    answers[path] = origin.result(future)
                except EndsEarly:  # it has not even a first byte
                    answers[path] = empty
    finally:
        for _, future in pending:
            future.cancel()
