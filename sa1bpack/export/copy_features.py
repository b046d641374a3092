"""The features of packs, for a copy of selected samples: the rows of these samples.

Rows are bound to the bytes of their shard. Those of a shard that is copied whole are linked, cloned
or copied as by a merge; of another one, the rows of its copied samples are written for the new
shard, after they were compared with their checksums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sa1bpack import interrupts
from sa1bpack.format import file_checksums, removal, working_names
from sa1bpack.format.arrays import group_bytes
from sa1bpack.format.layout import AxisLengths
from sa1bpack.format.manifest import SHARDS_NAME
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.side.manifest import SideManifest, create_side, read_side_manifest
from sa1bpack.format.side.shard import FeatureShard, arrays_in
from sa1bpack.format.side.shards import SIDES_NAME, ShardIdentity
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.format.side.writer import FeatureShardWriter
from sa1bpack.packing.merge import FolderCopier, check_same_feature, find_features
from sa1bpack.paths import exists, is_folder, matching

# Begins the working names of this process's kind, which it removes when one was killed.
_WORKING = "copy-"


@dataclass(frozen=True, eq=False)
class CopiedShard:
    """A shard, and what is copied of it.

    Attributes:
        root: folder of its pack.
        identity: what features know it by.
        rows: int64 (n,), ascending: the rows that are copied.
        lengths: lengths of the new shard along its axes.
    """

    root: Path
    identity: ShardIdentity
    rows: np.ndarray
    lengths: AxisLengths

    @property
    def folder(self) -> Path:
        """Its folder."""
        return self.root / SHARDS_NAME / self.identity.name

    @property
    def whole(self) -> bool:
        """True if all rows are copied."""
        return len(self.rows) == self.identity.lengths.samples

    def copied_to(self, root: Path) -> ShardIdentity:
        """The new shard, which is published in the pack at `root`. Raises OSError."""
        checksums = root / SHARDS_NAME / self.identity.name / file_checksums.CHECKSUMS_NAME
        digest = file_checksums.file_digest(checksums)
        return ShardIdentity(self.identity.name, digest, self.lengths)


@dataclass(frozen=True)
class FeatureCopy:
    """A feature to be copied.

    Attributes:
        name: its name, that of its folder.
        manifest: its rows, and how they were made.
        shards: the shards for which it has rows → folder of the feature that has them.
        without_rows: names of the other shards.
    """

    name: str
    manifest: SideManifest
    shards: Mapping[CopiedShard, Path]
    without_rows: Sequence[str]

    def bytes_of(self, shard: CopiedShard) -> int:
        """The bytes of the chunk files of the rows for a new shard. Raises FormatError, OSError."""
        spec = self.manifest.spec
        if not spec.ragged:
            return group_bytes(spec.arrays(shard.lengths))
        folder = self.shards[shard]
        if shard.whole:
            return group_bytes(arrays_in(folder, spec, shard.identity))
        existing = FeatureShard.open(folder, spec, shard.identity)
        items = 0
        for first, stop in rows_to_copy(spec, shard):
            begin, end = existing.span(first, stop)
            items += end - begin
        return group_bytes(spec.arrays(shard.lengths, items))


def rows_to_copy(spec: SideSpec, shard: CopiedShard) -> Iterator[tuple[int, int]]:
    """The first row of each copied sample in the feature shard, and the one after its last."""
    first_mask = open_shard(shard.folder)["mask_offset"]
    for row in shard.rows.tolist():
        yield spec.row_range(row, int(first_mask[row]), int(first_mask[row + 1]))


def find_feature_copies(
    roots: Sequence[Path], shards: Sequence[CopiedShard], output: Path
) -> list[FeatureCopy]:
    """The features in PACK/side of packs, of which rows can be copied.

    Args:
        roots: folders of the packs.
        shards: the shards of the copy.
        output: folder of the copy, which may have features.

    Raises:
        OutputRefused: two features of one name differ.
        FormatError: a folder there is not a feature, or damaged.
    """
    copies = []
    for name, folders in sorted(find_features(roots).items()):
        target = output / SIDES_NAME / name
        compared = list(folders)
        if exists(target):
            compared.append(target)
        check_same_feature(compared)
        having: dict[CopiedShard, Path] = {}
        without_rows = []
        for shard in shards:
            folder = shard.root / SIDES_NAME / name
            if is_folder(folder / shard.identity.feature_shard):
                having[shard] = folder
            else:
                without_rows.append(shard.identity.name)
        copies.append(FeatureCopy(name, read_side_manifest(folders[0]), having, without_rows))
    return copies


def make_feature_folder(output: Path, feature: FeatureCopy) -> Path:
    """Make the folder of a feature in a copy, unless it is there; returns it.

    For the process that holds the lock of the copy: what a killed one left is removed.
    """
    target = output / SIDES_NAME / feature.name
    create_side(target, feature.manifest, _WORKING)
    for parent in (target.parent, target):
        for leftover in matching(parent, f"{working_names.TEMPORARY_PREFIX}{_WORKING}*"):
            removal.remove_entry(leftover)
    return target


def copy_feature_shard(
    feature: FeatureCopy, shard: CopiedShard, target: Path, new: ShardIdentity, copier: FolderCopier
) -> None:
    """Publish the rows for a new shard, unless they are there.

    Args:
        feature: the feature, which has rows for the shard.
        shard: the shard that was copied.
        target: folder of the feature in the copy.
        new: the new shard.
        copier: links or copies folders.

    Raises:
        FormatError: rows are damaged.
        OSError: the disk fails.
    """
    final = target / new.feature_shard
    if exists(final):
        return
    folder = feature.shards[shard]
    if shard.whole:
        working = working_names.temporary_beside(final.with_name(_WORKING + final.name))
        copier.publish(folder / shard.identity.feature_shard, working, final)
        return
    spec = feature.manifest.spec
    existing = FeatureShard.open(folder, spec, shard.identity)
    with FeatureShardWriter(target, spec, new) as writer:
        for row, (first, stop) in zip(shard.rows.tolist(), rows_to_copy(spec, shard), strict=True):
            interrupts.check()
            writer.append(existing.read(row, first, stop), np.array([stop - first]))
        writer.publish()
