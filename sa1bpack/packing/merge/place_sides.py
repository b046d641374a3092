"""The side arrays of several packs in one: which of their parts it has, and from where."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sa1bpack.errors import OutputRefused
from sa1bpack.format.files import TEMPORARY_PREFIX, make_folder, temporary_beside
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.format.side.spec import (
    SIDES_NAME,
    create_side,
    first_difference,
    is_side,
    is_unused,
    read_side_manifest,
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
