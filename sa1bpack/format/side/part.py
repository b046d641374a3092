"""The parts of a feature: which shard each belongs to, and its rows.

A part has the digest of its shard's checksum file, hence of all its bytes, in its name and in its
attributes. So a part fits a shard with the same bytes in any pack, and no other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.arrays import METADATA_NAME, check_group, chunk_file, group_metadata, map_array
from sa1bpack.format.files import CHECKSUMS_NAME, byte_view
from sa1bpack.format.index import shard_digests
from sa1bpack.format.layout import Extent
from sa1bpack.format.manifest import MANIFEST_NAME, Manifest
from sa1bpack.format.shard_reader import read_rows
from sa1bpack.format.side.spec import AGAIN, CHECKSUM, REMAKE, SIDE_FORMAT_VERSION, SideSpec
from sa1bpack.wording import counted

_DIGITS = 8


@dataclass(frozen=True)
class ShardIdentity:
    """A shard of a pack, as a feature sees it.

    name    of the shard
    digest  XXH3-128 of its checksum file, 32 hexadecimal digits
    extent  its numbers of samples and masks
    """

    name: str
    digest: str
    extent: Extent

    @property
    def part(self) -> str:
        """Name of the folder of its part: the shard's name, and 8 digits of the digest."""
        return f"{self.name}-{self.digest[:_DIGITS]}"


def shard_identities(root: Path, manifest: Manifest) -> list[ShardIdentity]:
    """The shards of a pack, in the order of its manifest.

    Raises FormatError if a checksum file of a shard is missing, OSError if it cannot be read.
    """
    digests = shard_digests(Path(root), manifest)
    return [
        ShardIdentity(shard.name, digest, shard.extent)
        for shard, digest in zip(manifest.shards, digests, strict=True)
    ]


@dataclass(frozen=True)
class Coverage:
    """Which of a pack's shards a feature has.

    missing  shards without a part
    stale    of these, the shards of which it has a part for other bytes: they were packed again,
             or repaired to other bytes
    others   parts for shards that are not among those asked for, or are no longer like that
    """

    missing: tuple[str, ...]
    stale: tuple[str, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        never = len(self.missing) - len(self.stale)
        words = [f"{never:,} without a part"] * (never > 0)
        words += [f"{len(self.stale):,} stale"] * bool(self.stale)
        missing = f"{counted(len(self.missing), 'shard')} missing ({', '.join(words)})"
        return f"{missing}: {self.missing[0]}{' and others' if len(self.missing) > 1 else ''}"


def part_names(folder: Path) -> list[str]:
    """Names of the published parts of a feature, sorted. Raises OSError."""
    own = {MANIFEST_NAME, METADATA_NAME, CHECKSUMS_NAME}
    return sorted(
        path.name
        for path in Path(folder).iterdir()
        if path.name not in own and not path.name.startswith(".")
    )


def coverage(names: Iterable[str], shards: Iterable[ShardIdentity]) -> Coverage:
    """Which of these shards have a part among these names of folders.

    A shard without samples needs none.
    """
    present = set(names)
    shards = list(shards)
    bound = {name[: -_DIGITS - 1] for name in present}
    missing = tuple(
        shard.name for shard in shards if shard.extent.samples and shard.part not in present
    )
    return Coverage(
        missing,
        tuple(name for name in missing if name in bound),
        tuple(sorted(present - {shard.part for shard in shards})),
    )


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

    folder  of the feature
    deep    check also the metadata of each array, on which no memory map depends

    Raises FormatError naming the file, what was found and what is expected; OSError.
    """
    part = Path(folder) / shard.part
    if not part.is_dir():
        raise FormatError(f"{folder}: no part for shard {shard.name} ({shard.part}); {AGAIN}")
    try:
        check_group(part, part_metadata(spec, shard), spec.arrays(shard.extent), deep)
    except FormatError as error:
        raise FormatError(f"{str(error).partition('; restore')[0]}; {REMAKE}") from None
    values = map_array(part, spec.values, spec.values.rows(shard.extent))
    return SidePart(part, spec, values, shard.extent.samples)


def part_bytes(spec: SideSpec, extent: Extent) -> int:
    """Total bytes of the chunk files of a part."""
    return sum(chunk_file(array, rows).file_bytes for array, rows in spec.arrays(extent).items())
