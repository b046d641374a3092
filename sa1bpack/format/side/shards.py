"""Which shard each feature shard is for, and how much of a pack a feature covers.

A feature shard has the digest of its shard's checksum file, hence of all bytes of the shard, in its
name and in its attributes. So it fits a shard with the same bytes in any pack, and no other.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sa1bpack.format import working_names
from sa1bpack.format.index import shard_digests
from sa1bpack.format.layout import AxisLengths
from sa1bpack.format.manifest import Manifest
from sa1bpack.format.side.manifest import TOP_FILES
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.paths import is_folder
from sa1bpack.wording import counted

# The folder of a pack in which its own features are.
SIDES_NAME = "side"
# Name of a shard, and the beginning of its digest.
_FEATURE_SHARD_NAME = re.compile(r"[^.].*-[0-9a-f]{8}")
_DIGITS = 8


@dataclass(frozen=True)
class ShardIdentity:
    """A shard of a pack, as a feature sees it.

    Attributes:
        name: name of the shard.
        digest: XXH3-128 of its checksum file, 32 hexadecimal digits.
        lengths: numbers of samples and masks.
    """

    name: str
    digest: str
    lengths: AxisLengths

    @property
    def feature_shard(self) -> str:
        """Name of the folder of its feature shard: its own name, and 8 digits of the digest."""
        return f"{self.name}-{self.digest[:_DIGITS]}"


def shard_identities(root: Path, manifest: Manifest) -> list[ShardIdentity]:
    """The shards of a pack, in the order of its manifest.

    Raises FormatError if a checksum file of a shard is missing, OSError if it cannot be read.
    """
    digests = shard_digests(root, manifest)
    return [
        ShardIdentity(shard.name, digest, shard.lengths)
        for shard, digest in zip(manifest.shards, digests, strict=True)
    ]


@dataclass(frozen=True)
class Coverage:
    """The coverage of a pack's shards by a feature.

    Attributes:
        missing: shards without a feature shard.
        stale: those of the missing shards for which there is a feature shard for other bytes: they
            were packed again, or repaired to other bytes.
        others: feature shards for shards that are not among those asked for, or have other bytes by
            now.
    """

    missing: tuple[str, ...]
    stale: tuple[str, ...]
    others: tuple[str, ...]

    def __str__(self) -> str:
        stale = f" ({len(self.stale):,} stale)" if self.stale else ""
        others = " and others" if len(self.missing) > 1 else ""
        return f"{counted(len(self.missing), 'shard')} missing{stale}: {self.missing[0]}{others}"


def side_folders(root: Path) -> list[Path]:
    """The features in a pack's own folder, sorted by name."""
    folder = root / SIDES_NAME
    if not is_folder(folder):
        return []
    return sorted(path for path in folder.iterdir() if not working_names.is_passed_over(path.name))


def feature_shard_names(folder: Path) -> list[str]:
    """Names of the published feature shards of a feature, sorted. Raises OSError."""
    return sorted(path.name for path in Path(folder).iterdir() if _is_feature_shard(path))


def strays_of(folder: Path) -> list[Path]:
    """What is in the folder of a feature and means nothing there, sorted. Raises OSError."""
    strays = []
    for path in sorted(Path(folder).iterdir()):
        meant = path.name in TOP_FILES or _is_feature_shard(path)
        if not (meant or working_names.is_passed_over(path.name)):
            strays.append(path)
    return strays


def _is_feature_shard(path: Path) -> bool:
    # In a cache, it is a link to a folder that may not have been fetched yet.
    if _FEATURE_SHARD_NAME.fullmatch(path.name) is None:
        return False
    return path.is_symlink() or is_folder(path)


def coverage(names: Iterable[str], shards: Iterable[ShardIdentity]) -> Coverage:
    """The coverage of these shards by the feature shards among these names of folders.

    A shard without samples needs none.
    """
    existing = set(names)
    shards = list(shards)
    bound = {name[: -_DIGITS - 1] for name in existing}
    missing = tuple(s.name for s in shards if s.lengths.samples and s.feature_shard not in existing)
    return Coverage(
        missing,
        tuple(name for name in missing if name in bound),
        tuple(sorted(existing - {shard.feature_shard for shard in shards})),
    )


def feature_shard_attributes(
    spec: SideSpec, shard: ShardIdentity, items: int = 0
) -> dict[str, Any]:
    """The attributes of the feature shard for a shard.

    Args:
        items: the items of all ragged rows together.
    """
    attributes = {
        "format": list(spec.version),
        "side": spec.name,
        "shard": shard.name,
        "digest": shard.digest,
        "samples": shard.lengths.samples,
        "masks": shard.lengths.masks,
    }
    if spec.ragged:
        attributes["items"] = items
    return attributes
