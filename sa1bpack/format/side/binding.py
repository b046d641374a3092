"""Which part of a side array belongs to which shard of a pack.

A part has the digest of its shard's checksum file, hence of all its bytes, in its name and in its
attributes. So a part fits a shard with the same bytes in any pack, and no other.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.format.checksums import CHECKSUMS_NAME
from sa1bpack.format.index import shard_digests
from sa1bpack.format.layout import Extent
from sa1bpack.format.manifest import MANIFEST_NAME, Manifest
from sa1bpack.format.zarr_metadata import METADATA_NAME
from sa1bpack.wording import counted

_DIGITS = 8


@dataclass(frozen=True)
class ShardIdentity:
    """A shard of a pack, as a side array sees it.

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
    """Which of a pack's shards a side array has.

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
    """Names of the published parts of a side array, sorted. Raises OSError."""
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
