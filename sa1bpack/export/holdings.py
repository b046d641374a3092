"""What one pack or several hold, by their records, which are checked before they are shown.

The format leaves records to the packer: a missing one is fine, one of another type is damage.
Several packs are summed up as `sa1bpack.open` has them as one dataset.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.pack_folder import check_same_layout, open_folders
from sa1bpack.errors import FormatError
from sa1bpack.format.duplicates import Duplicates, find_duplicates
from sa1bpack.format.files import REMEDY
from sa1bpack.format.index import Index, open_manifest_and_index
from sa1bpack.format.manifest import MANIFEST_NAME, Completeness, Count, Manifest, completeness_of
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.side.check import side_folders
from sa1bpack.format.side.spec import (
    coverage,
    part_bytes,
    part_names,
    read_side_manifest,
    shard_identities,
)
from sa1bpack.masks.select import left_out_text
from sa1bpack.wording import brief, printable, size_text

_REASON = "rejects:"  # begins the keys of counts by reason


class Source(msgspec.Struct):
    """The record of a source, as far as it is shown."""

    name: str = ""
    kind: str = ""
    pairs: Count = 0
    nbytes: Count = 0
    xxh128: str | None = None
    md5: str | None = None
    md5_checked: bool = False


class _Counts(msgspec.Struct):
    annotations: Count = 0
    dropped_images: Count = 0
    rejects: Count = 0


class _Attributes(msgspec.Struct):
    packed_by: dict[str, str] = {}
    unknown_keys: list[str] = []


def text_of(value: Any) -> str:
    """A recorded value: strings and numbers as they are, lists and objects shortened."""
    return brief(value) if isinstance(value, (list, dict)) else str(value)


def _checked(found: Any, schema: Any, where: str) -> Any:
    """A record as a type. Raises FormatError naming it and the place of the value in it."""
    try:
        return msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}; {REMEDY}") from None


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What a pack holds, or several as one, by manifests and indexes.

    roots
        Its folder, or those of several packs that are summarized as one.
    manifest
        Its manifest; of several packs, one that lists the shards of all, with the sums of their
        counts.
    sources
        Its records of them.
    mask_counts
        (N,) int64, number of masks of each sample.
    completeness
        How much of the pack is published.
    duplicates
        Sources and image ids that the pack holds more than once.
    features
        The features in PACK/side: name → what it holds, how large it is, which function made
        it, and what is missing; or what is wrong with it.
    """

    roots: tuple[Path, ...]
    manifest: Manifest
    sources: tuple[Source, ...]
    mask_counts: np.ndarray
    completeness: Completeness
    duplicates: Duplicates
    features: dict[str, str]

    @property
    def annotations(self) -> int:
        """Masks in the records of the images, before filtering and capping."""
        return sum(entry.annotations for entry in self.manifest.shards)

    @property
    def left_out(self) -> str:
        """The masks that a pack does not hold, with the options that left them out, or nothing."""
        counts = {**self.manifest.counts, "annotations": self.annotations}
        return left_out_text(self.manifest.options, counts, self.manifest.masks)

    @property
    def reasons(self) -> dict[str, int]:
        """Reason → members that were rejected for it."""
        counts = sorted(self.manifest.counts.items())
        return {key.removeprefix(_REASON): n for key, n in counts if key.startswith(_REASON)}


def read_holdings(roots: Sequence[Path], pack: Pack | None = None) -> Holdings:
    """Read what packs hold, from their folders, or as an open Pack of these folders has it.

    Raises FormatError if one is not a pack, or what is read here is damaged; OptionError for packs
    of different layouts.
    """
    if pack is None and len(roots) > 1:
        folders = open_folders(roots)
        check_same_layout(folders)
        pack = Pack(folders)
    if pack is None:
        manifest, index = open_manifest_and_index(roots[0])
        packs = {roots[0]: manifest}
    else:
        packs = {folder.root: folder.manifest for folder in pack.folders}
        manifest, index = pack.manifest, _joined_index(pack)
    counts: Counter[str] = Counter()
    features: dict[str, str] = {}
    for root, own in packs.items():
        path = root / MANIFEST_NAME
        for number, source in enumerate(own.sources):
            _checked(source, Source, f"{path}: sources[{number}]")
        _checked(own.counts, _Counts, f"{path}: counts")
        reasons = {key: n for key, n in own.counts.items() if key.startswith(_REASON)}
        _checked(reasons, dict[str, Count], f"{path}: counts, rejects by reason")
        counts.update(
            reasons
            | {key: own.counts[key] for key in {*_Counts.__struct_fields__} & own.counts.keys()}
        )
        for name, text in _features(root, own):
            features[name if len(packs) == 1 else f"{root}: {name}"] = text
    if len(packs) > 1:
        manifest = msgspec.structs.replace(manifest, counts=dict(sorted(counts.items())))
    return Holdings(
        roots=tuple(roots),
        manifest=manifest,
        sources=msgspec.convert(manifest.sources, tuple[Source, ...]),
        mask_counts=np.zeros(0, np.int64) if index is None else np.diff(index.mask_offset),
        completeness=_joined_completeness([completeness_of(*each) for each in packs.items()]),
        duplicates=find_duplicates(manifest, index),
        features=features,
    )


def _features(root: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Name and text of the features in PACK/side. Raises FormatError for damaged digests."""
    folders = side_folders(root)
    shards = shard_identities(root, manifest) if folders else ()
    for folder in folders:
        try:
            side = read_side_manifest(folder)
            names = part_names(folder)
        except FormatError as error:
            yield folder.name, str(error)
            continue
        there = coverage(names, shards)
        size = sum(part_bytes(side.spec, shard.extent) for shard in shards if shard.part in names)
        parts = [side.spec.to_text(), size_text(size)]
        if (function := side.provenance.get("function")) is not None:
            parts.append(f"by {brief(function)}")
        parts.append(str(there) if there.missing else "complete")
        yield folder.name, ", ".join(parts)


def _joined_index(pack: Pack) -> Index:
    """The index of a pack; of several as one, in memory: 24 bytes per sample."""
    if len(pack.folders) == 1:
        return pack.folders[0].index
    rows = range(pack.manifest.samples)
    return Index(
        shard_offset=np.array(pack.first_row),
        image_id=pack.image_ids(rows),
        id_order=pack.ids.order,
        mask_offset=pack.mask_offsets(rows),
    )


def _joined_completeness(found: Sequence[Completeness]) -> Completeness:
    """The completeness of several packs together."""
    return Completeness(
        complete=all(each.complete for each in found),
        images=sum(each.images for each in found),
        shards=sum(each.shards for each in found),
        sources=sum(each.sources for each in found),
        partial=tuple(name for each in found for name in each.partial),
        unindexed=tuple(name for each in found for name in each.unindexed),
        remedy="; ".join(dict.fromkeys(each.remedy for each in found if not each.complete)),
    )


def attributes_of(shard: Shard) -> _Attributes:
    """What a shard records of its making. Raises FormatError for what no packer wrote."""
    return _checked(shard.attributes, _Attributes, f"{shard.folder}: attributes")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What shards take on the disk, and what they record of their making; those of several add up.

    bytes
        Size of their chunk files, including holes; `disk_bytes` is their size on disk.
    files, folders
        Number of each.
    packed_by
        The versions that packed them, one entry per combination.
    unknown_keys
        Keys of the JSON records that a pack does not store.
    """

    bytes: int = 0
    disk_bytes: int = 0
    files: int = 0
    folders: int = 0
    packed_by: list[dict[str, str]] = field(default_factory=list)
    unknown_keys: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, shard: Shard) -> "Stored":
        """Those of a shard. Raises FormatError for attributes that no packer wrote, OSError."""
        attributes = attributes_of(shard)
        paths = [*shard.folder.rglob("*")]
        sizes = [path.stat().st_blocks * 512 for path in paths if path.is_file()]
        return cls(
            bytes=shard.entry.bytes,
            disk_bytes=sum(sizes),
            files=len(sizes),
            folders=len(paths) - len(sizes),
            packed_by=[attributes.packed_by] if attributes.packed_by else [],
            unknown_keys=attributes.unknown_keys,
        )

    def __add__(self, other: "Stored") -> "Stored":
        made = {tuple(sorted(each.items())) for each in (*self.packed_by, *other.packed_by)}
        return Stored(
            bytes=self.bytes + other.bytes,
            disk_bytes=self.disk_bytes + other.disk_bytes,
            files=self.files + other.files,
            folders=self.folders + other.folders,
            packed_by=[dict(each) for each in sorted(made)],
            unknown_keys=sorted({*self.unknown_keys, *other.unknown_keys}),
        )


def name_of(roots: Sequence[Path]) -> str:
    """The folder of a pack, or what several are called."""
    return str(roots[0]) if len(roots) == 1 else f"{len(roots):,} packs, {roots[0]} to {roots[-1]}"
