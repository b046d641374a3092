"""Decoded samples, kept in memory or in a folder until others take their bytes."""

import fcntl
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import OptionError
from sa1bpack.format.files import temporary_beside
from sa1bpack.raw.decoding import Rows

_EVICT_TO = 0.9  # of the limit of a folder, so that not every sample needs its list of files

_SUFFIX = ".sample"
_DIGEST = 16  # bytes of an XXH3-128
_decode = msgspec.msgpack.Decoder(dict[str, tuple[str, tuple[int, ...], bytes]]).decode

_log = logging.getLogger("sa1bpack")


class MemoryCache:
    """The rows of samples, at most `limit` bytes of them in each process. Safe in threads.

    A process that is forked begins with none.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # one that was held during a fork would never be released
        self._rows: OrderedDict[int, Rows] = OrderedDict()
        self.nbytes = 0

    def __reduce__(self):
        return MemoryCache, (self.limit,)

    def get(self, key: int) -> Rows | None:
        """The rows of a sample, which becomes the most recently used, or None."""
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            rows = self._rows.get(key)
            if rows is not None:
                self._rows.move_to_end(key)
            return rows

    def put(self, key: int, rows: Rows) -> None:
        """Keep the rows of a sample, if there is room for it at all."""
        size = _nbytes(rows)
        if size > self.limit:
            return
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            if key in self._rows:
                return
            self._rows[key] = rows
            self.nbytes += size
            while self.nbytes > self.limit:
                _, dropped = self._rows.popitem(last=False)
                self.nbytes -= _nbytes(dropped)


class DiskCache:
    """The rows of samples as files of a folder, which processes share: at most `limit` bytes.

    Each process may add one sample above the limit before the oldest are removed. What is read is
    compared with its digest, and decoded again if it differs.
    """

    def __init__(self, folder: Path, limit: int):
        self._folder, self._limit = folder, limit
        self._full = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"cache_dir is {folder}: it cannot be made: {error.strerror}; name another"
            ) from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OptionError(f"cache_dir is {folder}: it cannot be written; name another")

    def get(self, key: str) -> Rows | None:
        """The rows of a sample, which becomes the most recently used, or None."""
        path = self._path(key)
        try:
            rows = _decoded(path.read_bytes())
            if rows is not None:
                with suppress(OSError):  # the folder may be another user's
                    os.utime(path)
                return rows
            reason = "its bytes are not those that were written"
        except FileNotFoundError:
            return None
        except OSError as error:
            reason = error.strerror
        _log.warning("%s: %s; the sample is decoded again", path, reason)
        with suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, rows: Rows) -> None:
        """Keep the rows of a sample. What cannot be written is logged, once."""
        path = self._path(key)
        temporary = temporary_beside(path)
        try:
            with temporary.open("wb") as file:
                file.writelines(_encoded(rows))
                size = file.tell()
            temporary.replace(path)
            self._count(size)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            if not self._full:
                self._full = True
                _log.warning(
                    "%s: samples cannot be kept: %s; they are decoded each time",
                    self._folder,
                    error.strerror,
                )

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _count(self, size: int) -> None:
        """Add the bytes of a new file to those of the folder; remove the oldest if too many."""
        with _locked(self._folder / ".bytes") as file:
            known, _, again = file.read(64).partition(b" ")  # twice, so that damage is seen
            total = int(known) + size if known == again and known.isdigit() else None
            if total is None or total > self._limit:
                total = self._evict()
            file.seek(0)
            file.truncate()
            file.write(b"%d %d" % (total, total))

    def _evict(self) -> int:
        """Remove the files that were used least recently; returns the bytes that are left."""
        found = []
        for entry in os.scandir(self._folder):
            if _SUFFIX in entry.name:  # also what a killed process was writing
                with suppress(FileNotFoundError):  # another process has removed it
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total > self._limit:
            for _, size, path in sorted(found):
                if total <= _EVICT_TO * self._limit:
                    break
                Path(path).unlink(missing_ok=True)
                total -= size
        return total


@contextmanager
def _locked(path: Path) -> Iterator:
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _encoded(rows: Rows) -> list[bytes]:
    """The parts of a file: the digest of the rest, and dtype, shape and bytes of each array."""
    listed = {name: (each.dtype.str, each.shape, each.tobytes()) for name, each in rows.items()}
    body = msgspec.msgpack.encode(listed)
    return [xxhash.xxh3_128_digest(body), body]


def _decoded(data: bytes) -> Rows | None:
    """The rows in a file, or None if it is not as written."""
    body = memoryview(data)[_DIGEST:]
    if xxhash.xxh3_128_digest(body) != data[:_DIGEST]:
        return None
    try:
        listed = _decode(body)
    except msgspec.MsgspecError:  # of an earlier release
        return None
    return {
        name: np.frombuffer(content, dtype).reshape(shape)
        for name, (dtype, shape, content) in listed.items()
    }


def _nbytes(rows: Rows) -> int:
    return sum(array.nbytes for array in rows.values())
