"""Origins of the files of a pack, and folders that are fetched from there.

An origin is a folder on a slower file system, or one of a bucket (`bucket.Bucket`). Files are
fetched in ranges, several at once, and compared with their digests.
"""

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
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
from sa1bpack.format.fetched import LARGE_ARRAYS
from sa1bpack.format.file_checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import cut_short, open_file, opened, read_metadata_file, write_at
from sa1bpack.format.layout import ArraySpec
from sa1bpack.paths import naming
from sa1bpack.threads import ThreadPool
from sa1bpack.urls import FOLDER_BYTES, Counts

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


# Called with the bytes that were asked for, or with why there are none.
Answered = Callable[[Any, Exception | None], object]


class EndsEarly(StoreError):
    """A file ends before the bytes that were asked for."""


class Origin(ABC):
    """A folder of files, read in whole or in ranges, by any number of threads at once.

    Every method raises FileNotFoundError for what is not there, and StoreError if the store cannot
    be reached, refuses, or returns fewer bytes than asked for: EndsEarly if the file has no more.

    Attributes:
        url: URL of the folder, without credentials.
        forks: it can be read in a child that was forked.
        lists: it can say which folders there are.
        counts: counts of what was fetched, and of hits and misses.
    """

    forks: bool
    lists = True

    def __init__(self, url: str):
        self.url = url
        self.counts = Counts()

    def count(self, counts: Counts) -> None:
        """Add to the counts."""
        with _counting:
            self.counts = self.counts + counts

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The bytes of a small file. Raises FormatError if it is no file, or a large one."""

    @abstractmethod
    def begin(self, path: str, first: int = 0, stop: int | None = None) -> Future[Any]:
        """Begin to read bytes `first` to `stop` of a file, or all of it without a `stop`.

        The future is for `result`: all of these bytes, an object with a buffer.
        """

    @abstractmethod
    def result(self, future: Future[Any]) -> Any:
        """The result of what `begin` has begun; raises what that raised."""

    @abstractmethod
    def ask(self, path: str, first: int, stop: int, answered: Answered) -> Callable[[], object]:
        """Begin to read bytes `first` to `stop` of a file, with less ado than `begin`.

        Args:
            path, first, stop: as for `begin`.
            answered: called once, with all of these bytes, an object with a buffer, and no error;
                or with None and the error. In any thread, which it must not keep; in this one too.

        Returns:
            A call that cancels it, in any thread: `answered` is called with an error then, unless
            it is called with the bytes.

        Raises:
            StoreError: nothing can be asked for in this process, or any more.
        """

    @abstractmethod
    def soon(self, work: Callable[[], object]) -> None:
        """Call this in the thread in which `ask` costs least, now or soon."""

    @abstractmethod
    def folders(self, path: str) -> list[str]:
        """Names of the folders right below "", or "FOLDER/", sorted; empty if there is none."""


class LocalOrigin(Origin):
    """A folder of this machine, such as a mounted network file system."""

    forks = True

    def __init__(self, url: str, folder: Path):
        super().__init__(url)
        self._folder = folder

    def read(self, path: str) -> bytes:
        """See Origin."""
        return read_metadata_file(self._folder / path)

    def read_range(self, path: str, first: int, stop: int) -> bytearray:
        """Bytes `first` to `stop` of a file, all of them. Raises as `begin`."""
        data = bytearray(stop - first)
        filled = 0
        local_path = self._folder / path
        with naming(local_path), os.fdopen(open_file(local_path), "rb", 0) as file:
            file.seek(first)
            while filled < len(data):
                count = file.readinto(memoryview(data)[filled:])
                if not count:
                    raise EndsEarly(str(cut_short(local_path, first + filled, stop)))
                filled += count
        return data

    def begin(self, path: str, first: int = 0, stop: int | None = None) -> Future[Any]:
        """See Origin."""
        if stop is None:
            return _readers(os.getpid()).submit(self.read, path)
        return _readers(os.getpid()).submit(self.read_range, path, first, stop)

    def result(self, future: Future[Any]) -> Any:
        """See Origin."""
        return future.result()

    def ask(self, path: str, first: int, stop: int, answered: Answered) -> Callable[[], object]:
        """See Origin."""

        def hand_over(future: Future[Any]) -> None:
            try:
                data = future.result()
            except CancelledError:
                answered(None, interrupted(self.url))
            except Exception as error:
                answered(None, error)
            else:
                answered(data, None)

        future = self.begin(path, first, stop)
        future.add_done_callback(hand_over)
        return future.cancel

    def soon(self, work: Callable[[], object]) -> None:
        """See Origin."""
        work()

    def folders(self, path: str) -> list[str]:
        """See Origin."""
        try:
            entries = os.scandir(self._folder / path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(entry.name for entry in entries if entry.is_dir())


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
    origin: Origin,
    path: str,
    digest: str,
    arrays: Mapping[ArraySpec, int],
    folder: Path,
    *,
    whole: bool = True,
) -> None:
    """Fetch a shard, or a feature shard, into a folder that is being made.

    Args:
        path: path in the origin.
        digest: XXH3-128 of its checksum file.
        arrays: arrays that it has, each with its number of rows.
        whole: False: without the chunk files of its large arrays.

    Raises:
        StoreError: the origin cannot be read, or has something else there by now.
        FormatError: the origin is damaged; the message names what.
        OSError: the disk fails.
    """
    try:
        # Small files with the checksums that say what they must be: that saves a round trip.
        ahead: dict[str, tuple[int | None, str | None]] = {CHECKSUMS_NAME: (None, digest)}
        ahead[METADATA_NAME] = None, None
        for spec, rows in small_arrays(arrays).items():
            if rows:
                ahead[spec.chunk_path] = ChunkFile(spec, rows).file_bytes, None
        digests = fetch_files(origin, path, folder, ahead)
        listed = read_checksums(folder / CHECKSUMS_NAME)
        files: dict[str, tuple[int | None, str]] = {}
        for name, listed_digest in listed.items():
            files[name] = None, listed_digest
        for spec, rows in arrays.items():
            name = f"{spec.name}/{METADATA_NAME}"
            metadata = canonical_json(array_metadata(spec, rows))
            if digest_of(metadata) == listed.get(name):
                if spec.chunk_path not in ahead:
                    (folder / spec.name).mkdir(exist_ok=True)
                (folder / name).write_bytes(metadata)
                del files[name]  # what the layout says need not be asked for
            if rows and spec.chunk_path not in listed:
                raise FormatError(f"{origin.url}/{path}/{CHECKSUMS_NAME}: lacks {spec.chunk_path}")
            if rows:
                files[spec.chunk_path] = ChunkFile(spec, rows).file_bytes, listed[spec.chunk_path]
            if rows and not whole and spec.name in LARGE_ARRAYS:
                del files[spec.chunk_path]
        for name, arrived in digests.items():
            if name in files and files[name][1] == arrived:
                del files[name]
        fetch_files(origin, path, folder, files)
    except (FormatError, EndsEarly):
        if is_replaced(origin, f"{path}/{CHECKSUMS_NAME}", digest):
            raise changed(origin, path) from None
        raise


def is_sound(folder: Path, digest: str, *, whole: bool = True) -> bool:
    """True if a folder has all the bytes that its checksum file, of this digest, says.

    Without `whole`, but for those of its large arrays.
    """
    try:
        if file_digest(folder / CHECKSUMS_NAME) != digest:
            return False
        for name, listed_digest in read_checksums(folder / CHECKSUMS_NAME).items():
            if not whole and is_large(name):
                continue
            if file_digest(folder / name) != listed_digest:
                return False
    except (FormatError, OSError):
        return False
    return True


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


def fetch_files(origin: Origin, path: str, folder: Path, files: Files) -> dict[str, str]:
    """Fetch files into a folder that is being made, AT_ONCE of them, or of their ranges, at once.

    Args:
        path: path of the folder in the origin.

    Returns:
        The digests of the files, by name.

    Raises:
        FormatError: a file is missing, or does not have its digest; the message names it.
        StoreError: the origin cannot be read.
        OSError: the disk fails.
    """
    arrived: dict[str, str] = {}
    for _ in range(TRIES):
        for parent in {(folder / name).parent for name in files}:
            parent.mkdir(parents=True, exist_ok=True)
        arrived |= _fetch_once(origin, path, folder, files)
        others = {}
        for name, (nbytes, expected) in files.items():
            if expected not in (None, arrived[name]):
                others[name] = nbytes, expected
        if not others:
            return arrived
        files = others
    raise FormatError(
        f"{origin.url}/{path}: {', '.join(files)} came {TRIES} times with other bytes than its "
        "checksum file says; run `sa1bpack verify` where it was made, and upload it again"
    )


def _fetch_once(origin: Origin, path: str, folder: Path, files: Files) -> dict[str, str]:
    """Fetch files as `fetch_files` does, whatever their digests are; returns these by name."""
    hashes = {name: xxhash.xxh3_128() for name in files}  # ranges of a file come in order
    ranges = _ranges(files)
    pending: deque[tuple[str, int, Future[Any]]] = deque()
    try:
        while True:
            for name, first, stop in islice(ranges, AT_ONCE - len(pending)):
                file_path = f"{path}/{name}" if path else name
                pending.append((name, first, origin.begin(file_path, first, stop)))
            if not pending:
                return {name: digest.hexdigest() for name, digest in hashes.items()}
            name, first, future = pending.popleft()
            try:
                data = origin.result(future)
            except FileNotFoundError as error:
                raise FormatError(f"{error.filename}: missing; upload the pack again") from None
            except OSError as error:  # which is not one of the disk of the cache
                raise StoreError(f"{origin.url}: {error}") from error
            origin.count(Counts(requests=1, nbytes=len(data)))
            hashes[name].update(data)
            flags = os.O_WRONLY | os.O_CREAT
            if first == 0:
                flags |= os.O_TRUNC
            with opened(folder / name, flags) as file:
                write_at(file, data, first, folder / name)
    finally:
        for _, _, future in pending:
            future.cancel()


def _ranges(files: Files) -> Iterator[tuple[str, int, int | None]]:
    """Name, first byte and end of each request for files; an end of None: all of the file."""
    for name, (nbytes, _) in files.items():
        if not nbytes:
            yield name, 0, None
            continue
        for first in range(0, nbytes, RANGE_BYTES):
            yield name, first, min(first + RANGE_BYTES, nbytes)


def is_large(path: str) -> bool:
    """True if a file is the chunk file of a large array."""
    folder, _, name = path.rpartition("/")
    return folder.rpartition("/")[2] in LARGE_ARRAYS and name != METADATA_NAME


def small_arrays(arrays: Mapping[ArraySpec, int]) -> dict[ArraySpec, int]:
    """The arrays without the large ones, each with its number of rows."""
    return {spec: rows for spec, rows in arrays.items() if spec.name not in LARGE_ARRAYS}


def interrupted(url: str) -> StoreError:
    """The error of a request that was cancelled."""
    return StoreError(f"{url}: a request was interrupted")


def no_pack(url: str, name: str) -> NotAPack:
    """The error for a folder without a file that every pack has."""
    return NotAPack(f"{url}: not a pack: it has no {name}; name the folder of an uploaded pack")


def digest_of(data: bytes) -> str:
    """XXH3-128 of bytes, as checksum files list it."""
    return xxhash.xxh3_128_hexdigest(data)
