"""Where the files of a pack come from: here a folder on a slower file system; see also `bucket`."""

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sa1bpack.format.files import cut_short, naming, open_file, read_metadata_file
from sa1bpack.remote.stores import EndsEarly
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

    def count(self, counts: Counts) -> None:
        """Add to the counts."""
        with _counting:
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
        place, data, done = self._at(path), bytearray(stop - first), 0
        with naming(place), os.fdopen(open_file(place), "rb", 0) as file:
            file.seek(first)
            while done < len(data) and (count := file.readinto(memoryview(data)[done:])):
                done += count
        if done < len(data):
            raise EndsEarly(str(cut_short(place, first + done, stop)))
        return data

    def _folders(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._at(path)) if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _at(self, path: str) -> Path:
        return local_folder(self.url) / path


def submit(call: Callable, *args) -> Future:
    """Let a thread make a call, one of AT_ONCE; for calls that wait for an origin and nothing else.

    They begin in the order in which they were submitted. The threads are daemons: what they wait
    for when the process ends is Python, which ends them there, and object stores are asked in the
    event loop of `bucket`, whose end cancels what is on its way.
    """
    future: Future = Future()
    _calls.put((future, call, args))
    if next(_submitted) < AT_ONCE:
        threading.Thread(target=_work, args=(_calls,), name="sa1bpack-fetch", daemon=True).start()
    return future


def _work(calls: SimpleQueue) -> None:
    while True:
        future, call, args = calls.get()
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)
        del future, call, args  # which have hold of what they fetched


def _begin_anew() -> None:
    """At first, and in a fork: the threads remained in the parent, and may have held the lock."""
    global _calls, _submitted, _counting
    _calls, _submitted, _counting = SimpleQueue(), itertools.count(), threading.Lock()


_begin_anew()
os.register_at_fork(after_in_child=_begin_anew)
