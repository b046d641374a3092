"""Decoded samples, kept in memory or in a folder until others take their bytes."""

import logging
import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sa1bpack.errors import OptionError
from sa1bpack.format.files import temporary_beside
from sa1bpack.raw.decoding import Rows

# Of the limit of a folder: the bytes that a process adds before it lists the files, those that are
# too many then, and those that are left. So 40 processes together keep the limit.
_UNSEEN, _MANY, _LEFT = 1 / 400, 0.9, 0.8

_SUFFIX = ".sample"
_DIGEST = 16  # bytes of an XXH3-128
_decode = msgspec.msgpack.Decoder(dict[str, tuple[str, tuple[int, ...], bytes]]).decode

_log = logging.getLogger("sa1bpack")


class MemoryCache:
    """The rows of samples, at most `limit` bytes of them in each process.

    Safe in threads without a lock, which a fork might find held: each step is one call of C.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self._rows: OrderedDict[int, Rows] = OrderedDict()  # the least recently used first

    def __reduce__(self):
        return MemoryCache, (self.limit,)

    def get(self, key: int) -> Rows | None:
        """The rows of a sample, which becomes the most recently used, or None."""
        rows = self._rows.pop(key, None)
        if rows is not None:
            self._rows[key] = rows
        return rows

    def put(self, key: int, rows: Rows) -> None:
        """Keep the rows of a sample, if there is room for it at all."""
        if _nbytes(rows) > self.limit:
            return
        self._rows[key] = rows
        over = sum(map(_nbytes, list(self._rows.values()))) - self.limit
        with suppress(KeyError):  # other threads have removed all
            while over > 0:
                over -= _nbytes(self._rows.popitem(last=False)[1])


class DiskCache:
    """The rows of samples as files of a folder, which processes share: at most `limit` bytes.

    What is read is compared with its digest, and decoded again if it differs.
    """

    def __init__(self, folder: Path, limit: int):
        self._folder, self._limit = folder, limit
        self._full, self._unseen = False, limit  # so that the first sample looks at the folder
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
        # The digest of the rest, and dtype, shape and bytes of each array.
        listed = {name: (each.dtype.str, each.shape, each.tobytes()) for name, each in rows.items()}
        body = msgspec.msgpack.encode(listed)
        try:
            with temporary.open("wb") as file:
                file.writelines([xxhash.xxh3_128_digest(body), body])
                self._unseen += file.tell()
            temporary.replace(path)
            if self._unseen > _UNSEEN * self._limit:
                self._remove_oldest()
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

    def _remove_oldest(self) -> None:
        """Remove the files that were used least recently, if there are too many bytes."""
        self._unseen, found = 0, []
        for entry in os.scandir(self._folder):
            if _SUFFIX in entry.name:  # also what a killed process was writing
                with suppress(FileNotFoundError):  # another process has removed it
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in found)
        if total <= _MANY * self._limit:
            return
        for _, size, path in sorted(found):
            if total <= _LEFT * self._limit:
                break
            Path(path).unlink(missing_ok=True)
            total -= size


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
