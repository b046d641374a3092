"""One part of a side array: checked before the first view; its rows are memory maps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import check_length, check_metadata, map_array
from sa1bpack.format.files import byte_view
from sa1bpack.format.layout import Extent
from sa1bpack.format.shard_reader import read_rows
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.spec import AGAIN, CHECKSUM, REMAKE, SIDE_FORMAT_VERSION, SideSpec
from sa1bpack.format.zarr_metadata import METADATA_NAME, chunk_file, group_metadata


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
        path = self.path
        rows = read_rows(path, self.spec.values, first, stop, out, direct)
        checksums = f"{self.folder}/{CHECKSUM.chunk_path}"
        stored = int(read_rows(checksums, CHECKSUM, sample, sample + 1)[0])
        found = xxhash.xxh3_64_intdigest(byte_view(rows))
        if found != stored:
            raise FormatError(
                f"{path}: checksum of sample {sample} is {found:016x}, but {stored:016x} was "
                f"written; {REMAKE}"
            )
        return rows


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
