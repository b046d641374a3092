"""The samples of a shard at a URL, whose large arrays are fetched by rows.

The small arrays are on this machine, and were compared with their digests when they were fetched.
With the rows of the large ones, a sample is compared with its checksum. That is done for each
sample of an epoch, so it reads the small arrays as bytes: it makes no array of a row.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.fetched import ComingRows, FetchedArray, RowRequest
from sa1bpack.format.files import byte_view
from sa1bpack.format.layout import ArraySpec, canvas_spans
from sa1bpack.format.shard_reader import REPAIR, Shard

# First row, and the one after the last, that a sample has along each axis.
Bounds = Mapping[str, tuple[int, int]]


class IndexEntry(NamedTuple):
    """What the index of a pack repeats of a sample.

    Attributes:
        image_id: its image id.
        first_mask, stop_mask: its masks: first row in the shard, and one past the last.
    """

    image_id: int
    first_mask: int
    stop_mask: int


class _Array(NamedTuple):
    """An array of the shard, as `check` needs it.

    Attributes:
        spec: the array.
        data: its bytes, a memoryview; None: it is fetched by rows.
        child_rows: of an offset array, the rows of the axis that it points into.
    """

    spec: ArraySpec
    data: Any
    child_rows: int


class FetchedSamples:
    """The samples of a shard of which rows are fetched, for any thread."""

    def __init__(self, shard: Shard):
        """
        Args:
            shard: the shard, with a reader.
        """
        self._shard = shard
        self._arrays: list[_Array] = []
        self._offset_arrays: list[tuple[ArraySpec, Any, int]] = []  # with their numbers
        for spec in shard.layout.arrays:
            array: Any = shard[spec.name]
            data = None
            child_rows = 0
            if not isinstance(array, FetchedArray):
                data = byte_view(array).data
            if spec.child_axis is not None:
                child_rows = shard.lengths.along(spec.child_axis)
                self._offset_arrays.append((spec, array.data, child_rows))
            self._arrays.append(_Array(spec, data, child_rows))
        self._image_ids: Any = shard["image_id"].data
        self._mask_offset: Any = shard["mask_offset"].data
        self._checksums: Any = shard["checksum"].data
        self._sizes: Any = shard["size"].data

    def index_entry(self, row: int) -> IndexEntry:
        """What the shard says of a sample that the index says, too."""
        mask_offset = self._mask_offset
        return IndexEntry(self._image_ids[row], mask_offset[row], mask_offset[row + 1])

    def requests(self, row: int) -> dict[str, RowRequest]:
        """The rows of a sample that must be fetched, by array name.

        Raises FormatError for offsets that fall, or leave their axis.
        """
        bounds = self._bounds(row)
        layout = self._shard.layout
        requests = {}
        for spec, data, _ in self._arrays:
            if data is not None:
                continue
            array: Any = self._shard[spec.name]
            within = None
            if spec.name == "image" and not layout.flat:
                within = canvas_spans(layout, self._sizes[row, 2])
            first, stop = bounds[spec.axis]
            requests[spec.name] = RowRequest(array, first, stop, within)
        return requests

    def check(self, row: int, coming: Mapping[str, ComingRows]) -> None:
        """Wait for the rows of a sample, and compare it with its checksum.

        Without the rows of one of its arrays nothing can be compared.

        Args:
            row: row of the sample in the shard.
            coming: its rows of large arrays, by name.

        Raises:
            FormatError: the bytes are not those that were written.
            StoreError: rows cannot be fetched.
        """
        bounds = self._bounds(row)
        folder = self._shard.folder
        digest = xxhash.xxh3_64()
        short: list[Any] = []  # rows that are hashed at once: a call for each takes longer
        is_whole = True
        for array in self._arrays:
            spec = array.spec
            first, stop = bounds[spec.axis]
            if spec.child_axis is not None:
                short.append(self._lengths(array, first, stop))
            elif spec.name == "checksum":
                continue
            elif array.data is not None:
                short.append(array.data[first * spec.row_bytes : stop * spec.row_bytes])
            elif spec.name in coming:
                digest.update(b"".join(short))
                short = []
                rows = coming[spec.name]
                rows.check_rows(first, stop, f"{folder}: {spec.name} of sample {row}", REPAIR)
                rows.hash_into(digest)
            elif first < stop:
                is_whole = False
        digest.update(b"".join(short))
        stored = self._checksums[row]
        if is_whole and digest.intdigest() != stored:
            raise FormatError(
                f"{self._shard.folder}: checksum of sample {row} is {digest.intdigest():016x}, but "
                f"{stored:016x} was written; {REPAIR}"
            )

    def rows(self, row: int, coming: Mapping[str, ComingRows]) -> dict[str, np.ndarray]:
        """All rows of a sample that has been checked, as `shard_reader.read_sample_rows` has them.

        Of arrays that are not in `coming`, none.
        """
        bounds = self._bounds(row)
        rows = {}
        for spec, data, _ in self._arrays:
            first, stop = bounds[spec.axis]
            if data is not None:
                rows[spec.name] = self._shard[spec.name][first : stop + spec.offsets]
            elif spec.name in coming:
                rows[spec.name] = coming[spec.name].rows()
            else:
                rows[spec.name] = np.empty((0, *spec.row_shape), spec.dtype)
        return rows

    def _bounds(self, row: int) -> Bounds:
        """The bounds of a sample. Raises FormatError for offsets that fall, or leave their axis."""
        bounds: dict[str, tuple[int, int]] = {"sample": (row, row + 1)}
        for spec, offsets, most in self._offset_arrays:
            first, stop = bounds[spec.axis]
            start = offsets[first]
            end = offsets[stop]
            if not 0 <= start <= end <= most:
                raise self._bad_offsets(spec, start, end, most)
            assert spec.child_axis is not None, "an offset array has one"
            bounds[spec.child_axis] = start, end
        return bounds

    def _lengths(self, array: _Array, first: int, stop: int) -> bytes:
        """Differences of offsets `first` to `stop`, as int64. Raises FormatError if they fall."""
        offsets = np.frombuffer(array.data, "<i8", stop + 1 - first, 8 * first)
        if (offsets[1:] < offsets[:-1]).any():  # a difference of two int64 may wrap round
            start = int(offsets[0])
            raise self._bad_offsets(array.spec, start, int(offsets[-1]), array.child_rows)
        lengths: np.ndarray = offsets[1:] - offsets[:-1]
        return lengths.tobytes()

    def _bad_offsets(self, spec: ArraySpec, start: int, end: int, most: int) -> FormatError:
        return FormatError(
            f"{self._shard.folder / spec.chunk_path}: offsets of the sample run from {start} to "
            f"{end}, but must be non-decreasing within 0 and {most}; {REPAIR}"
        )
