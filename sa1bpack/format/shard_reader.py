"""Reading a shard: memory maps, checked before the first view, or copies compared with checksums.

Of a shard at a URL the small arrays may be on this machine, and rows of the large ones be fetched:
then `shard["image"]` is a `FetchedArray`, and `fetched_samples` reads its samples.

`open_shard` maps. `read_sample_rows` compares one sample with its XXH3-64, `read_array_rows` one
array with the XXH3-128 of its file. Both read with `pread`, not through a memory map: the bytes
that were compared are the bytes returned, whatever happens to the file afterwards, and a truncated
file or a failing disk is an error, not a signal that ends the process.

A file is opened for each read: no descriptors are held, and a shard that `sa1bpack repair` replaced
is read at once.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from sa1bpack.disk.direct import open_to_read, read_direct
from sa1bpack.errors import FormatError
from sa1bpack.format import arrays, file_checksums, files
from sa1bpack.format.fetched import LARGE_ARRAYS, FetchedArray, RangeReader
from sa1bpack.format.layout import (
    ArraySpec,
    Layout,
    image_nbytes,
    image_planes,
    rows_checksum,
)
from sa1bpack.format.manifest import ShardEntry
from sa1bpack.paths import naming

REPAIR = "`sa1bpack verify` names the damage, `sa1bpack repair` rebuilds it"

# Bytes of one read from which it pays to leave the page cache out.
_DIRECT_FROM = 1 << 16


class Shard:
    """A published shard.

    `shard["image"]` is a read-only memory map, mapped once: (N, S, S, 3) for RGB on canvases;
    docs/format.md has the shapes of the other layouts.

    Views stay valid after the shard object is gone.

    Attributes:
        folder: folder of the shard.
        layout: layout of the pack.
        lengths: numbers of samples, masks, runs and image bytes.
        attributes: all attributes of the group, including those of the packer (such as rejects).
        entry: entry in the manifest, as it must be.
        reader: fetches rows of the large arrays; None: all arrays are in the folder.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        attributes: dict[str, Any],
        entry: ShardEntry,
        reader: RangeReader | None = None,
    ):
        self.folder = folder
        self.layout = layout
        self.attributes = attributes
        self.entry = entry
        self.lengths = entry.lengths
        self.reader = reader
        self._arrays: dict[str, Any] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """All rows of the array of that name. Raises UnknownName naming the arrays."""
        if name not in self._arrays:
            spec = self.layout.array(name)
            rows = spec.rows(self.lengths)
            if self.reader is not None and rows and name in LARGE_ARRAYS:
                self._arrays[name] = FetchedArray(spec, rows, self.reader)
            else:
                self._arrays[name] = arrays.map_array(self.folder, spec, rows)
        array: np.ndarray = self._arrays[name]
        return array

    def __len__(self) -> int:
        return self.lengths.samples

    def planes(self, row: int) -> dict[str, np.ndarray]:
        """The stored pixels of one sample, without padding: views of its planes by name.

        {"rgb": (h, w, 3)}, or {"y": (h, w), "cb": (h / 2, w / 2), "cr": the same} with halves
        rounded up; all uint8. `sa1bpack.pixels.yuv420_to_rgb` converts the latter.

        Raises IndexError for a row outside 0 .. samples - 1, FormatError if the number of bytes of
        the image does not follow from its size.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {self.folder}, which has {len(self)} samples")
        height, width = self["size"][row, 2:].tolist()
        if self.layout.flat:
            start, stop = self["image_offset"][row : row + 2].tolist()
            image = self["image"][start:stop]
        else:
            image = self["image"][row].reshape(-1)
        expected = image_nbytes(self.layout, height, width)
        if image.size != expected:
            raise FormatError(
                f"{self.folder / 'image_offset'}: sample {row} has {image.size} bytes of pixels, "
                f"but its {height} x {width} take {expected}; {files.REMEDY}"
            )
        planes = image_planes(self.layout, height, width)
        return {plane.name: plane.view(image) for plane in planes}


def open_shard(
    folder: Path,
    layout: Layout | None = None,
    *,
    deep: bool = True,
    reader: RangeReader | None = None,
) -> Shard:
    """Open a shard, checking everything that can be checked without reading its data.

    These are the attributes of the group, the metadata of every array against the layout, the exact
    length of every chunk file, and the first and last offset of every offset array.

    Args:
        folder: folder of the shard.
        layout: the layout of the pack; a shard with another layout is refused.
        deep: False: read only the metadata of the group, which repeats that of all arrays. No
            memory map depends on the rest, and opening reads 1 small file instead of 19.
        reader: fetches rows of the large arrays, which are not in the folder; None: they are.

    Raises:
        FormatError: the shard is damaged; the message names the file, what was found and what is
            expected.
        VersionError: the shard has a newer major version.
    """
    folder = Path(folder)
    path = folder / arrays.METADATA_NAME
    try:
        attributes = arrays.read_json(path)["attributes"]["sa1bpack"]
        record = {**attributes, "name": folder.name, "bytes": 0}
        arrays.check_version(path, record.get("format"))
        entry = msgspec.convert(record, ShardEntry)
    except (KeyError, TypeError):
        raise FormatError(
            f"{path}: not a Zarr group with sa1bpack's attributes; {files.REMEDY}"
        ) from None
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: attributes: {error}; {files.REMEDY}") from None
    stored = Layout.from_json(record.get("layout"), f"{path}: layout")
    if layout is not None and stored != layout:
        raise FormatError(f"{path}: layout is {stored}, but the pack's is {layout}")
    for name, is_stored in (("runs", stored.runs), ("image_bytes", stored.flat)):
        count = getattr(entry, name)
        if count and not is_stored:
            raise FormatError(f"{path}: {name} is {count}, but the layout stores no {name}")
    elsewhere = LARGE_ARRAYS if reader is not None else ()
    nbytes = arrays.check_group(
        folder, attributes, stored.array_rows(entry.lengths), deep, elsewhere
    )
    entry = msgspec.structs.replace(entry, bytes=nbytes)
    shard = Shard(folder, stored, attributes, entry, reader)
    for spec in stored.arrays:
        if spec.child_axis is not None:
            last = entry.lengths.along(spec.child_axis)
            arrays.check_offset_ends(folder / spec.name, shard[spec.name], last)
    return shard


def rows_of_sample(
    shard: Shard, row: int, read: Callable[[ArraySpec, int, int], np.ndarray]
) -> dict[str, np.ndarray]:
    """All rows of one sample by array name, (n, *row_shape) each; of an offset array n + 1 offsets.

    Args:
        shard: the shard.
        row: row of the sample in the shard.
        read: called as read(spec, first, stop) for rows of each array, in the order of the layout.

    Raises:
        FormatError: offsets fall, or leave their axis.
        Whatever `read` raises.
    """
    bounds: dict[str, tuple[int, int]] = {"sample": (row, row + 1)}
    rows: dict[str, np.ndarray] = {}
    for spec in shard.layout.arrays:
        first, stop = bounds[spec.axis]
        values = read(spec, first, stop + spec.offsets)
        rows[spec.name] = values
        if spec.child_axis is not None:
            start = int(values[0])
            end = int(values[-1])
            most = shard.lengths.along(spec.child_axis)
            # Compared, not subtracted: a difference of two int64 may wrap round.
            if start < 0 or end > most or (values[1:] < values[:-1]).any():
                raise FormatError(
                    f"{shard.folder / spec.chunk_path}: offsets of the sample run from {start} to "
                    f"{end}, but must be non-decreasing within 0 and {most}; {REPAIR}"
                )
            bounds[spec.child_axis] = start, end
    return rows


def checksum_of_rows(layout: Layout, rows: Mapping[str, np.ndarray]) -> int:
    """The XXH3-64 of a sample from its `rows_of_sample`, which have offsets, not lengths."""
    lengths = {spec.name: np.diff(rows[spec.name]) for spec in layout.arrays if spec.offsets}
    return rows_checksum(layout, {**rows, **lengths}, layout.image_size)


def read_sample_rows(
    shard: Shard,
    row: int,
    out: Mapping[str, np.ndarray] | None = None,
    direct: bool = False,
) -> dict[str, np.ndarray]:
    """All rows of one sample by array name, (n, *row_shape) each, compared with its checksum.

    An offset array yields the n + 1 offsets stored in the shard. The arrays are C-contiguous and
    belong to the caller.

    Args:
        shard: the shard, which is on this machine; see `fetched_samples` for others.
        row: row of the sample in the shard.
        out: arrays to read into, by name, of exactly the dtype and shape of the rows; the others
            are allocated.
        direct: read what is large past the page cache, where that is possible.

    Raises:
        FormatError: the bytes are not those that were written, or a file is too short.
        OSError: a file cannot be opened or read.
    """
    targets = out or {}

    def read(spec: ArraySpec, first: int, stop: int) -> np.ndarray:
        path = f"{shard.folder}/{spec.chunk_path}"
        return read_rows(path, spec, first, stop, targets.get(spec.name), direct)

    rows = rows_of_sample(shard, row, read)
    checksum = checksum_of_rows(shard.layout, rows)
    stored = int(rows["checksum"][0])
    if checksum != stored:
        raise FormatError(
            f"{shard.folder}: checksum of sample {row} is {checksum:016x}, but {stored:016x} was "
            f"written; {REPAIR}"
        )
    return rows


def read_rows(
    path: str,
    spec: ArraySpec,
    first: int,
    stop: int,
    out: np.ndarray | None = None,
    direct: bool = False,
) -> np.ndarray:
    """Rows `first` to `stop` of an array, read from its file.

    Args:
        path: path of the chunk file.
        spec: the array.
        first, stop: first row, and the one after the last.
        out: (stop - first, *row_shape) to read into; None: a new array.
        direct: read what is large past the page cache, where that is possible.

    Raises:
        FormatError: the file is too short.
        OSError: the file cannot be opened or read.
    """
    rows = out
    if rows is None:
        rows = np.empty((stop - first, *spec.row_shape), spec.dtype)
    if not rows.nbytes:  # an array without rows has no file
        return rows
    begin = first * spec.row_bytes
    file, past_cache = open_to_read(path, direct and rows.nbytes >= _DIRECT_FROM)
    try:
        if not past_cache:
            files.read_at(file, files.byte_view(rows), begin, path)
            return rows
        with naming(path):
            count = read_direct(file, files.byte_view(rows), begin)
    finally:
        os.close(file)
    if count < rows.nbytes:
        raise files.cut_short(path, begin + count, begin + rows.nbytes)
    return rows


def read_array_rows(shard: Shard, name: str) -> np.ndarray:
    """All rows of an array of a shard, compared with the digest of its file; a fresh copy.

    Meant for the small arrays. Raises FormatError and OSError as `read_sample_rows` does, and
    FormatError if the shard's checksum file is damaged.
    """
    spec = shard.layout.array(name)
    count = spec.rows(shard.lengths)
    path = f"{shard.folder}/{spec.chunk_path}"
    rows = read_rows(path, spec, 0, count)
    if count:
        listed = file_checksums.read_checksums(shard.folder / file_checksums.CHECKSUMS_NAME)
        check_rows_digest(path, rows, spec, listed.get(spec.chunk_path))
    return rows


def check_rows_digest(
    path: object, rows: np.ndarray, spec: ArraySpec, expected: str | None
) -> None:
    """Compare all rows of an array with the XXH3-128 of its file.

    The rest of the file, after the rows, follows from their number and is not read. Raises
    FormatError if they differ.
    """
    digest = xxhash.xxh3_128(files.byte_view(rows).data)
    digest.update(arrays.ChunkFile(spec, len(rows)).tail())
    if digest.hexdigest() != expected:
        says = "lists none"
        if expected is not None:
            says = f"says {expected}"
        raise FormatError(
            f"{path}: XXH3-128 of its rows is {digest.hexdigest()}, but "
            f"{file_checksums.CHECKSUMS_NAME} {says}; {REPAIR}"
        )
