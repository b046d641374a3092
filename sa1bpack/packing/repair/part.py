"""A part of a repair: the shards of some sources, beside other parts in the same folder.

It replaces a damaged shard only by one with the digest that the pack demands, which changes nothing
else in the pack, however often and by however many processes it is done.
"""

import os
from pathlib import Path
from shlex import quote

from sa1bpack import interrupts
from sa1bpack.arguments import Share
from sa1bpack.errors import FormatError
from sa1bpack.format import open_shard
from sa1bpack.format.files import put_in_place, restore_set_aside
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME
from sa1bpack.packing.pack_state import lock_folder
from sa1bpack.packing.parts.part_folder import PartFolder, alone
from sa1bpack.packing.records import check_shard_record
from sa1bpack.packing.repair.damage import Damage, find_damage
from sa1bpack.packing.repair.rebuild import RebuiltShards
from sa1bpack.packing.repair.result import OWN_FILES, RepairResult
from sa1bpack.packing.repair.unfinished import Unfinished, read_note
from sa1bpack.packing.repair.wanted import Wanted
from sa1bpack.packing.shard_builder import PublishedShard
from sa1bpack.progress import byte_bar
from sa1bpack.source.find import Source


def repair_part(
    root: Path,
    sources: list[Source],
    share: Share,
    quick: bool,
    workers: int,
    dry_run: bool,
    show_progress: bool | None,
) -> RepairResult:
    """Repair the shards of every N-th source; see `repair`.

    Raises FormatError if the manifest is lost, or another repair did not finish rewriting it:
    no part can repair that.
    """
    lock = None if dry_run else lock_folder(root, shared=True)
    work = None
    try:
        _refuse_unfinished(root)
        if lock is not None:
            work = PartFolder(root)
            with alone(root):
                restore_set_aside(root / SHARDS_NAME)
        with byte_bar(show_progress) as advance:
            damage = find_damage(root, progress=advance, quick=quick, share=share)
        if damage.lost:
            raise FormatError(f"{damage.problems[0].what}; {_first(root)}")
        wanted = Wanted.of(damage, sources)
        result = RepairResult(
            root, damage.problems, extra=damage.extra, left=wanted.left,
            complete=damage.manifest.complete, dry_run=dry_run,
        )  # fmt: skip
        if damage.own_files:
            result.left[OWN_FILES] = (
                "no part rewrites them; once all parts have ended: sa1bpack repair "
                f"{quote(str(root))} TARS --quick"
            )
        if work is None:
            result.repaired = [name for parts in wanted.parts.values() for name in parts.values()]
        elif wanted.parts:
            _rebuild(result, damage, wanted, work, workers, show_progress)
        return result
    finally:
        if work is not None:
            work.close()
        if lock is not None:
            os.close(lock)


def _refuse_unfinished(root: Path) -> None:
    if read_note(root) != Unfinished():
        raise FormatError(
            f"{root / MANIFEST_NAME}: an earlier repair did not finish rewriting it; {_first(root)}"
        )


def _first(root: Path) -> str:
    return f"no part can: first sa1bpack repair {quote(str(root))} TARS --quick"


def _rebuild(
    result: RepairResult,
    damage: Damage,
    wanted: Wanted,
    work: PartFolder,
    workers: int,
    show_progress: bool | None,
) -> None:
    """Rebuild what is wanted, and put in place what has the bytes that the pack demands."""
    root = result.root

    def sound_parts(source: str) -> dict[int, PublishedShard]:
        found = {}
        for entry in damage.manifest.shards:
            if entry.source == source and entry.name not in damage.shards:
                shard = open_shard(root / SHARDS_NAME / entry.name, damage.options.layout)
                check_shard_record(shard.attributes, shard.folder)
                found[entry.part] = PublishedShard(shard.entry, shard.attributes)
        return found

    rebuilt = RebuiltShards(root, damage.options, sound_parts, work.folder)
    made, notes = wanted.rebuild(damage, rebuilt, workers, show_progress)
    result.notes += notes
    interrupts.check()
    for replaced in made:
        name = replaced.shard.entry.name
        if not replaced.same:
            result.left[name] = (
                f"{replaced.note or 'the digest that it must have is unknown'}; the pack's own "
                f"files change with it; once all parts have ended: sa1bpack repair "
                f"{quote(str(root))} TARS --shard {name}"
            )
            continue
        with alone(root):
            put_in_place(replaced.folder, root / SHARDS_NAME / name)
        result.repaired.append(name)
