"""Where the files of a pack come from: an object store, or a folder on a slower file system."""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from sa1bpack.errors import FormatError
from sa1bpack.format.files import (
    MAX_METADATA_BYTES,
    cut_short,
    naming,
    open_file,
    read_metadata_file,
)
from sa1bpack.remote.stores import Bucket, EndsEarly
from sa1bpack.urls import Counts, local_folder

# Requests at once: an object store takes tens of milliseconds to answer each, and delivers some 50
# to 100 MB/s of it then; see docs/cloud.md.
AT_ONCE = 48


class Origin:
    """A folder of files, read in whole or in ranges, by any number of threads at once.

    Every method raises FileNotFoundError for what is not there, and StoreError if the store cannot
    be reached, refuses, or returns fewer bytes than asked for: EndsEarly if the file has no more.

    url     of the folder, without credentials
    forks   whether it can be read in a child that was forked
    counts  of requests and bytes; what opens shards adds hits and misses
    """

    forks = True

    def __init__(self, url: str):
        """A folder of this machine, such as a mounted network file system."""
        self.url, self.counts = url, Counts()
        self._lock = threading.Lock()

    def count(self, counts: Counts) -> None:
        """Add to the counts."""
        with self._lock:
            self.counts = self.counts + counts

    def read(self, path: str) -> bytes:
        """The bytes of a small file. Raises FormatError if it is no file, or a large one."""
        data = self._read(path)
        self.count(Counts(requests=1, nbytes=len(data)))
        return data

    def read_range(self, path: str, first: int, stop: int) -> Any:
        """Bytes `first` to `stop` of a file, exactly so many: an object with a buffer."""
        data = self._read_range(path, first, stop)
        self.count(Counts(requests=1, nbytes=stop - first))
        return data

    def folders(self, path: str) -> list[str]:
        """Names of the folders right below a folder, sorted; empty if there is none."""
        self.count(Counts(requests=1))
        return self._folders(path)

    def _read(self, path: str) -> bytes:
        return read_metadata_file(self._at(path))

    def _read_range(self, path: str, first: int, stop: int) -> Any:
        data = bytearray(stop - first)
        view, done = memoryview(data), 0
        file = open_file(self._at(path))
        try:
            while done < len(data):
                with naming(self._at(path)):
                    count = os.preadv(file, [view[done:]], first + done)
                if count == 0:
                    raise EndsEarly(str(cut_short(self._at(path), first + done, stop)))
                done += count
        finally:
            os.close(file)
        return data

    def _folders(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._at(path)) if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _at(self, path: str) -> Path:
        return local_folder(self.url) / path


class StoreOrigin(Origin):
    """A folder of a bucket."""

    forks = False

    def __init__(self, url: str):
        """Raises OptionError without credentials, MissingPackage without the library."""
        super().__init__(url)
        self._bucket = Bucket(url)

    def files(self) -> dict[str, int]:
        """Every file below the folder, by its path in it, and its bytes. Raises as Origin does."""
        return self._bucket.files()

    def _read(self, path: str) -> bytes:
        library, store = self._bucket.library, self._bucket.store

        async def get(key: str) -> bytes:
            answer = await library.get_async(store, key)
            if (nbytes := answer.meta["size"]) > MAX_METADATA_BYTES:
                raise FormatError(
                    f"{self.url}/{path}: {nbytes} bytes, but a file of its kind has at most "
                    f"{MAX_METADATA_BYTES}; upload the pack again"
                )
            return bytes(await answer.bytes_async())

        return self._bucket.ask(path, get)

    def _read_range(self, path: str, first: int, stop: int) -> Any:
        library, store = self._bucket.library, self._bucket.store

        async def get(key: str) -> Any:
            found = await library.get_range_async(store, key, start=first, end=stop)
            if len(found) != stop - first:
                raise EndsEarly(
                    f"it ends at byte {first + len(found)}, but bytes up to {stop} are needed"
                )
            return found

        return self._bucket.ask(path, get)

    def _folders(self, path: str) -> list[str]:
        library, store = self._bucket.library, self._bucket.store

        async def listed(key: str) -> list[str]:
            found = await library.list_with_delimiter_async(store, prefix=key)
            return sorted(name.rpartition("/")[2] for name in found["common_prefixes"])

        return self._bucket.ask(path, listed)


def open_origin(url: str) -> Origin:
    """The origin at a URL, as `pack_url` spells it, one object per process: its counts are one.

    Raises OptionError without credentials, MissingPackage without the library.
    """
    key = url, None if local_folder(url) is not None else os.getpid()
    if key not in _origins:
        _origins.setdefault(key, StoreOrigin(url) if key[1] else Origin(url))
    return _origins[key]


_origins: dict[tuple[str, int | None], Origin] = {}


class _Threads:
    """Daemons: what they wait for when the process ends is Python, which ends them there.

    An object store is asked in the event loop of `stores`, whose end cancels what is on its way.
    """

    def __init__(self):
        self._calls: queue.SimpleQueue[tuple[Future, Callable, tuple]] = queue.SimpleQueue()
        self._lock, self._started, self._busy = threading.Lock(), 0, 0

    def submit(self, call: Callable, args: tuple) -> Future:
        future: Future = Future()
        self._calls.put((future, call, args))
        with self._lock:
            self._busy += 1
            if self._busy > self._started < AT_ONCE:
                self._started += 1
                name = f"sa1bpack-fetch-{self._started}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            future, call, args = self._calls.get()
            try:
                future.set_result(call(*args))
            except BaseException as error:
                future.set_exception(error)
            del future, call, args  # which have hold of what they fetched
            with self._lock:
                self._busy -= 1


def submit(call: Callable, *args) -> Future:
    """Let a thread make a call, one of AT_ONCE; for calls that wait for an origin and nothing else.

    They begin in the order in which they were submitted.
    """
    return _threads.submit(call, args)


_threads = _Threads()


def _after_fork() -> None:
    """The threads remained in the parent, and may have held locks."""
    global _threads
    _threads = _Threads()
    for origin in _origins.values():
        origin._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
