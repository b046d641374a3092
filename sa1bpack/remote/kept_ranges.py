"""Ranges that were fetched and are kept: beside the small arrays of a shard, in its cache.

::

    CACHE/shards/rows-NAME-DIGEST/
      image_id/ ...        the small arrays, complete
      kept/image.c.0.0     large files with holes: what was fetched of them
      kept/ranges          which ranges these are, in the order in which they were kept

A range is listed once its bytes are written, by one append, so that a kill leaves nothing that is
listed and not there. Processes append to the same list, and read what others have added. Nothing
is flushed: after a start of the machine the folder `kept` is removed. Ranges are kept as long as
the cache has room that nothing else takes; nothing is removed for them.
"""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.finalizers import Living
from sa1bpack.format.fetched import Span
from sa1bpack.format.files import opened, write_at

# The folder of kept ranges in that of a shard.
KEPT = "kept"
_LIST = "ranges"

# A range in the list: the number of its file by name, and its bytes; `is_there` is 0 where one is
# withdrawn that had other bytes than were written.
_RANGE = np.dtype([("file", "<u8"), ("first", "<u8"), ("stop", "<u8"), ("is_there", "<u8")])

# Bytes that are reserved at once, at most.
_RESERVED = 16 << 20

_log = logging.getLogger("sa1bpack")


class KeptRanges:
    """The kept ranges of the files of one shard, for any thread."""

    def __init__(self, folder: Path, reserve: Callable[[int], bool]):
        """
        Args:
            folder: folder of the shard in the cache, which stays as long as this object lives.
            reserve: takes room in the cache for more bytes; False if there is none.
        """
        self._folder = folder / KEPT
        self._reserve = reserve
        self.begin()
        _living.add(self)

    def begin(self) -> None:
        """Begin with what the list has, in this process.

        A fork has neither the thread that may hold the lock of its parent, nor the parent's room.
        """
        self._lock = threading.Lock()
        self._ranges: set[tuple[int, int, int]] = set()
        self._list_bytes = 0  # that were read
        self._kept_bytes = 0  # by this object
        self._room = 0
        self._is_full = False

    def has(self, span: Span) -> bool:
        """True if the bytes of a span are kept."""
        key = (_number_of(span.path), span.first, span.stop)
        with self._lock:
            if key not in self._ranges:
                self._look()
            return key in self._ranges

    def read(self, span: Span) -> bytes | None:
        """The bytes of a span that is kept; None if they cannot be read."""
        nbytes = span.stop - span.first
        try:
            with opened(self._path(span.path), os.O_RDONLY) as file:
                data = os.pread(file, nbytes, span.first)
        except OSError:
            return None
        return data if len(data) == nbytes else None

    def keep(self, span: Span, data: Any) -> None:
        """Keep the bytes of a span, if there is room."""
        nbytes = span.stop - span.first
        with self._lock:
            if self._is_full:
                return
            if self._room < nbytes:
                # No more than it has kept: what a process leaves of it is never given back.
                more = max(nbytes, min(self._kept_bytes, _RESERVED))
                if not self._reserve(more):
                    self._is_full = True
                    return
                self._room += more
            self._room -= nbytes
            self._kept_bytes += nbytes
        path = self._path(span.path)
        try:
            self._folder.mkdir(exist_ok=True)
            with opened(path, os.O_WRONLY | os.O_CREAT) as file:
                write_at(file, data, span.first, path)
            self._append(span, is_there=True)
        except OSError as error:  # the disk is full: the range is fetched again
            _log.info("%s: not kept: %s", path, error)
            self._is_full = True

    def withdraw(self, span: Span) -> None:
        """Keep a span no longer: it has other bytes than were written."""
        with self._lock:
            self._ranges.discard((_number_of(span.path), span.first, span.stop))
        with suppress(OSError):
            self._append(span, is_there=False)

    def _append(self, span: Span, is_there: bool) -> None:
        record = np.array((_number_of(span.path), span.first, span.stop, is_there), _RANGE)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with opened(self._folder / _LIST, flags) as file:
            os.write(file, record.tobytes())

    def _look(self) -> None:
        """Read what was added to the list."""
        self._list_bytes += _add_listed(self._folder, self._list_bytes, self._ranges)

    def _path(self, path: str) -> Path:
        """The file that has the kept ranges of a file of the shard."""
        return self._folder / path.replace("/", ".")


def _add_listed(folder: Path, begin: int, ranges: set[tuple[int, int, int]]) -> int:
    """Add the ranges in the list of a folder from a byte on; returns how many bytes were read."""
    try:
        with opened(folder / _LIST, os.O_RDONLY) as file:
            nbytes = os.fstat(file).st_size // _RANGE.itemsize * _RANGE.itemsize
            if nbytes <= begin:
                return 0
            data = os.pread(file, nbytes - begin, begin)
    except OSError:
        return 0
    records = np.frombuffer(data[: len(data) // _RANGE.itemsize * _RANGE.itemsize], _RANGE)
    for number, first, stop, is_there in records.tolist():
        if is_there:
            ranges.add((number, first, stop))
        else:
            ranges.discard((number, first, stop))
    return records.nbytes


def kept_bytes(folder: Path) -> int:
    """Bytes of the ranges that are kept of a shard, in its folder of the cache."""
    ranges: set[tuple[int, int, int]] = set()
    _add_listed(folder / KEPT, 0, ranges)
    return sum(stop - first for _, first, stop in ranges)


_living = Living[KeptRanges]()


def _after_fork() -> None:
    for ranges in list(_living):
        ranges.begin()


os.register_at_fork(after_in_child=_after_fork)


def _number_of(path: str) -> int:
    """A number that stands for the path of a file of a shard in the list: its first eight bytes."""
    return int.from_bytes(path.encode()[:8].ljust(8, b"\0"), "little")
