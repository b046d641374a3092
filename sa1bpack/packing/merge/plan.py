"""What a merge takes from each pack, checked before anything is written."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.errors import FormatError, OptionsDiffer, OutputRefused
from sa1bpack.format.duplicates import shared_ids
from sa1bpack.format.files import TEMPORARY_PREFIX, make_folder, temporary_beside
from sa1bpack.format.index import open_index
from sa1bpack.format.manifest import (
    DIGEST_NAMES,
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    read_manifest,
)
from sa1bpack.format.shard_digests import shard_digests
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.spec import (
    SIDES_NAME,
    create_side,
    first_difference,
    is_side,
    is_unused,
    read_side_manifest,
)
from sa1bpack.packing.options import PackOptions, worded
from sa1bpack.packing.pack_state import check_can_write, check_source_record
from sa1bpack.wording import brief, counted

Key = tuple[str, int]  # source and part


@dataclass(frozen=True)
class Taken:
    """A shard of one of the packs: the pack's number, its entry, and its digest."""

    pack: int
    entry: ShardEntry
    digest: str


@dataclass
class MergePlan:
    """What the packs hold together.

    roots     folders of the packs
    options   of all packs
    shards    (source, part) → where it is taken from
    sources   name → record, of the sources that are packed to their end
    repeated  shards that several packs have, with the same bytes
    complete  whether every pack is
    """

    roots: list[Path]
    options: PackOptions
    shards: dict[Key, Taken] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    repeated: int = 0
    complete: bool = True


def plan_merge(roots: Sequence[Path]) -> MergePlan:
    """Read the packs, and check that they make one.

    Raises OptionsDiffer, naming the differences, if they were not made with the same options;
    OutputRefused if two packs have different shards or sources of one name, or an image id in
    common;
    FormatError or VersionError for a pack that is damaged or newer.
    """
    manifests = [read_manifest(root) for root in roots]
    for root, manifest in zip(roots, manifests, strict=True):
        check_can_write(manifest.version, root / MANIFEST_NAME)
        _check_same_options(roots[0], manifests[0], root, manifest)
    plan = MergePlan(list(roots), PackOptions(**manifests[0].options))
    if any(manifest.layout != plan.options.layout for manifest in manifests):
        raise FormatError(
            f"{roots[0]}: its layout is not that of its options; run `sa1bpack verify`"
        )
    for number, manifest in enumerate(manifests):
        _take_shards(plan, number, manifest)
        _take_sources(plan, number, manifest)
        plan.complete &= manifest.complete
    _check_ids(plan, manifests)
    return plan


def _check_same_options(first: Path, one: Manifest, root: Path, two: Manifest) -> None:
    own, other = one.options, two.options
    lines = [
        f"  {brief(key)[1:-1]}: {worded(key, own)} in {first}, {worded(key, other)} in {root}"
        for key in sorted(own.keys() | other.keys())
        if own.get(key) != other.get(key)
    ]
    if lines:
        raise OptionsDiffer(
            "packs made with other options cannot be merged:\n"
            + "\n".join(lines[:20])
            + (
                "\nsa1bpack.open([...]) opens them together: their layout is the same."
                if one.layout == two.layout
                and own.get("mask_sampling") == other.get("mask_sampling")
                else "\nPack one of them again: nor can sa1bpack.open([...]) read these together."
            )
        )


def _take_shards(plan: MergePlan, number: int, manifest: Manifest) -> None:
    digests = shard_digests(plan.roots[number], manifest)
    for entry, digest in zip(manifest.shards, digests, strict=True):
        found = plan.shards.setdefault(
            (entry.source, entry.part), mine := Taken(number, entry, digest)
        )
        if found is mine:
            continue
        if found.digest != digest:
            raise OutputRefused(
                f"{plan.roots[found.pack]} and {plan.roots[number]} have different shards "
                f"{entry.name}: two sources of one name, or one was packed again; leave one out"
            )
        plan.repeated += 1


def _take_sources(plan: MergePlan, number: int, manifest: Manifest) -> None:
    where = plan.roots[number] / MANIFEST_NAME
    for record in manifest.sources:
        check_source_record(record, where)
        found = plan.sources.setdefault(record["name"], record)
        for key in ("kind", "nbytes", "pairs", *DIGEST_NAMES):
            one, other = found.get(key), record.get(key)
            if one != other and not (key in DIGEST_NAMES and None in (one, other)):
                raise OutputRefused(
                    f"{where}: the source {record['name']} is another file than that of an earlier "
                    f"pack: {key} is {brief(other)}, not {brief(one)}; leave one of the packs out"
                )


def _check_ids(plan: MergePlan, manifests: list[Manifest]) -> None:
    """Raise OutputRefused if an image id is in shards that are taken from different packs."""
    ids = []
    for number, (root, manifest) in enumerate(zip(plan.roots, manifests, strict=True)):
        mine = [np.empty(0, np.int64)]
        if manifest.shards:
            index = open_index(root, manifest)
            edges = index.shard_offset.tolist()
            mine += [
                index.image_id[edges[k] : edges[k + 1]]
                for k, entry in enumerate(manifest.shards)
                if plan.shards[entry.source, entry.part].pack == number
            ]
        ids.append(np.concatenate(mine))
    if (found := shared_ids(ids)) is not None:
        raise OutputRefused(
            f"{counted(found.count, 'image id')} in more than one pack, such as {found.example} in "
            f"{plan.roots[found.first]} and {plan.roots[found.second]}: shards are merged as they "
            "are; open the packs with sa1bpack.open([...], duplicates='first')"
        )


_WORKING = "merge-"


@dataclass
class SidePlan:
    """What a merge does about side arrays.

    folders  name → those of the packs
    parts    (part of a pack, where it goes), of the parts that are not there yet
    missing  name → shards with samples, but without a part in any of the packs
    """

    folders: dict[str, list[Path]] = field(default_factory=dict)
    parts: list[tuple[Path, Path]] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)


def plan_sides(root: Path, packs: Sequence[Path]) -> SidePlan:
    """Find the side arrays in PACK/side of all packs; the parts are found by `find_parts`.

    root  the merged pack, which may have some of an earlier merge

    Raises OutputRefused if two arrays of one name differ in what they hold or how they were made;
    NotAPack, FormatError and OSError as `read_side_manifest` does.
    """
    plan = SidePlan()
    for pack in packs:
        for folder in sorted((pack / SIDES_NAME).glob("[!.]*")):
            if not (is_side(folder) and is_unused(folder)):  # what a failed call left
                plan.folders.setdefault(folder.name, []).append(folder)
    for name, folders in plan.folders.items():
        out = root / SIDES_NAME / name
        _check_alike([*folders, out] if out.exists() else folders)
    return plan


def find_parts(plan: SidePlan, root: Path, shards: Sequence[ShardIdentity]) -> None:
    """Find the parts for the shards of the merged pack.

    A part is bound to the bytes of its shard, so it fits them under the same name in any pack.
    """
    for name, folders in plan.folders.items():
        out, plan.missing[name] = root / SIDES_NAME / name, []
        for shard in shards:
            if (out / shard.part).is_dir():
                continue
            found = [folder / shard.part for folder in folders if (folder / shard.part).is_dir()]
            if found:
                plan.parts.append((found[0], out / shard.part))
            elif shard.extent.samples:
                plan.missing[name].append(shard.name)


def _check_alike(folders: Sequence[Path]) -> None:
    first = read_side_manifest(folders[0])
    for folder in folders[1:]:
        if (difference := first_difference(first, read_side_manifest(folder))) is not None:
            raise OutputRefused(
                f"{folders[0]} and {folder} are different side arrays, {difference}: make one of "
                "them again like the other, or move its folder out of the pack (it can still be "
                "read by its path), and merge again"
            )


def create_sides(root: Path, plan: SidePlan) -> None:
    """Make the folders of the side arrays, with their manifests, where they are not there yet.

    Only for the process that holds the pack's lock: what a killed merge left is removed.
    """
    for name, folders in plan.folders.items():
        out = root / SIDES_NAME / name
        make_folder(out.parent)
        for folder in folders:
            create_side(out, read_side_manifest(folder), _WORKING)
        for place in (out.parent, out):
            for left in place.glob(f"{TEMPORARY_PREFIX}{_WORKING}*"):
                shutil.rmtree(left)


def working_name(part: Path) -> Path:
    """A fresh name beside a part, which tells it from those at which `derive` is working."""
    return temporary_beside(part.with_name(_WORKING + part.name))
