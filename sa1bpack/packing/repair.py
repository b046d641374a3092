"""`repair`: replaces what is damaged in a pack, and nothing else.

Damaged shards are rebuilt from the tars in a working folder, by the same path and options that
packed them, and compared with all that is known of the old ones; the pack's own files are rewritten
from the shards. Sound shards are neither decoded again nor touched. At any moment the pack opens as
it did before: whatever is replaced changes in one step.
"""

import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from sa1bpack.arguments import ALL, Share, items_of, part_of_job, whole_number
from sa1bpack.environment import available_cpus
from sa1bpack.errors import FormatError, OptionError
from sa1bpack.format.index import remove_stale
from sa1bpack.format.manifest import MANIFEST_NAME, SHARDS_NAME, without_manifest
from sa1bpack.format.replacing import restore_set_aside
from sa1bpack.keywords import checks_options
from sa1bpack.packing.apply_repair import Repair, RepairCall, RepairResult
from sa1bpack.packing.damage import Unfinished, intention_path
from sa1bpack.packing.pack_folder import (
    alone_among_parts,
    check_locks,
    locked_folder,
    remove_unused_parts_folder,
)
from sa1bpack.packing.repair_plan import whole_repair
from sa1bpack.paths import exists, is_folder, listed, local_path, patterns_of
from sa1bpack.progress import ProgressOption, report
from sa1bpack.source.find import find_sources, read_links

_NOT_AT_URLS = (
    "a repair exchanges folders of shards, each in one step, which a bucket cannot: copy the pack "
    "to a disk (aws s3 sync URL DIR), sa1bpack repair DIR TARS, and copy back what was rebuilt"
)


@checks_options
def repair(
    pack: str | Path,
    sources: str | Path | Iterable[str | Path] | None = (),
    *,
    shards: str | Iterable[str] | None = None,
    quick: bool = False,
    part: tuple[int, int] | None = None,
    links: str | Path | None = None,
    annotations: str | Path | None = None,
    workers: int | None = None,
    dry_run: bool = False,
    progress: ProgressOption = None,
) -> RepairResult:
    """Check a pack, and rebuild what is damaged or missing.

    A source must be the file that the pack was made from: its size, its XXH3-128 (its md5 if the
    pack records no other) and its pairs are compared, and nothing is taken from another one. What
    cannot be repaired is in the result's `left`, and stays as it was. If it fails or is killed at
    any moment, the pack opens as it did before, and the same call resumes the repair.

    If manifest.json is lost, the options come from the shards; the records of sources are restored
    by reading them again, and sources that are given but not in the pack are added.

    Args:
        pack: folder of the pack.
        sources: the tars and folders that it was packed from; paths, glob patterns or URLs. Those
            without damage are not read, so all may be given. Without any, only the pack's own files
            are repaired.
        shards: names of the shards to read in full, if a check has already named the damaged ones;
            the others get a quick check, all of them if it is empty. Default, None: all are read.
        quick: check all shards but `shards` quickly, as in `verify`.
        part: (K, N): check and rebuild the shards of every N-th source by name only, from the K-th
            on. Parts may run at the same time, on several machines, again, and beside others of the
            same shards; `pack`, `finalize`, `merge` and a repair without a part are kept off
            meanwhile. A part puts a shard in place if it has the bytes that were packed. What
            concerns the whole pack is in `left`, with the call that repairs it: its own files,
            which the first part checks, and shards that now come out with other bytes.
        links: a list of tars at URLs, as for `pack`, in addition to `sources`.
        annotations: where the records of the images are, as for `pack`.
        workers: worker processes; 1 does all the work in this process. Default: the available
            processors.
        dry_run: check, and report what would be done; write nothing.
        progress: show bars on stderr; or a function that is called as function(bytes done, bytes in
            all), first of the check, then of the sources that are packed again. Default: bars if
            stderr is a terminal.

    Raises:
        OptionError: a value that cannot be used.
        SourceError: no source was found under a name.
        OutputLocked: another process packs into the folder.
        NotAPack: the folder is not a pack.
        FormatError: the manifest is lost, and no shard records the options; or it is lost, and
            there is a `part`; or a folder with other files is in the place of a file of the pack.
        VersionError: the pack has another version, or a newer minor one, whose additions would be
            lost.
        PackError: a worker cannot start.
        MissingPackage: a shard must be rebuilt, and PIL is not installed.
        OSError: the disk fails, or one of the pack's own files may not be read.

    Examples:
        >>> sa1bpack.repair("packed", "tests/samples/sa_000000.tar", workers=1, progress=False).ok
        True
    """
    started = time.perf_counter()
    share = None
    if part is not None:
        share = part_of_job(part)
    full = listed(items_of(shards))
    if share is not None and shards is not None:
        raise OptionError(f"shards is {full}, but a part has those of its sources: choose one")
    root = local_path("pack", pack, _NOT_AT_URLS)
    linked = []
    if links is not None:
        linked = read_links(local_path("links", links))
    patterns = patterns_of("sources", items_of(sources))
    source_list = find_sources(patterns, links=linked, leave_out=root, on_wait=report)
    processes = available_cpus()
    if workers is not None:
        processes = whole_number("workers", workers, 1)
    records_at = None
    if annotations is not None:
        records_at = local_path("annotations", annotations)
    call = RepairCall(
        root=root,
        annotations=records_at,
        sources={source.name: source for source in source_list},
        full=frozenset(full),
        quick=quick or shards is not None,
        workers=processes,
        dry_run=dry_run,
        progress=progress,
    )
    if not (exists(root / MANIFEST_NAME) or is_folder(root / SHARDS_NAME)):
        raise without_manifest(root)
    result = _repair_whole(call) if share is None else _repair_part(call, share)
    result.dry_run = dry_run
    result.seconds = time.perf_counter() - started
    return result


def _repair_whole(call: RepairCall) -> RepairResult:
    """Repair a pack, which this process has for itself."""
    root = call.root
    with ExitStack() as held:
        if call.dry_run:
            check_locks(root)
        else:
            held.enter_context(locked_folder(root))
            restore_set_aside(root)
            restore_set_aside(root / SHARDS_NAME)
        damage = call.diagnose(Unfinished.read(root), ALL)
        repair = Repair(call, damage, of_part=False)
        repair.note_unchecked_features()
        if call.dry_run:
            return repair.foresee()
        remove_stale(root, keep=intention_path(root))
        held.callback(remove_unused_parts_folder, root)
        return repair.apply()


def _repair_part(call: RepairCall, share: Share) -> RepairResult:
    """Repair the shards of a share of the sources, beside other parts."""
    root = call.root
    with ExitStack() as held:
        if call.dry_run:
            check_locks(root, of_part=True)
        else:
            held.enter_context(locked_folder(root, of_part=True))
            with alone_among_parts(root):
                restore_set_aside(root / SHARDS_NAME)
        if Unfinished.read(root) != Unfinished():
            raise FormatError(
                f"{root / MANIFEST_NAME}: an earlier repair did not finish it; first "
                f"{whole_repair(root)}"
            )
        damage = call.diagnose(Unfinished(), share)
        if damage.lost:
            raise FormatError(f"{damage.problems[0].what}; first {whole_repair(root)}")
        repair = Repair(call, damage, of_part=True)
        if call.dry_run:
            return repair.foresee()
        return repair.apply_to_part()
