"""`merge`: one pack from several, without reading a tar or decoding anything.

Shards are put under their names in the new pack by links, clones or copies, each in one step; then
index, manifest and checksums are published as by the packer. What results has the bytes of a pack
of all sources. A merge that is killed is repeated: what is published stays.
"""

import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_NB, LOCK_SH, flock
from pathlib import Path

from sa1bpack import interrupts
from sa1bpack.arguments import check_can_be_folder, checks_options, local_path, paths_of
from sa1bpack.errors import FormatError, OptionError, OutputLocked, OutputRefused
from sa1bpack.format.checksums import CHECKSUMS_NAME, file_digest, read_checksums
from sa1bpack.format.files import flush_folder, make_folder, temporary_beside
from sa1bpack.format.manifest import SHARDS_NAME, refuse_in_pack
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.side.binding import ShardIdentity
from sa1bpack.packing.merge.place_files import (
    CLONED,
    COPIED,
    LINKED,
    can_share,
    data_bytes,
    place_folder,
)
from sa1bpack.packing.merge.plan import (
    Key,
    MergePlan,
    SidePlan,
    Taken,
    create_sides,
    find_parts,
    plan_merge,
    plan_sides,
    working_name,
)
from sa1bpack.packing.pack_state import (
    LOCK_NAME,
    PackState,
    PublishedShard,
    check_shard_record,
    shard_name,
)
from sa1bpack.wording import size_text


@dataclass(frozen=True)
class MergeResult:
    """What a merge did, and what the new pack holds.

    root                    its folder
    images, masks, shards   totals of the pack
    packs                   how many were merged
    before                  shards that an earlier merge had put there
    repeated                shards that several packs have, which are there once
    linked, cloned, copied  files of shards and side arrays that are hard links, clones, and copies
    sides                   name of a side array → shards without a part of it
    complete                whether every pack was complete
    seconds                 wall time

    Examples:
        >>> result = sa1bpack.merge("merged", ["packed"])
        >>> result.images, result.shards, result.complete
        (3, 1, True)
    """

    root: Path
    images: int
    masks: int
    shards: int
    packs: int
    before: int
    repeated: int
    linked: int
    cloned: int
    copied: int
    sides: dict[str, list[str]] = field(default_factory=dict)
    complete: bool = True
    seconds: float = 0.0


@checks_options
def merge(
    out: str | os.PathLike[str],
    packs: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> MergeResult:
    """Make one pack of several that were made with the same options.

    out
        Folder of the new pack: new, empty, or what an earlier merge of these packs, or of some of
        them, left there.
    packs
        Folders of packs, or glob patterns. They stay as they are, and may be removed afterwards.
    progress
        Called as progress(bytes copied, bytes to copy), again and again while files are copied.

    Nothing is decoded and no tar is read. Files are hard links where the file system can do that,
    else clones that share their blocks, else copies. Side arrays in PACK/side come along. The
    result has the same bytes as if all sources had been packed into `out`; interrupted or killed,
    repeat the call.

    Raises OptionError; OptionsDiffer; OutputRefused for packs that do not make one, see
    `plan.plan_merge`, side arrays of one name that differ, and an `out` that holds something else;
    OutputLocked (a packer or a repair works on one of the folders); FormatError for a pack that is
    damaged or not one of this packer, and OSError if the disk fails or is too small.

    Examples:
        >>> sa1bpack.merge("both", ["packed"]).copied
        0
        >>> sa1bpack.verify("both").ok
        True
    """
    started = time.perf_counter()
    root, roots = local_path("out", out), paths_of("packs", packs)
    for pack in roots:
        one, other = root.resolve(), pack.resolve()
        if one.is_relative_to(other) or other.is_relative_to(one):
            raise OptionError(
                f"out is {str(out)!r}: it is, holds or lies in the pack {pack}; choose a folder "
                "elsewhere"
            )
    check_can_be_folder(root, "give a new folder, or that of a pack")
    refuse_in_pack("out", root)
    plan = plan_merge(roots)
    sides = plan_sides(root, plan.roots)
    state = PackState(root, plan.options)
    try:
        missing = _missing(state, plan)
        before = len(state.shards)
        find_parts(sides, root, _identities(plan))
        state.write_first_manifest()
        copied = _Copied(_checked_space(state, plan, missing, sides), progress)
        state.publish(complete=False)
        counts = _place_shards(state, plan, missing, copied)
        counts += _place_sides(root, sides, copied)
        interrupts.check()
        state.sources.update(plan.sources)
        state.publish(complete=plan.complete)
        totals = state.counts()
    finally:
        state.release()
    return MergeResult(
        root,
        totals["images"],
        totals["masks"],
        len(state.shards),
        len(roots),
        before,
        plan.repeated,
        counts[LINKED],
        counts[CLONED],
        counts[COPIED],
        sides.missing,
        plan.complete,
        time.perf_counter() - started,
    )


def _missing(state: PackState, plan: MergePlan) -> dict[Key, Taken]:
    """The shards that are not there yet. Raises OutputRefused if others are."""
    for key, shard in state.shards.items():
        name = shard.entry.name
        digest = file_digest(state.shards_dir / name / CHECKSUMS_NAME)
        if key not in plan.shards or plan.shards[key].digest != digest:
            raise OutputRefused(
                f"{state.root} holds the shard {name}, which the packs to be merged do not have "
                "with these bytes: name all packs that it was merged from, or another folder"
            )
    if others := sorted(state.sources.keys() - plan.sources.keys()):
        raise OutputRefused(
            f"{state.root} holds the source {others[0]}, which the packs to be merged do not have: "
            "name all packs that it was merged from, or another folder"
        )
    return {key: taken for key, taken in plan.shards.items() if key not in state.shards}


def _checked_space(
    state: PackState, plan: MergePlan, missing: dict[Key, Taken], sides: SidePlan
) -> int:
    """How many bytes must be copied. Raises OSError if the disk has no room for them."""
    make_folder(state.shards_dir)
    folders = [
        plan.roots[taken.pack] / SHARDS_NAME / taken.entry.name for taken in missing.values()
    ]
    folders += [part for part, _ in sides.parts]
    needed, shares = 0, {}
    for folder in folders:
        if folder.parent not in shares:
            shares[folder.parent] = can_share(folder, state.shards_dir)
        needed += 0 if shares[folder.parent] else data_bytes(folder)
    if needed > (free := shutil.disk_usage(state.root).free):
        raise OSError(
            errno.ENOSPC,
            f"{size_text(needed)} must be copied, because the file system has no links to these "
            f"packs, but only {size_text(free)} are free",
            str(state.root),
        )
    return needed


class _Copied:
    """Counts the bytes that are copied, and reports them."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None):
        self._total, self._progress, self._done = total, progress, 0

    def __call__(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))


def _place_shards(
    state: PackState, plan: MergePlan, missing: dict[Key, Taken], copied: _Copied
) -> Counter:
    """Publish the missing shards, one pack after another."""
    counts: Counter = Counter()
    parts = Counter(source for source, _ in missing)
    for number, root in enumerate(plan.roots):
        mine = {key: taken for key, taken in missing.items() if taken.pack == number}
        if not mine:
            continue
        with _locked(root):
            for (source, _), taken in mine.items():
                interrupts.check()
                counts += _place_shard(state, root, taken, copied)
                parts[source] -= 1
                if not parts[source] and source in plan.sources:
                    state.finish_source(plan.sources[source])
    return counts


def _place_shard(state: PackState, root: Path, taken: Taken, copied: _Copied) -> Counter:
    folder, name = root / SHARDS_NAME / taken.entry.name, taken.entry.name
    shard = open_shard(folder, state.options.layout)
    check_shard_record(shard.attributes, folder)
    if name != shard_name(taken.entry.source, taken.entry.part) or shard.entry != taken.entry:
        raise FormatError(f"{folder}: not the shard that the manifest lists; `sa1bpack verify`")
    staging = temporary_beside(state.shards_dir / name)
    with _published(folder, staging, state.shards_dir / name, copied) as counts:
        _check_placed(staging, taken.digest, folder)
    state.add_shard(PublishedShard(taken.entry, shard.attributes))
    return counts


@contextmanager
def _published(source: Path, staging: Path, target: Path, copied: _Copied) -> Iterator[Counter]:
    """Place a folder under a working name, and give it its own if the block does not fail."""
    try:
        yield place_folder(source, staging, copied)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    flush_folder(target.parent)


def _check_placed(staging: Path, digest: str, folder: Path) -> None:
    """Raise FormatError unless exactly the files of a shard are there, by its checksum file."""
    checksums = staging / CHECKSUMS_NAME
    found = {
        path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file()
    } - {CHECKSUMS_NAME}
    if file_digest(checksums) != digest or found != read_checksums(checksums).keys():
        raise FormatError(
            f"{folder}: it changed while it was merged, or has other files than its checksums "
            "list; `sa1bpack verify` names them"
        )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold off a packer and a repair of a pack. One that cannot be written has neither."""
    try:
        descriptor = os.open(root / LOCK_NAME, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        yield
        return
    try:
        try:
            flock(descriptor, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            raise OutputLocked(
                f"{root}: another process packs into this folder or repairs it; wait for it"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _identities(plan: MergePlan) -> list[ShardIdentity]:
    return [
        ShardIdentity(taken.entry.name, taken.digest, taken.entry.extent)
        for _, taken in sorted(plan.shards.items())
    ]


def _place_sides(root: Path, plan: SidePlan, copied: _Copied) -> Counter:
    """Publish the missing parts of side arrays."""
    create_sides(root, plan)
    counts: Counter = Counter()
    for source, target in plan.parts:
        interrupts.check()
        with _published(source, working_name(target), target, copied) as placed:
            counts += placed
    return counts
