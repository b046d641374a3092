"""A feature shard, checked before the first view of it: the rows of a feature for one shard."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.format import arrays
from sa1bpack.format.fetched import (
    LARGE_ARRAYS,
    ComingRows,
    FetchedArray,
    RangeReader,
    RowRequest,
)
from sa1bpack.format.layout import ArraySpec
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.format.shard_reader import read_rows
from sa1bpack.format.side.manifest import AGAIN, REMAKE
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.shards import ShardIdentity, feature_shard_attributes
from sa1bpack.format.side.spec import CHECKSUM, MAX_SIDE_ROW_BYTES, SideSpec
from sa1bpack.paths import is_folder
from sa1bpack.wording import counted

# Items of a feature shard, of a byte at least.
_Items = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


@dataclass(frozen=True)
class FeatureShard:
    """The rows of a feature for one shard, which have been checked.

    Attributes:
        folder: folder of the feature shard.
        spec: spec of the feature.
        values: read-only memory map, or a FetchedArray. Fixed rows, (rows, *stored_shape): one per
            sample or mask of the shard. The items of ragged rows, (items, *row_shape).
        samples: n, number of samples of the shard.
        offset: int64 (rows + 1,), where each ragged row begins in `values`; None for fixed rows.
        present: uint8 (rows,), 1 for rows that are there; None if all are.
    """

    folder: Path
    spec: SideSpec
    values: np.ndarray
    samples: int
    offset: np.ndarray | None = None
    present: np.ndarray | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        spec: SideSpec,
        shard: ShardIdentity,
        *,
        deep: bool = False,
        reader: RangeReader | None = None,
    ) -> "FeatureShard":
        """Open the feature shard for a shard, with all checks that need none of its values.

        Args:
            folder: folder of the feature.
            spec: spec of the feature.
            shard: the shard that it must be for.
            deep: check also the metadata of each array, on which no memory map depends.
            reader: fetches rows of the values, which are not in the folder; None: they are.

        Raises:
            FormatError: it is damaged; the message names the file, what was found and what is
                expected.
            OSError: a file cannot be read.
        """
        opened = Path(folder) / shard.feature_shard
        if not is_folder(opened):
            raise FormatError(f"{opened}: there are no rows for shard {shard.name}; {AGAIN}")
        try:
            items = items_of(opened) if spec.ragged else 0
            rows = spec.arrays(shard.lengths, items)
            attributes = feature_shard_attributes(spec, shard, items)
            elsewhere = LARGE_ARRAYS if reader is not None else ()
            arrays.check_group(opened, attributes, rows, deep, elsewhere)
            maps: dict[str, Any] = {}
            for array, count in rows.items():
                if reader is not None and count and array.name in LARGE_ARRAYS:
                    maps[array.name] = FetchedArray(array, count, reader)
                else:
                    maps[array.name] = arrays.map_array(opened, array, count)
            feature_shard = cls(
                opened,
                spec,
                maps["values"],
                shard.lengths.samples,
                maps.get("offset"),
                maps.get("present"),
            )
            feature_shard.check_small_arrays()
        except FormatError as error:
            raise FormatError(f"{str(error).partition('; restore')[0]}; {REMAKE}") from None
        return feature_shard

    @classmethod
    def without_rows(cls, spec: SideSpec) -> "FeatureShard":
        """That of a shard without samples, which has no folder."""
        values = np.empty((0, *spec.stored_shape), spec.stored)
        shard = cls(Path(), spec, values, 0)
        return shard.with_rows(FeatureRows(values, *_empty_parts(spec)))

    def with_rows(self, rows: FeatureRows, samples: int = 0) -> "FeatureShard":
        """A feature shard in memory, of these rows alone."""
        offset = None
        if rows.lengths is not None:
            offset = offsets_of(rows.lengths)
        return replace(
            self, values=rows.values, samples=samples, offset=offset, present=rows.present
        )

    def check_small_arrays(self) -> None:
        """Check `offset` and `present`. Raises FormatError."""
        offset = self.offset
        present = self.present
        if present is not None and present.size and present.max() > 1:
            row = int(np.argmax(present > 1))
            raise FormatError(
                f"{self.folder / 'present'}: row {row} is {present[row]}, but must be 0 or 1"
            )
        if offset is None:
            return
        path = self.folder / "offset"
        arrays.check_offset_ends(path, offset, len(self.values))
        arrays.check_offsets_rise(path, offset)
        lengths = np.diff(offset)
        longest = int(lengths.max(initial=0))
        if longest * self.spec.row_bytes > MAX_SIDE_ROW_BYTES:
            row = int(lengths.argmax())
            raise FormatError(
                f"{path}: row {row} has {counted(longest, 'item')}, of {self.spec.row_bytes} bytes "
                f"each: a row has at most {MAX_SIDE_ROW_BYTES} bytes"
            )
        if present is not None and lengths[present == 0].any():
            row = int(np.argmax((lengths > 0) & (present == 0)))
            raise FormatError(
                f"{path}: row {row} has {counted(int(lengths[row]), 'item')}, but is missing"
            )

    @property
    def checksum(self) -> np.ndarray:
        """uint64 (N,), of the rows of each sample: a memory map, made at every call."""
        return arrays.map_array(self.folder, CHECKSUM, self.samples)

    @property
    def path(self) -> str:
        """The chunk file of the values."""
        return f"{self.folder}/{self.spec.values.chunk_path}"

    @property
    def row_count(self) -> int:
        """The number of its rows."""
        if self.offset is None:
            return len(self.values)
        return len(self.offset) - 1

    @property
    def mappings(self) -> int:
        """The memory maps that it has."""
        maps = (self.values, self.offset, self.present)
        return sum(array is not None and len(array) > 0 for array in maps)

    def span(self, first: int, stop: int) -> tuple[int, int]:
        """Where rows `first` to `stop` begin and end in `values`: rows, or items of ragged rows.

        Raises FormatError for offsets that fall, or lead outside.
        """
        if self.offset is None:
            return first, stop
        return span_of(self.offset[first : stop + 1], first, len(self.values), self.folder)

    def rows(self, first: int, stop: int) -> FeatureRows:
        """Rows `first` to `stop`: views. Raises FormatError as `span` does."""
        present = None
        if self.present is not None:
            present = self.present[first:stop]
        if self.offset is None:
            return FeatureRows(self.values[first:stop], None, present)
        offsets = self.offset[first : stop + 1].copy()  # what is checked is what is used
        begin, end = span_of(offsets, first, len(self.values), self.folder)
        return FeatureRows(self.values[begin:end], np.diff(offsets), present)

    def take(self, rows: np.ndarray) -> FeatureRows:
        """The rows at int64 (k,) positions, as new arrays."""
        present = None
        if self.present is not None:
            present = self.present[rows]
        if self.offset is None:
            return FeatureRows(self.values[rows], None, present)
        first = self.offset[rows]
        lengths = self.offset[rows + 1] - first
        items = expanded(first, offsets_of(lengths))
        return FeatureRows(self.values[items], lengths, present)

    @property
    def fetched(self) -> FetchedArray | None:
        """The values, if their rows are fetched; None: they are on this machine."""
        values: Any = self.values
        if isinstance(values, FetchedArray):
            return values
        return None

    def rows_to_fetch(self, first: int, stop: int) -> RowRequest | None:
        """The values of rows `first` to `stop` that must be fetched; None: they are here.

        Raises FormatError as `span` does.
        """
        fetched = self.fetched
        if fetched is None:
            return None
        begin, end = self.span(first, stop)
        return RowRequest(fetched, begin, end)

    def read(
        self,
        sample: int,
        first: int,
        stop: int,
        out: np.ndarray | None = None,
        direct: bool = False,
        coming: ComingRows | None = None,
    ) -> FeatureRows:
        """The rows of one sample, copied from the files and compared with their checksum.

        Args:
            sample: row of the sample in the shard, which exists.
            first, stop: first row of the sample, and the one after its last; they exist.
            out: (stop - first, *stored_shape) to read fixed rows into; None: a new array.
            direct: read what is large past the page cache, where that is possible.
            coming: the values, of a shard at a URL, if they have been asked for.

        Raises:
            FormatError: the bytes are not those that were written, or a file is too short.
            OSError: a file cannot be read.
            StoreError: they cannot be fetched.
        """

        def read(array: ArraySpec, begin: int, end: int) -> np.ndarray:
            path = f"{self.folder}/{array.chunk_path}"
            if array.name != "values":
                return read_rows(path, array, begin, end)
            fetched = self.fetched
            if fetched is None or begin == end:
                return read_rows(path, array, begin, end, out, direct)
            arriving = coming or fetched.begin(begin, end)
            arriving.check_rows(begin, end, f"{self.path}: values of sample {sample}", REMAKE)
            return arriving.rows()

        rows = rows_read(self.spec, first, stop, len(self.values), read, self.folder)
        stored = int(read(CHECKSUM, sample, sample + 1)[0])
        digest = int(rows.checksums([stop - first])[0])
        if digest != stored:
            raise FormatError(
                f"{self.path}: checksum of sample {sample} is {digest:016x}, but {stored:016x} was "
                f"written; {REMAKE}"
            )
        return rows


def rows_read(
    spec: SideSpec,
    first: int,
    stop: int,
    most: int,
    read: Callable[[ArraySpec, int, int], np.ndarray],
    folder: Path,
) -> FeatureRows:
    """Rows of a feature shard, of which each array is read once.

    Args:
        spec: spec of the feature.
        first, stop: first row, and the one after the last; they exist.
        most: rows that `values` has.
        read: called as read(array, first, stop) for rows of an array.
        folder: folder of the feature shard, for messages.

    Raises:
        FormatError: offsets fall, or lead outside.
        Whatever `read` raises.
    """
    begin = first
    end = stop
    lengths = None
    present = None
    if spec.offset is not None:
        offsets = read(spec.offset, first, stop + 1)
        begin, end = span_of(offsets, first, most, folder)
        lengths = np.diff(offsets)
    if spec.present is not None:
        present = read(spec.present, first, stop)
    return FeatureRows(read(spec.values, begin, end), lengths, present)


def span_of(offsets: np.ndarray, first: int, most: int, folder: Path) -> tuple[int, int]:
    """Where ragged rows begin and end in `values`, by their offsets.

    Args:
        offsets: int64, one more than there are rows.
        first: the first row, for messages.
        most: items that there are.
        folder: folder of the feature shard, for messages.

    Raises:
        FormatError: offsets fall, or lead outside.
    """
    begin = int(offsets[0])
    end = int(offsets[-1])
    # Compared, not subtracted: a difference of two int64 may wrap round.
    if begin < 0 or end > most or (offsets[1:] < offsets[:-1]).any():
        raise FormatError(
            f"{folder / 'offset'}: offsets from row {first} on run from {begin} to {end}, but must "
            f"be non-decreasing within 0 and {most}; {REMAKE}"
        )
    return begin, end


def _empty_parts(spec: SideSpec) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The lengths of no row, and which of them are there, as the feature has them."""
    lengths = np.empty(0, np.int64) if spec.ragged else None
    present = np.empty(0, np.uint8) if spec.missing else None
    return lengths, present


def arrays_in(folder: Path, spec: SideSpec, shard: ShardIdentity) -> dict[ArraySpec, int]:
    """The arrays of the feature shard for a shard → their number of rows.

    Args:
        folder: folder of the feature, which has the feature shard.
        spec, shard: as in `FeatureShard.open`.

    Raises:
        FormatError: it does not say how many items its ragged rows have.
        OSError: it cannot be read.
    """
    items = 0
    if spec.ragged:
        items = items_of(folder / shard.feature_shard)
    return spec.arrays(shard.lengths, items)


def items_of(folder: Path) -> int:
    """The items of all ragged rows of a feature shard, as its attributes say.

    Raises FormatError, OSError.
    """
    path = folder / arrays.METADATA_NAME
    return items_in(arrays.read_json(path), path)


def items_in(metadata: Any, path: object) -> int:
    """The same, of the decoded zarr.json of a feature shard. Raises FormatError, naming `path`."""
    try:
        items = metadata["attributes"]["sa1bpack"]["items"]
        return msgspec.convert(items, _Items)
    except (KeyError, TypeError):
        raise FormatError(f"{path}: its attributes lack items") from None
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: items: {error}") from None
