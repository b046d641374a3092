"""Arrays whose rows are fetched: large arrays of a shard that is not on this machine.

A `FetchedArray` stands where a memory map would be. Nothing of it is here: rows that are taken out
of it are fetched, as ranges of the array's chunk file, and are the caller's own. `begin` asks for
rows without waiting, and `begin_rows` for those of many at once, so that ranges which lie next to
each other become one request.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.file_checksums import update_zeros
from sa1bpack.format.files import byte_view
from sa1bpack.format.layout import ArraySpec

# The arrays that are a hundred times as large as all others; of a feature, its only one.
LARGE_ARRAYS = ("image", "mask_bits", "run_ends", "values")

# Chosen rows that are closer than this are fetched together, with what is between them.
_GAP = 1 << 14


class Span(NamedTuple):
    """Bytes of a file.

    Attributes:
        path: path of the file below the folder that is read.
        first, stop: first byte, and the one after the last.
    """

    path: str
    first: int
    stop: int


class FetchedBytes(Protocol):
    """Bytes that are to be fetched."""

    def send(self) -> None:
        """Ask for them, in their turn: after those that were sent before."""

    @property
    def is_here(self) -> bool:
        """True if `wait` returns, or raises, at once."""

    def wait(self) -> Any:
        """The bytes, an object with a buffer. Asks for them if need be. Raises as RangeReader."""

    def cancel(self) -> None:
        """Note that nobody waits for them any more."""

    def refuse(self) -> None:
        """Note that they are not the bytes that were written: nobody is to get them again."""


class RangeReader(Protocol):
    """A reader of ranges of files in a folder that is not on this machine, for any thread.

    Raises:
        StoreError: the folder cannot be read, has changed, or does not answer in time.
        FormatError: a file is missing there, or ends before the bytes that are needed.
    """

    def prepare(self, spans: Sequence[Span]) -> Sequence[FetchedBytes]:
        """Prepare to fetch spans of files; those that lie next to each other are one request."""

    def check_unchanged(self) -> None:
        """Raise StoreError if the folder is not what it was when it was opened."""


class ComingRows:
    """Rows of an array that are to be fetched.

    Attributes:
        spec: the array.
        first, stop: first row, and the one after the last.
        nbytes: bytes that are fetched for them.
    """

    def __init__(
        self,
        spec: ArraySpec,
        first: int,
        stop: int,
        pieces: Sequence[tuple[Span, FetchedBytes]],
    ):
        """
        Args:
            spec: the array.
            first, stop: the rows.
            pieces: what is fetched of them: spans of the chunk file, and their bytes. Whatever no
                piece has is zero.
        """
        self.first = first
        self.stop = stop
        self.nbytes = sum(span.stop - span.first for span, _ in pieces)
        self.spec = spec
        self._pieces = pieces
        self._arrived: list[Any] | None = None  # the bytes of each piece

    def send(self) -> None:
        """Ask for the rows, in their turn."""
        for _, fetched in self._pieces:
            fetched.send()

    def check_rows(self, first: int, stop: int, subject: str, remedy: str) -> None:
        """Raise FormatError unless these are the rows that are needed.

        Args:
            first, stop: first row that is needed, and the one after the last.
            subject: what is read, for the message, after its file.
            remedy: what helps.
        """
        if (self.first, self.stop) != (first, stop):
            raise FormatError(
                f"{subject}: rows {first} to {stop} are needed, but {self.first} to {self.stop} "
                f"were asked for; {remedy}"
            )

    @property
    def is_here(self) -> bool:
        """True if `wait` returns, or raises, at once."""
        return all(fetched.is_here for _, fetched in self._pieces)

    def wait(self) -> list[Any]:
        """The bytes of each piece, objects with a buffer: waits for them.

        Raises as `RangeReader`.
        """
        if self._arrived is None:
            self._arrived = [fetched.wait() for _, fetched in self._pieces]
        return self._arrived

    def hash_into(self, digest: Any) -> None:
        """Update an XXH3 hash with the bytes of the rows: waits for them. Raises as RangeReader."""
        position = self._start
        for (span, _), data in zip(self._pieces, self.wait(), strict=True):
            update_zeros(digest, span.first - position)
            digest.update(data)
            position = span.stop
        update_zeros(digest, self.stop * self.spec.row_bytes - position)

    def memory(self) -> np.ndarray:
        """uint8 (n,): the bytes of the rows, from the first on, but for zeros at their end.

        Waits for them. It may be what was received, at any address. Raises as `RangeReader`.
        """
        if len(self._pieces) == 1 and self._pieces[0][0].first == self._start:
            return np.frombuffer(self.wait()[0], np.uint8)
        return byte_view(self.rows())

    @property
    def _start(self) -> int:
        """First byte of the rows in the chunk file."""
        return self.first * self.spec.row_bytes

    def rows(self) -> np.ndarray:
        """The rows, (stop - first, *row_shape), C-contiguous: waits for their bytes.

        Raises as `RangeReader`.
        """
        spec = self.spec
        shape = (self.stop - self.first, *spec.row_shape)
        nbytes = prod(shape) * spec.dtype.itemsize
        arrived = self.wait()
        if len(arrived) == 1 and self.nbytes == nbytes:
            rows = np.frombuffer(arrived[0], spec.dtype).reshape(shape)
            if rows.flags.aligned:
                return rows
            return rows.copy()
        data = np.zeros(nbytes, np.uint8)
        for (span, _), piece in zip(self._pieces, arrived, strict=True):
            first = span.first - self._start
            data[first : first + len(piece)] = np.frombuffer(piece, np.uint8)
        return data.view(spec.dtype).reshape(shape)

    def refuse(self) -> None:
        """Note that the rows are not what was written."""
        for _, fetched in self._pieces:
            fetched.refuse()

    def cancel(self) -> None:
        """Note that nobody waits for the rows any more."""
        for _, fetched in self._pieces:
            fetched.cancel()


class RowRequest(NamedTuple):
    """Rows of an array that are to be asked for.

    Attributes:
        array: the array.
        first, stop: first row, and the one after the last.
        within: bytes of these rows, from the first on, that are needed, as (first, stop); the
            others are zero. None: all.
    """

    array: "FetchedArray"
    first: int
    stop: int
    within: Sequence[tuple[int, int]] | None = None

    def spans(self) -> list[Span]:
        """The spans of the chunk file that are needed."""
        spec = self.array.spec
        start = self.first * spec.row_bytes
        within = self.within
        if within is None:
            within = [(0, self.stop * spec.row_bytes - start)]
        spans = []
        for begin, end in within:
            if begin < end:
                spans.append(Span(spec.chunk_path, start + begin, start + end))
        return spans


def prepare_rows(reader: RangeReader, requests: Sequence[RowRequest]) -> list[ComingRows]:
    """Prepare to fetch rows of arrays that one reader reads, all at once."""
    spans_of = [request.spans() for request in requests]
    pending = iter(reader.prepare([span for spans in spans_of for span in spans]))
    coming = []
    for request, spans in zip(requests, spans_of, strict=True):
        pieces = [(span, next(pending)) for span in spans]
        coming.append(ComingRows(request.array.spec, request.first, request.stop, pieces))
    return coming


class FetchedArray:
    """All rows of an array of which nothing is on this machine.

    Attributes:
        spec: the array.
        reader: fetches its bytes.
        shape: (rows, *row_shape).
        dtype: dtype of the rows.
    """

    def __init__(self, spec: ArraySpec, rows: int, reader: RangeReader):
        self.spec = spec
        self.reader = reader
        self.shape = (rows, *spec.row_shape)
        self.dtype = spec.dtype

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self) * self.spec.row_bytes

    def begin(self, first: int, stop: int) -> ComingRows:
        """Ask for rows."""
        [coming] = prepare_rows(self.reader, [RowRequest(self, first, stop)])
        coming.send()
        return coming

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows by number, slice or int64 (k,) positions, as arrays of memory are indexed.

        Raises IndexError; and as `RangeReader`.
        """
        if isinstance(rows, slice):
            positions = range(*rows.indices(len(self)))
            if positions.step == 1:
                return self._fetched(positions.start, max(positions.start, positions.stop))
            rows = np.array(positions, np.int64)
        if np.ndim(rows):
            return self._chosen(np.asarray(rows))
        row = int(rows)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of an array of {len(self)}")
        row %= len(self)
        fetched: np.ndarray = self._fetched(row, row + 1)[0]
        return fetched

    def _fetched(self, first: int, stop: int) -> np.ndarray:
        return self.begin(first, stop).rows()

    def _chosen(self, positions: np.ndarray) -> np.ndarray:
        """The rows at int64 (k,) positions, of which those that are close are fetched together."""
        if not len(positions):
            return np.empty((0, *self.spec.row_shape), self.dtype)
        if positions.min() < -len(self) or positions.max() >= len(self):
            raise IndexError(f"rows up to {positions.max()} of an array of {len(self)}")
        order, inverse = np.unique(positions % len(self), return_inverse=True)
        breaks = np.flatnonzero(np.diff(order) * self.spec.row_bytes > _GAP + self.spec.row_bytes)
        starts = [0, *(breaks + 1).tolist()]
        stops = [*(breaks + 1).tolist(), len(order)]
        requests = []
        for start, stop in zip(starts, stops, strict=True):
            requests.append(RowRequest(self, int(order[start]), int(order[stop - 1]) + 1))
        rows: np.ndarray = np.empty((len(order), *self.spec.row_shape), self.dtype)
        coming = prepare_rows(self.reader, requests)
        for part in coming:
            part.send()
        for start, stop, part in zip(starts, stops, coming, strict=True):
            rows[start:stop] = part.rows()[order[start:stop] - part.first]
        chosen: np.ndarray = rows[inverse]
        return chosen

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        """Nothing: whole, it may be larger than the memory. Raises OptionError."""
        raise OptionError(
            f"{self.spec.name} of a shard at a URL is read by rows, such as shard"
            f"[{self.spec.name!r}][first:stop]: to have it whole as a memory map, open the pack "
            "with a cache of whole shards (cache_dir, fetch='shards')"
        )

    def __repr__(self) -> str:
        return f"<{self.spec.name}, {self.shape} {self.dtype}, rows of which are fetched>"
