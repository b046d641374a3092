"""Arrays of a shard, or of a side array, read once, front to back, and hashed on the way."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from sa1bpack.disk.stream import FileStream
from sa1bpack.errors import FormatError
from sa1bpack.format.checksums import file_digest
from sa1bpack.format.files import naming
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.zarr_metadata import chunk_file

# Files of several blocks that a shard has: image, mask_bits and run_ends.
_THREADS = 3
_NOTHING = np.empty(0, np.uint8)


class Stream(Protocol):
    """One file on its way from start to end, see FileStream."""

    def read(self, nbytes: int) -> np.ndarray:
        """The next bytes, uint8 (nbytes,), or fewer if the file ends; valid until the next call."""

    def close(self) -> None:
        """Close it."""


class Reader:
    """How the files of a pack are read that is checked: here, those of this machine."""

    def __init__(self, direct: bool = False):
        """direct: read past the page cache, where the file system can do that"""
        self._direct = direct

    def stream(self, path: Path, nbytes: int, helper: ThreadPoolExecutor) -> Stream:
        """A file of so many bytes, to be read once; `helper` may read ahead. Raises OSError."""
        return FileStream(str(path), nbytes, self._direct, helper)

    def digest(self, path: Path) -> str:
        """XXH3-128 of a file. Raises OSError."""
        return file_digest(path)

    def rest(self, path: Path, first: int) -> bytes:
        """The bytes of a file from byte `first` on. Raises OSError."""
        with path.open("rb") as stream:
            stream.seek(first)
            return stream.read()


class ArrayStreams:
    """Arrays that are read side by side. A context manager, which closes them.

    Its threads read the next block of each; none is left when it is closed.
    """

    def __init__(self, reader: Reader):
        self._reader = reader
        self._streams: list[ArrayStream] = []
        self._threads = ThreadPoolExecutor(_THREADS, "sa1bpack-read-ahead")

    def open(self, folder: Path, spec: ArraySpec, rows: int) -> "ArrayStream":
        """Open one. Raises OSError."""
        self._streams.append(ArrayStream(folder, spec, rows, self._reader, self._threads))
        return self._streams[-1]

    def __enter__(self) -> "ArrayStreams":
        return self

    def __exit__(self, *_) -> None:
        for stream in self._streams:
            stream.close()
        self._threads.shutdown()


class ArrayStream:
    """One array, read front to back a few rows at a time, and its running XXH3-128."""

    def __init__(
        self, folder: Path, spec: ArraySpec, rows: int, reader: Reader, helper: ThreadPoolExecutor
    ):
        self.spec = spec
        self.file = chunk_file(spec, rows)
        self.path = folder / spec.chunk_path
        self._digest = xxhash.xxh3_128()
        self._stream: Stream | None = None
        if self.file.rows:
            self._stream = reader.stream(self.path, self.file.file_bytes, helper)

    def take(self, rows: int) -> np.ndarray:
        """The next rows, shape (rows, *row_shape); valid until the next call."""
        data = self._read(rows * self.spec.row_bytes)
        return data.view(self.spec.dtype).reshape(rows, *self.spec.row_shape)

    def finish(self) -> str:
        """Check the rest of the file, after the data, and return the digest of the file."""
        expected = self.file.tail()
        compare_tail(self.path, self._read(len(expected)).tobytes(), expected)
        return self._digest.hexdigest()

    def _read(self, nbytes: int) -> np.ndarray:
        if nbytes == 0 or self._stream is None:
            return _NOTHING
        with naming(self.path):
            data = self._stream.read(nbytes)
        if data.size < nbytes:
            raise FormatError(f"{self.path}: cut short while it was read")
        self._digest.update(data)
        return data

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def compare_tail(path: Path, found: bytes, expected: bytes) -> None:
    if found != expected:
        raise FormatError(
            f"{path}: the padding or the shard index after the data is wrong, so Zarr cannot read "
            "the array"
        )
