"""Folders on their way from an origin: fetched in ranges, and compared with their digests."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import xxhash

from sa1bpack.errors import FormatError, StoreError
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import write_at
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, array_metadata, canonical_json, chunk_file
from sa1bpack.remote.origin import EndsEarly, Origin, submit

# Fetches of a file before it counts as damaged in the origin.
TRIES = 3
# What one request fetches of a larger file: several at once are faster than one, and with fewer
# bytes a request is mostly latency; see docs/cloud.md.
RANGE_BYTES = 4 << 20
# What a folder takes besides the files of its arrays.
MORE_BYTES = 1 << 16

Beat = Callable[[], None]


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
            if rows:
                if spec.chunk_path not in listed:
                    raise FormatError(
                        f"{origin.url}/{path}/{CHECKSUMS_NAME}: lacks {spec.chunk_path}"
                    )
                files[spec.chunk_path] = chunk_file(spec, rows).file_bytes, listed[spec.chunk_path]
            # What the layout says need not be asked for.
            metadata, name = (
                canonical_json(array_metadata(spec, rows)),
                f"{spec.name}/{METADATA_NAME}",
            )
            if digest_of(metadata) == listed.get(name):
                (folder / spec.name).mkdir(exist_ok=True)
                (folder / name).write_bytes(metadata)
                del files[name]
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
    files: Mapping[str, tuple[int | None, str | None]],
    beat: Beat = lambda: None,
) -> None:
    """Fetch files into a folder that is being made, all at once.

    path   of the folder in the origin
    files  path in the folder → its length, if known, and its digest, or None if that is not known

    Raises FormatError naming a file that does not have its digest, FileNotFoundError for one that
    is not there, StoreError, OSError.
    """
    for _ in range(TRIES):
        fetches = [
            _File(origin, f"{path}/{name}" if path else name, folder / name, *each)
            for name, each in files.items()
        ]
        try:
            same = set()
            for file, name in zip(fetches, files, strict=True):
                if file.outcome.result():
                    same.add(name)
                beat()
        finally:
            for file in fetches:
                file.give_up()
        files = {name: each for name, each in files.items() if name not in same}
        if not files:
            return
    raise FormatError(
        f"{origin.url}/{path}: {', '.join(files)} came {TRIES} times with other bytes than its "
        "checksum file says; run `sa1bpack verify` on the pack where it was made, and upload it "
        "again"
    )


class _File:
    """A file on its way: its requests write where their bytes belong, the last one compares.

    outcome  whether it has its digest; an error if a request failed
    """

    def __init__(
        self, origin: Origin, path: str, target: Path, nbytes: int | None, digest: str | None
    ):
        self.outcome: Future[bool] = Future()
        self._origin, self._path, self._target, self._digest = origin, path, target, digest
        self._lock = threading.Lock()
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not by name: when this was given up, another file may have it.
        self._file = _Descriptor(target)
        if nbytes is None:
            spans: Iterable = [None]
        else:
            spans = [(at, min(at + RANGE_BYTES, nbytes)) for at in range(0, nbytes, RANGE_BYTES)]
        self._left = len(spans) or 1
        for span in spans or [None]:
            submit(self._get, span)

    def _get(self, span: tuple[int, int] | None) -> None:
        try:
            if not self.outcome.done():
                data = self._delivered(span)
                write_at(self._file.number, data, 0 if span is None else span[0], self._target)
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last and not self.outcome.done():
                same = self._digest is None or file_digest(self._target) == self._digest
                self.outcome.set_result(same)
        except BaseException as error:
            with self._lock:
                if not self.outcome.done():
                    self.outcome.set_exception(error)

    def _delivered(self, span: tuple[int, int] | None) -> Any:
        """Bytes of the origin. What fails there is not an error of the disk of the cache."""
        try:
            if span is None:
                return self._origin.read(self._path)
            return self._origin.read_range(self._path, *span)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"{self._origin.url}: {error}") from error

    def give_up(self) -> None:
        """Make no request any more, if there is no outcome yet."""
        with self._lock:
            if not self.outcome.done():
                self.outcome.set_exception(StoreError(f"{self._path}: given up"))


class _Descriptor:
    """A new file, open as long as this object lives."""

    def __init__(self, path: Path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self.number = os.open(path, flags, 0o666)

    def __del__(self, close=os.close):
        close(self.number)


def digest_of(data: bytes) -> str:
    """XXH3-128 of bytes, as checksum files list it."""
    return xxhash.xxh3_128_hexdigest(data)
