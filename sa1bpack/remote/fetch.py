"""Folders on their way from an origin: fetched in ranges, and compared with their digests."""

import io
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import xxhash

from sa1bpack.errors import FormatError, StoreError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import write_at
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, array_metadata, canonical_json, chunk_file
from sa1bpack.remote.origin import Origin, submit
from sa1bpack.remote.stores import EndsEarly

# Fetches of a file before it counts as damaged in the origin.
TRIES = 3
# What one request fetches of a larger file: several at once are faster than one, and with fewer
# bytes a request is mostly latency; see docs/cloud.md.
RANGE_BYTES = 4 << 20
# What a folder takes besides the files of its arrays.
MORE_BYTES = 1 << 16

Beat = Callable[[], None]
# Path of a file in a folder → its length, if known, and its digest, or None if that is not known.
Files = Mapping[str, tuple[int | None, str | None]]


def folder_bytes(arrays: Mapping[ArraySpec, int]) -> int:
    """Bytes of a folder with these arrays, each with so many rows."""
    return MORE_BYTES + sum(
        chunk_file(spec, rows).file_bytes for spec, rows in arrays.items() if rows
    )


def fetch_group(
    origin: Origin,
    path: str,
    digest: str,
    arrays: Mapping[ArraySpec, int],
    folder: Path,
    beat: Beat,
) -> None:
    """Fetch a shard, or a part of a side array, into a folder that is being made.

    path    in the origin
    digest  XXH3-128 of its checksum file
    arrays  that it has, each with its number of rows
    beat    called whenever something has come

    Raises StoreError, also if the origin has something else there by now; FormatError naming what
    is damaged in the origin; OSError if the disk fails.
    """
    try:
        fetch_files(origin, path, folder, {CHECKSUMS_NAME: (None, digest)}, beat)
        listed = read_checksums(folder / CHECKSUMS_NAME)
        files: dict[str, tuple[int | None, str | None]] = {
            name: (None, each) for name, each in listed.items()
        }
        for spec, rows in arrays.items():
            name = f"{spec.name}/{METADATA_NAME}"
            metadata = canonical_json(array_metadata(spec, rows))
            if digest_of(metadata) == listed.get(name):
                (folder / spec.name).mkdir(exist_ok=True)
                (folder / name).write_bytes(metadata)
                del files[name]  # what the layout says need not be asked for
            if rows and spec.chunk_path not in listed:
                raise FormatError(f"{origin.url}/{path}/{CHECKSUMS_NAME}: lacks {spec.chunk_path}")
            if rows:
                files[spec.chunk_path] = chunk_file(spec, rows).file_bytes, listed[spec.chunk_path]
        fetch_files(origin, path, folder, files, beat)
    except (FormatError, FileNotFoundError, EndsEarly) as error:
        if _is_replaced(origin, path, digest):
            raise changed(origin, path) from None
        if isinstance(error, FileNotFoundError):
            raise FormatError(f"{error.filename}: missing; upload the pack again") from None
        raise


def is_sound(folder: Path, digest: str) -> bool:
    """Whether a folder has all the bytes that its checksum file, of this digest, says."""
    try:
        return file_digest(folder / CHECKSUMS_NAME) == digest and all(
            file_digest(folder / name) == each
            for name, each in read_checksums(folder / CHECKSUMS_NAME).items()
        )
    except (FormatError, OSError):
        return False


def _is_replaced(origin: Origin, path: str, digest: str) -> bool:
    """Whether the origin has something else at `path` than what has this digest."""
    try:
        reads = (origin.read(f"{path}/{CHECKSUMS_NAME}") for _ in range(TRIES))
        return all(digest_of(data) != digest for data in reads)
    except FileNotFoundError:
        return True
    except (StoreError, FormatError):
        return False  # it cannot be said


def changed(origin: Origin, path: str) -> StoreError:
    """The error for what is not in the origin any more."""
    return StoreError(
        f"{origin.url}/{path} has changed since it was opened: open it again; if that does not "
        "help, it was uploaded in part: upload it again"
    )


def fetch_files(
    origin: Origin,
    path: str,
    folder: Path,
    files: Files,
    beat: Beat = lambda: None,
) -> None:
    """Fetch files into a folder that is being made, all at once.

    path  of the folder in the origin

    Raises FormatError naming a file that does not have its digest, FileNotFoundError for one that
    is not there, StoreError, OSError.
    """
    for _ in range(TRIES):
        given_up = threading.Event()  # from then on, no request is begun
        try:
            fetches = [
                _fetch(origin, f"{path}/{name}" if path else name, folder / name, nbytes, given_up)
                for name, (nbytes, _) in files.items()
            ]
            for part in itertools.chain.from_iterable(fetches):
                part.result()
                beat()
        finally:
            given_up.set()
        files = {
            name: (nbytes, digest)
            for name, (nbytes, digest) in files.items()
            if digest is not None and file_digest(folder / name) != digest
        }
        if not files:
            return
    raise FormatError(
        f"{origin.url}/{path}: {', '.join(files)} came {TRIES} times with other bytes than its "
        "checksum file says; run `sa1bpack verify` on the pack where it was made, and upload it "
        "again"
    )


def _fetch(
    origin: Origin, path: str, target: Path, nbytes: int | None, given_up: threading.Event
) -> list[Future]:
    """Begin the requests for a file, each of which writes its bytes where they belong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    file = _NewFile(target, "w")  # not by name: when this was given up, another may have it

    def get(first: int, stop: int | None) -> None:
        if given_up.is_set():
            return
        try:
            data = origin.read(path) if stop is None else origin.read_range(path, first, stop)
        except FileNotFoundError:
            raise
        except OSError as error:  # which is not one of the disk of the cache
            raise StoreError(f"{origin.url}: {error}") from error
        write_at(file.fileno(), data, first, target)

    if not nbytes:
        return [submit(get, 0, None)]
    starts = range(0, nbytes, RANGE_BYTES)
    return [submit(get, first, min(first + RANGE_BYTES, nbytes)) for first in starts]


class _NewFile(io.FileIO):
    """A new file, closed without a warning when nobody has hold of it."""

    def __del__(self):
        self.close()


def digest_of(data: bytes) -> str:
    """XXH3-128 of bytes, as checksum files list it."""
    return xxhash.xxh3_128_hexdigest(data)
