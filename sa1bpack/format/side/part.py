"""One part of a side array: checked before the first view; its rows are memory maps."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack.disk.direct import open_direct_if_possible, read_direct
from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import check_length, check_metadata, map_array
from sa1bpack.format.files import byte_view, cut_short, naming, read_at
from sa1bpack.format.layout import Extent
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.spec import AGAIN, CHECKSUM, REMAKE, SIDE_FORMAT_VERSION, SideSpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, chunk_file, group_metadata

# Bytes of one read from which it pays to leave the page cache out.
_LARGE = 1 << 16


def part_metadata(spec: SideSpec, shard: ShardIdentity) -> dict[str, Any]:
    """The zarr.json of the part for a shard."""
    attributes = {
        "format": list(SIDE_FORMAT_VERSION),
        "side": spec.name,
        "shard": shard.name,
        "digest": shard.digest,
        "samples": shard.extent.samples,
        "masks": shard.extent.masks,
    }
    return group_metadata(attributes, spec.arrays(shard.extent))


@dataclass(frozen=True)
class SidePart:
    """A part that was found sound.

    folder    its folder
    spec      SideSpec of the array
    values    (rows, *row_shape), read-only memory map: a row per sample or mask of the shard
    samples   N, of the shard
    """

    folder: Path
    spec: SideSpec
    values: np.ndarray
    samples: int

    @property
    def checksum(self) -> np.ndarray:
        """uint64 (N,), of the rows of each sample: a memory map, made at every call."""
        return map_array(self.folder, CHECKSUM, self.samples)

    @property
    def path(self) -> str:
        """The chunk file of the rows."""
        return f"{self.folder}/{self.spec.values.chunk_path}"

    def read(
        self,
        sample: int,
        first: int,
        stop: int,
        out: np.ndarray | None = None,
        direct: bool = False,
    ) -> np.ndarray:
        """The rows of one sample, copied from the file and compared with their checksum.

        sample       row of the sample in the shard, which exists
        first, stop  its rows of `values`, which exist
        out          (stop - first, *row_shape) to read into
        direct       read what is large past the page cache, where that is possible

        Raises FormatError if they are not what was written or the file is too short, OSError if it
        cannot be read.
        """
        width, path = self.spec.row_bytes, self.path
        if out is None:
            out = np.empty((stop - first, *self.spec.row_shape), self.spec.stored)
        data = byte_view(out)
        if direct and data.size >= _LARGE and (file := open_direct_if_possible(path)) is not None:
            try:
                with naming(path):
                    count = read_direct(file, data, first * width)
            finally:
                os.close(file)
            if count < data.size:
                raise cut_short(path, first * width + count, stop * width)
        elif data.size:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                read_at(file, data, first * width, path)
            finally:
                os.close(file)
        stored = np.empty(1, CHECKSUM.dtype)
        checksums = f"{self.folder}/{CHECKSUM.chunk_path}"
        file = os.open(checksums, os.O_RDONLY | os.O_CLOEXEC)
        try:
            read_at(file, byte_view(stored), sample * CHECKSUM.row_bytes, checksums)
        finally:
            os.close(file)
        found = xxhash.xxh3_64_intdigest(data)
        if found != int(stored[0]):
            raise FormatError(
                f"{path}: checksum of sample {sample} is {found:016x}, but {int(stored[0]):016x} "
                f"was written; {REMAKE}"
            )
        return out


def open_part(folder: Path, spec: SideSpec, shard: ShardIdentity, *, deep: bool = False):
    """Open the part for a shard, checking everything that can be checked without reading its data.

    folder  of the side array
    deep    check also the metadata of each array, on which no memory map depends

    Raises FormatError naming the file, what was found and what is expected; OSError.
    """
    part = Path(folder) / shard.part
    if not part.is_dir():
        raise FormatError(f"{folder}: no part for shard {shard.name} ({shard.part}); {AGAIN}")
    expected = part_metadata(spec, shard)
    try:
        check_metadata(part / METADATA_NAME, expected)
        for array, rows in spec.arrays(shard.extent).items():
            if deep:
                metadata = expected["consolidated_metadata"]["metadata"][array.name]
                check_metadata(part / array.name / METADATA_NAME, metadata)
            check_length(part / array.chunk_path, chunk_file(array, rows).file_bytes)
    except FormatError as error:
        raise FormatError(f"{str(error).partition('; restore')[0]}; {REMAKE}") from None
    values = map_array(part, spec.values, spec.values.rows(shard.extent))
    return SidePart(part, spec, values, shard.extent.samples)


def part_bytes(spec: SideSpec, extent: Extent) -> int:
    """Total bytes of the chunk files of a part."""
    return sum(chunk_file(array, rows).file_bytes for array, rows in spec.arrays(extent).items())
