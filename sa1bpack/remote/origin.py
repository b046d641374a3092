"""Origins of the files of a pack, and folders that are fetched from there.

An origin is a folder on a slower file system, or one of a bucket (`bucket.Bucket`). Files are
fetched in ranges, several at once, and compared with their digests.
"""

import functools
import os
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from sa1bpack.errors import FormatError, NotAPack, StoreError
from sa1bpack.format.arrays import (
    METADATA_NAME,
    ChunkFile,
    array_metadata,
    canonical_json,
    group_bytes,
)
from sa1bpack.format.files import (
    CHECKSUMS_NAME,
    cut_short,
    file_digest,
    naming,
    open_file,
    opened,
    read_checksums,
    read_metadata_file,
    write_at,
)
from sa1bpack.format.layout import ArraySpec
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import FOLDER_BYTES, Counts, local_folder

# Requests at once for a shard: an object store takes tens of milliseconds to answer each, and
# delivers some 50 to 100 MB/s of it then; see docs/cloud.md.
AT_ONCE = 32
# Fetches of a file before it counts as damaged in the origin; requests to a store before it fails.
TRIES = 3
# What one request fetches of a larger file: several at once are faster than one, and with fewer
# bytes a request is mostly latency; see docs/cloud.md.
RANGE_BYTES = 4 << 20

# Path of a file in a folder → its length and its digest, or None if that is not known.
Files = Mapping[str, tuple[int | None, str | None]]


class EndsEarly(StoreError):
    """A file ends before the bytes that were asked for."""


class Origin:
    """A folder of files, read in whole or in ranges, by any number of threads at once.

    Every method raises FileNotFoundError for what is not there, and StoreError if the store cannot
    be reached, refuses, or returns fewer bytes than asked for: EndsEarly if the file has no more.

    Attributes:
        url: URL of the folder, without credentials.
        forks: it can be read in a child that was forked.
        counts: counts of what was fetched, and of hits and misses.
    """

    forks = True

    def __init__(self, url: str):
        """A folder of this machine, such as a mounted network file system."""
        self.url = url
        self.counts = Counts()

    def count(self, counts: Counts) -> None:
        """Add to the counts."""
        with _counting:
            self.counts = self.counts + counts

    def read(self, path: str) -> bytes:
        """The bytes of a small file. Raises FormatError if it is no file, or a large one."""
        return read_metadata_file(self._at(path))

    def read_range(self, path: str, first: int, stop: int) -> Any:
        """Bytes `first` to `stop` of a file, all of them: an object with a buffer."""
        place = self._at(path)
        data = bytearray(stop - first)
        done = 0
        with naming(place), os.fdopen(open_file(place), "rb", 0) as file:
            file.seek(first)
            while done < len(data) and (count := file.readinto(memoryview(data)[done:])):
                done += count
        if done < len(data):
            raise EndsEarly(str(cut_short(place, first + done, stop)))
        return data

    def begin(self, path: str, first: int = 0, stop: int | None = None) -> Future:
        """Begin `read_range`, or `read` without a `stop`; for `result`."""
        if stop is None:
            return _readers(os.getpid()).submit(self.read, path)
        return _readers(os.getpid()).submit(self.read_range, path, first, stop)

    def result(self, future: Future) -> Any:
        """The result of what `begin` has begun; raises what that raised."""
        return future.result()

    def folders(self, path: str) -> list[str]:
        """Names of the folders right below "", or "FOLDER/", sorted; empty if there is none."""
        try:
            return sorted(entry.name for entry in os.scandir(self._at(path)) if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _at(self, path: str) -> Path:
        return local_folder(self.url) / path


_counting = threading.Lock()
os.register_at_fork(
    before=_counting.acquire, after_in_parent=_counting.release, after_in_child=_counting.release
)


@functools.cache
def _readers(process: int) -> ThreadPool:
    """Threads that read files of this machine; a fork has its own."""
    return ThreadPool(AT_ONCE, "sa1bpack-fetch")


def folder_bytes(arrays: Mapping[ArraySpec, int]) -> int:
    """Bytes of a folder with these arrays, each with its number of rows."""
    return FOLDER_BYTES + group_bytes(arrays)


def fetch_group(
    origin: Origin, path: str, digest: str, arrays: Mapping[ArraySpec, int], folder: Path
) -> None:
    """Fetch a shard, or a feature shard, into a folder that is being made.

    Args:
        path: path in the origin.
        digest: XXH3-128 of its checksum file.
        arrays: arrays that it has, each with its number of rows.

    Raises:
        StoreError: the origin cannot be read, or has something else there by now.
        FormatError: the origin is damaged; the message names what.
        OSError: the disk fails.
    """
    try:
        fetch_files(origin, path, folder, {CHECKSUMS_NAME: (None, digest)})
        listed = read_checksums(folder / CHECKSUMS_NAME)
        files = {name: (None, each) for name, each in listed.items()}
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
                files[spec.chunk_path] = ChunkFile(spec, rows).file_bytes, listed[spec.chunk_path]
        fetch_files(origin, path, folder, files)
    except (FormatError, EndsEarly):
        if is_replaced(origin, f"{path}/{CHECKSUMS_NAME}", digest):
            raise changed(origin, path) from None
        raise


def is_sound(folder: Path, digest: str) -> bool:
    """True if a folder has all the bytes that its checksum file, of this digest, says."""
    try:
        return file_digest(folder / CHECKSUMS_NAME) == digest and all(
            file_digest(folder / name) == each
            for name, each in read_checksums(folder / CHECKSUMS_NAME).items()
        )
    except (FormatError, OSError):
        return False


def is_replaced(origin: Origin, path: str, digest: str) -> bool:
    """True if the origin has another file at `path` than that of this digest, or none."""
    try:
        return all(digest_of(origin.read(path)) != digest for _ in range(TRIES))
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


def fetch_files(origin: Origin, path: str, folder: Path, files: Files) -> None:
    """Fetch files into a folder that is being made, AT_ONCE of them, or of their ranges, at once.

    Args:
        path: path of the folder in the origin.

    Raises:
        FormatError: a file is missing, or does not have its digest; the message names it.
        StoreError: the origin cannot be read.
        OSError: the disk fails.
    """
    for _ in range(TRIES):
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).unlink(missing_ok=True)
        steps = ((name, *step) for name, (nbytes, _) in files.items() for step in _steps(nbytes))
        pending: deque[tuple[str, int, Future]] = deque()
        digests = {name: xxhash.xxh3_128() for name in files}  # pieces of a file come in order
        try:
            while True:
                for name, first, stop in islice(steps, AT_ONCE - len(pending)):
                    begun = origin.begin(f"{path}/{name}" if path else name, first, stop)
                    pending.append((name, first, begun))
                if not pending:
                    break
                name, first, future = pending.popleft()
                try:
                    data = origin.result(future)
                except FileNotFoundError as error:
                    raise FormatError(f"{error.filename}: missing; upload the pack again") from None
                except OSError as error:  # which is not one of the disk of the cache
                    raise StoreError(f"{origin.url}: {error}") from error
                origin.count(Counts(requests=1, nbytes=len(data)))
                digests[name].update(data)
                with opened(folder / name, os.O_WRONLY | os.O_CREAT) as file:
                    write_at(file, data, first, folder / name)
        finally:
            for _, _, future in pending:
                future.cancel()
        found = {name: digest.hexdigest() for name, digest in digests.items()}
        files = {name: files[name] for name in files if files[name][1] not in (None, found[name])}
        if not files:
            return
    raise FormatError(
        f"{origin.url}/{path}: {', '.join(files)} came {TRIES} times with other bytes than its "
        "checksum file says; run `sa1bpack verify` where it was made, and upload it again"
    )


def _steps(nbytes: int | None) -> list[tuple[int, int | None]]:
    """First and last byte of each request for a file; None: all of it."""
    if not nbytes:
        return [(0, None)]
    return [(first, min(first + RANGE_BYTES, nbytes)) for first in range(0, nbytes, RANGE_BYTES)]


# Arrays that are a hundred times as large as all others; of a feature, its only one.
LARGE = ("image", "mask_bits", "run_ends", "values")


def is_large(path: str) -> bool:
    """True if a file is the chunk file of a large array."""
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] in LARGE and name != METADATA_NAME


def no_pack(url: str, name: str) -> NotAPack:
    """The error for a folder without a file that every pack has."""
    return NotAPack(f"{url}: not a pack: it has no {name}; name the folder of an uploaded pack")


def digest_of(data: bytes) -> str:
    """XXH3-128 of bytes, as checksum files list it."""
    return xxhash.xxh3_128_hexdigest(data)
