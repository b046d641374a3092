"""The folder of a shard in a cache: made with everything but the rows of the large arrays.

Its small files are fetched and compared with their digests, its large ones made with their length
and no content; then it gets its name. So a folder with a name is complete, also after a kill.
Nothing is flushed: after a start of the machine, everything that was written before is checked.
"""

import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.cache.blocks import About, Blocks, create, samples_per_block
from sa1bpack.cache.contents import Contents, check_edges
from sa1bpack.cache.folder import DISK_IS_FULL, Cache, disk_is_full
from sa1bpack.cache.requests import Requests, submit
from sa1bpack.cache.store_origin import EndsEarly
from sa1bpack.errors import FormatError, StoreError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import temporary_beside, write_at
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, chunk_file

# Fetches of a file before it counts as damaged in the origin.
TRIES = 3

# What is removed at least for metadata when the disk is full: that of a shard of SA-1B.
_ROOM = 128 << 20

# What one request fetches of a larger file: several at once are faster than one.
PART_BYTES = 16 << 20


def folder_of(
    cache: Cache, requests: Requests, path: str, name: str, make: Callable[[Path], Contents]
) -> Blocks:
    """The folder of a shard, or of a part of a side array, made if it is not there.

    path  in the origin
    name  and the digest of its checksum file, separated by "-"
    make  its contents, in the folder where its files are

    Raises StoreError, also if the origin has another folder there now, CacheFull, OSError;
    FormatError if a file of the origin is damaged.
    """
    folder = cache.root / "folders" / name
    if (found := _opened(folder)) is None:
        at = zlib.crc32(name.encode())
        cache.folders.wait(at, True, f"fetch the metadata of {name}")
        try:
            if (found := _opened(folder)) is None:
                found = _checked(folder, make) or _fetched(cache, requests, path, folder, make)
        except (FormatError, FileNotFoundError, EndsEarly):
            if is_replaced(requests, path, folder):
                raise changed(requests, path) from None
            raise
        finally:
            cache.folders.release(at)
    return found


def is_replaced(requests: Requests, path: str, folder: Path) -> bool:
    """Whether the origin has another folder at `path` now than the one that a folder here is of."""
    digest = folder.name.rpartition("-")[2]
    try:
        reads = (requests.read(f"{path}/{CHECKSUMS_NAME}") for _ in range(TRIES))
        return all(digest_of(data) != digest for data in reads)
    except FileNotFoundError:
        return True
    except StoreError:
        return False  # it cannot be said


def changed(requests: Requests, path: str) -> StoreError:
    """The error for what is not in the origin any more."""
    return StoreError(
        f"{requests.origin.url}/{path} has changed since it was opened: open it again; if that "
        "does not help, it was uploaded in part: upload it again"
    )


def _opened(folder: Path) -> Blocks | None:
    """A folder that was made, or checked, since the machine was started."""
    try:
        found = Blocks(folder)
    except (FileNotFoundError, FormatError):
        return None
    return found if found.is_of_this_boot else None


def _checked(folder: Path, make: Callable[[Path], Contents]) -> Blocks | None:
    """A folder that was made before the machine was started, if its small files are sound."""
    if not folder.exists():
        return None
    try:
        digest = folder.name.rpartition("-")[2]
        if file_digest(folder / CHECKSUMS_NAME) != digest:
            raise FormatError("its checksum file")
        contents, listed = make(folder), read_checksums(folder / CHECKSUMS_NAME)
        for path in _whole(contents):
            if file_digest(folder / path) != listed.get(path):
                raise FormatError(path)
        found = Blocks(folder)
        if not np.array_equal(found.edges, _edges(folder, contents, found.about.per_block)):
            raise FormatError("edges of its blocks")
        for spec in contents.large:
            length = chunk_file(spec, contents.arrays[spec]).file_bytes
            if (folder / spec.chunk_path).stat().st_size != length:
                raise FormatError(spec.chunk_path)
    except (FormatError, OSError, ValueError):
        doomed = temporary_beside(folder)
        folder.rename(doomed)
        shutil.rmtree(doomed)
        return None
    found.distrust()
    return found


def _whole(contents: Contents) -> list[str]:
    """The files that are fetched whole."""
    names = [
        spec.chunk_path for spec, rows in contents.arrays.items()
        if rows and spec not in contents.large
    ]  # fmt: skip
    return [METADATA_NAME, *names]


def _fetched(
    cache: Cache, requests: Requests, path: str, folder: Path, make: Callable[[Path], Contents]
) -> Blocks:
    """A folder that is made now; samples are removed if the disk is full."""
    while True:
        try:
            return _made(cache, requests, path, folder, make)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                raise
            if not cache.make_room(_ROOM):
                raise disk_is_full(error, folder) from error


def _made(
    cache: Cache, requests: Requests, path: str, folder: Path, make: Callable[[Path], Contents]
) -> Blocks:
    staging, made = temporary_beside(folder), False
    staging.mkdir()
    try:
        contents = make(staging)
        sizes = {spec: chunk_file(spec, rows).file_bytes for spec, rows in contents.arrays.items()}
        large = {spec: sizes[spec] for spec in contents.large}
        whole = sum(sizes.values()) - sum(large.values())
        cache.take_folder(whole)
        digest = folder.name.rpartition("-")[2]
        fetch_files(requests, path, staging, {CHECKSUMS_NAME: (None, digest)})
        listed = read_checksums(staging / CHECKSUMS_NAME)
        by_path = {spec.chunk_path: size for spec, size in sizes.items()}
        files = {}
        for name in _whole(contents):
            if name not in listed:
                raise FormatError(f"{requests.origin.url}/{path}/{CHECKSUMS_NAME}: lacks {name}")
            files[name] = by_path.get(name), listed[name]
        fetch_files(requests, path, staging, files)
        for spec, nbytes in large.items():
            make_sparse(staging, spec, contents.arrays[spec], nbytes)
        total = sum(spec.row_bytes * contents.arrays[spec] for spec in contents.large)
        per_block = samples_per_block(total, contents.samples)
        edges = _edges(staging, contents, per_block)
        about = About(
            slot=cache.new_slot(), files=tuple(spec.chunk_path for spec in contents.large),
            blocks=edges.shape[1] - 1, per_block=per_block, whole=whole,
        )  # fmt: skip
        create(staging, about, edges)
        staging.rename(folder)
        made = True
    finally:
        if not made:
            cache.count_again()
        shutil.rmtree(staging, ignore_errors=True)
    return Blocks(folder)


def _edges(folder: Path, contents: Contents, per_block: int) -> np.ndarray:
    """int64 (k, n + 1): where the blocks begin in the large files. Raises FormatError."""
    check_edges(folder, contents, contents.edges(np.arange(contents.samples + 1)))
    rows = np.append(np.arange(0, contents.samples, per_block), contents.samples)
    return contents.edges(rows)


def make_sparse(folder: Path, spec: ArraySpec, rows: int, nbytes: int) -> None:
    """Make a file of its full length that is a hole, but for what follows from its length."""
    path = folder / spec.chunk_path
    path.parent.mkdir(exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(file, nbytes)
        layout = chunk_file(spec, rows)
        write_at(
            file,
            layout.tail()[layout.padded_bytes - layout.data_bytes :],
            layout.padded_bytes,
            path,
        )
    finally:
        os.close(file)


def fetch_files(
    requests: Requests, path: str, folder: Path, files: Mapping[str, tuple[int | None, str | None]]
) -> None:
    """Fetch files into a folder that is being made, all at once.

    path   of the folder in the origin
    files  path in the folder → its length, if known, and its digest, or None if that is not known

    Raises FormatError naming a file that does not have its digest, FileNotFoundError for one that
    is not there, StoreError, OSError.
    """
    for _ in range(TRIES):
        pending: list[Future] = []
        for name, (nbytes, _) in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            pending += _requested(
                requests, f"{path}/{name}" if path else name, folder / name, nbytes
            )
        errors = [error for each in pending if (error := each.exception()) is not None]
        if errors:
            raise errors[0]
        files = {
            name: (nbytes, digest) for name, (nbytes, digest) in files.items()
            if digest is not None and file_digest(folder / name) != digest
        }  # fmt: skip
        if not files:
            return
    raise FormatError(
        f"{requests.origin.url}/{path}: {', '.join(files)} came {TRIES} times with other bytes "
        "than its checksum file says; run `sa1bpack verify` on the pack where it was made, and "
        "upload it again"
    )


def _requested(requests: Requests, path: str, target: Path, nbytes: int | None) -> list[Future]:
    """Requests of a file, in parts if it is large, written where they belong."""
    if nbytes is None:
        return [submit(lambda: target.write_bytes(requests.read(path)) and None)]
    target.write_bytes(b"")

    def get(first: int) -> None:
        data = requests.read_range(path, first, min(first + PART_BYTES, nbytes))
        file = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_at(file, data, first, target)
        finally:
            os.close(file)

    return [submit(get, first) for first in range(0, nbytes, PART_BYTES)]


def digest_of(data: bytes) -> str:
    """XXH3-128 of bytes, as checksum files list it."""
    return xxhash.xxh3_128_hexdigest(data)
