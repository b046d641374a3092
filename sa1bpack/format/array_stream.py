"""The files of a pack that is checked, and arrays that are read once, front to back."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
import xxhash

from sa1bpack.disk.reading_mode import choose_mode, direct_obstacle
from sa1bpack.disk.stream import FileStream
from sa1bpack.errors import FormatError
from sa1bpack.format.checksums import file_digest
from sa1bpack.format.files import naming
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.manifest import MANIFEST_NAME
from sa1bpack.format.zarr_metadata import chunk_file

_NOTHING = np.empty(0, np.uint8)


class Stream(Protocol):
    """One file on its way from start to end, see FileStream."""

    def read(self, nbytes: int) -> np.ndarray:
        """The next bytes, uint8 (nbytes,), or fewer if the file ends; valid until the next call."""

    def close(self) -> None:
        """Close it."""


class PackFiles:
    """The files of a pack, or of a side array, that is checked: here, those of a folder.

    root   the folder; it has every file with its length, and those that are not read by `stream`,
           `digest` and `rest`, nor below a shard that has not been brought, with their bytes
    tries  how often a shard is checked at most, as long as something is wrong with it
    """

    tries = 1

    def __init__(self, root: Path, io: str = "auto"):
        self.root, self._io, self._direct = root, io, False

    def choose_mode(self, nbytes: int) -> None:
        """Decide how streams read that have so many bytes together.

        Raises OptionError if `io` is impossible.
        """
        # A small file stands for the others: those may be damaged.
        small = self.root / MANIFEST_NAME
        found = choose_mode(self._io, nbytes, "the pack's", lambda: direct_obstacle(small))
        self._direct = found.direct

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

    def bring(self, shard: str) -> None:
        """Called before the files of a shard are looked at, again for each try."""

    def leave(self, shard: str) -> None:
        """Called when of the shard only `image_id`, `mask_offset` and metadata are needed still."""


class ArrayStream:
    """One array, read front to back a few rows at a time, and its running XXH3-128."""

    def __init__(
        self, files: PackFiles, folder: Path, spec: ArraySpec, rows: int, helper: ThreadPoolExecutor
    ):
        """Open it. Raises OSError."""
        self.spec = spec
        self.file = chunk_file(spec, rows)
        self.path = folder / spec.chunk_path
        self._digest = xxhash.xxh3_128()
        self._stream: Stream | None = None
        if rows:
            self._stream = files.stream(self.path, self.file.file_bytes, helper)

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
        """Close its file."""
        if self._stream is not None:
            self._stream.close()


def check_tail(files: PackFiles, folder: Path, spec: ArraySpec, rows: int) -> None:
    """Check the zero rows and the shard index after an array's data."""
    path, file = folder / spec.chunk_path, chunk_file(spec, rows)
    if rows:
        compare_tail(path, files.rest(path, file.data_bytes), file.tail())


def compare_tail(path: Path, found: bytes, expected: bytes) -> None:
    """Raise FormatError unless what follows an array's data is what must follow it."""
    if found != expected:
        raise FormatError(
            f"{path}: the padding or the shard index after the data is wrong, so Zarr cannot read "
            "the array"
        )
