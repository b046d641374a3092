"""The side arrays of a pack in words: what they hold, and whether they are complete."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.errors import FormatError
from sa1bpack.format import Manifest
from sa1bpack.format.side.binding import coverage, part_names, shard_identities
from sa1bpack.format.side.check import side_folders
from sa1bpack.format.side.part import part_bytes
from sa1bpack.format.side.spec import read_side_manifest
from sa1bpack.wording import brief, size_text


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
