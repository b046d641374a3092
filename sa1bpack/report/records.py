"""Records of the packer and side arrays: what one pack or several hold beside their samples.

The format leaves records to the packer: a missing one is fine, one of another type is damage, and
is found before it is shown. Several packs are summed up as `sa1bpack.open` has them as one dataset.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sa1bpack.dataset.pack import Pack
from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY
from sa1bpack.format.completeness import Completeness
from sa1bpack.format.index import Index
from sa1bpack.format.manifest import MANIFEST_NAME, Count, Manifest
from sa1bpack.format.shard_reader import Shard
from sa1bpack.format.side.binding import coverage, part_names, shard_identities
from sa1bpack.format.side.check import side_folders
from sa1bpack.format.side.part import part_bytes
from sa1bpack.format.side.spec import read_side_manifest
from sa1bpack.wording import brief, printable, size_text

REJECTS_PREFIX = "rejects:"  # of the keys of counts by reason
TOTALS = ("annotations", "dropped_images", "rejects")  # of the counts, those that are shown


class _Source(msgspec.Struct):
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


def check_records(manifest: Manifest, root: Path) -> None:
    """Check the sources and counts of a pack's manifest, as far as they are shown.

    Raises FormatError naming the record and the place of the value in it.
    """
    path = root / MANIFEST_NAME
    for number, source in enumerate(manifest.sources):
        _check(source, _Source, f"{path}: sources[{number}]")
    _check(manifest.counts, _Counts, f"{path}: counts")
    reasons = {key: n for key, n in manifest.counts.items() if key.startswith(REJECTS_PREFIX)}
    _check(reasons, dict[str, Count], f"{path}: counts, rejects by reason")


def check_attributes(shard: Shard) -> None:
    """Check the attributes of a shard that are shown: packed_by and unknown_keys.

    Raises FormatError naming the shard and the attribute.
    """
    _check(shard.attributes, _Attributes, f"{shard.folder}: attributes")


def text_of(value: Any) -> str:
    """A recorded value: strings and numbers as they are, lists and objects shortened."""
    return brief(value) if isinstance(value, (list, dict)) else str(value)


def _check(found: dict[str, Any], schema: Any, where: str) -> None:
    try:
        msgspec.convert(found, schema)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {printable(str(error)[:200])}; {REMEDY}") from None


@dataclass(frozen=True)
class SideInfo:
    """A side array in a pack's own folder.

    name   of its folder
    text   what it holds, how large it is, which function made it, and what is missing; or what is
           wrong with it
    """

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def joined_sides(
    found: Sequence[tuple[Path, Sequence[SideInfo]]],
) -> tuple[SideInfo, ...]:
    """The side arrays of packs, each named with its pack if there are several."""
    if len(found) == 1:
        return tuple(found[0][1])
    return tuple(
        SideInfo(f"{root}: {side.name}", side.text) for root, sides in found for side in sides
    )


def side_infos(root: Path, manifest: Manifest) -> tuple[SideInfo, ...]:
    """The side arrays in PACK/side. Raises FormatError if the pack's own digests are damaged."""
    folders = side_folders(root)
    if not folders:
        return ()
    shards = shard_identities(root, manifest)
    found = []
    for folder in folders:
        try:
            side = read_side_manifest(folder)
            names = part_names(folder)
        except FormatError as error:
            found.append(SideInfo(folder.name, str(error)))
            continue
        there = coverage(names, shards)
        size = sum(part_bytes(side.spec, shard.extent) for shard in shards if shard.part in names)
        parts = [side.spec.to_text(), size_text(size)]
        if (function := side.provenance.get("function")) is not None:
            parts.append(f"by {brief(function)}")
        parts.append(str(there) if there.missing else "complete")
        found.append(SideInfo(folder.name, ", ".join(parts)))
    return tuple(found)


def joined_manifest(pack: Pack) -> Manifest:
    """The manifest of a pack, or of several as one, with the sums of their checked counts.

    A total that one of them lacks is left out.
    """
    if len(pack.folders) == 1:
        return pack.manifest
    counts = [folder.manifest.counts for folder in pack.folders]
    totals = [key for key in TOTALS if all(key in each for each in counts)]
    reasons = {key for each in counts for key in each if key.startswith(REJECTS_PREFIX)}
    sums = {key: sum(each.get(key, 0) for each in counts) for key in (*totals, *sorted(reasons))}
    return msgspec.structs.replace(pack.manifest, counts=sums)


def joined_index(pack: Pack) -> Index:
    """The index of a pack; of several as one, in memory: 24 bytes per sample."""
    if len(pack.folders) == 1:
        return pack.folders[0].index
    rows = range(len(pack))
    return Index(
        shard_offset=np.array(pack.shards.first_row),
        image_id=pack.image_ids(rows),
        id_order=pack.ids.order,
        mask_offset=pack.mask_offsets(rows),
    )


def joined_completeness(found: Sequence[Completeness]) -> Completeness:
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


def name_of(roots: Sequence[Path]) -> str:
    """The folder of a pack, or what several are called."""
    return str(roots[0]) if len(roots) == 1 else f"{len(roots):,} packs, {roots[0]} to {roots[-1]}"
