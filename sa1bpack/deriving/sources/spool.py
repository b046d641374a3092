"""Rows on their way into a feature: written once in the order of their source, read in another."""

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from sa1bpack.format import files, working_names
from sa1bpack.paths import naming

# Rows that are joined before they are written.
_JOINED_BYTES = 4 << 20
_PIECE = 1 << 23  # numbers that are widened at once


class RowSpool:
    """Temporary files of rows, written from the first to the last.

    They have no name, so that nothing remains of them when the process ends, however it ends. In
    memory are a few MiB, whatever the number of rows. A context manager that closes them; arrays
    that were mapped stay.

    Attributes:
        rows: number of rows.
        items: number of items of all rows.
    """

    def __init__(self, output: Path):
        """Make the files beside the folder of a feature.

        Raises OSError, which names the folder that they are in, if that fails.
        """
        self._values = _SpoolFile(output)
        self._ids = _SpoolFile(output)
        self._starts = _SpoolFile(output)
        self._records = _SpoolFile(output)
        self.rows = 0
        self.items = 0

    def append(
        self,
        ids: np.ndarray,
        values: Sequence[bytes | memoryview],
        items: Sequence[int],
        records: np.ndarray,
    ) -> None:
        """Append rows.

        Args:
            ids: int64 (k,), ids of their images or masks.
            values: the bytes of each.
            items: whole numbers (k,), the items of each.
            records: int64 (k,), where each is in its source.
        """
        ends = self.items + np.cumsum(items, dtype=np.int64)
        starts = np.concatenate([[self.items], ends[:-1]])
        self._ids.append(ids.astype("<i8").data)
        self._starts.append(starts.astype("<i8").data)
        self._records.append(records.astype("<i8").data)
        for piece in joined_pieces(values):
            self._values.append(piece)
        self.items = int(ends[-1])
        self.rows += len(ids)

    def widen(self) -> None:
        """Make float64 of the int64 values that were appended."""
        values = self._values.mapped(np.int64, writable=True)
        for first in range(0, len(values), _PIECE):
            piece = values[first : first + _PIECE]
            piece.view(np.float64)[:] = piece.astype(np.float64)

    def ids(self) -> np.ndarray:
        """int64 (rows,): the id of each row."""
        return self._ids.mapped(np.int64)

    def starts(self) -> np.ndarray:
        """int64 (rows,): the number of items before each row."""
        return self._starts.mapped(np.int64)

    def records(self) -> np.ndarray:
        """int64 (rows,): where each row is in its source."""
        return self._records.mapped(np.int64)

    def values(self, dtype: np.dtype[Any]) -> np.ndarray:
        """All values, flat, of this type."""
        return self._values.mapped(dtype)

    def close(self) -> None:
        """Close the files."""
        for file in (self._values, self._ids, self._starts, self._records):
            file.close()

    def __enter__(self) -> "RowSpool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def joined_pieces(values: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Bytes in fewer pieces: what is small is joined."""
    if sum(map(len, values)) > _JOINED_BYTES:
        yield from values
        return
    yield b"".join(values)


class _SpoolFile:
    """A file without a name, to which bytes are appended."""

    def __init__(self, output: Path):
        self._folder = output.absolute().parent
        self._nbytes = 0
        # As names of what is unfinished: where files cannot be made without one, it lasts a moment.
        prefix = f"{working_names.TEMPORARY_PREFIX}{output.name}-spool-"
        with naming(self._folder):
            self._file: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115 - until close()
                dir=self._folder, prefix=prefix
            )

    def append(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B") if len(data) else b""
        files.write_at(self._file.fileno(), view, self._nbytes, self._folder)
        self._nbytes += len(view)

    def mapped(self, dtype: Any, writable: bool = False) -> np.ndarray:
        """The file as a flat array; memory-mapped."""
        if not self._nbytes:
            return np.empty(0, dtype)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        with naming(self._folder):
            mapped = mmap.mmap(self._file.fileno(), self._nbytes, access=access)
        return np.frombuffer(mapped, dtype)

    def close(self) -> None:
        self._file.close()
