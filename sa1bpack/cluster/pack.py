"""`pack_on_ray`, `verify_on_ray` and `repair_on_ray`: parts of a job as tasks of a Ray cluster.

A task packs one source as a part of a job does: nodes share nothing but the pack's folder, and a
task that Ray runs again, because its node or its process died, resumes after the last complete
shard, even while the first attempt still runs. `finalize` makes the shards one pack.
"""

import os
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sa1bpack.arguments import choice, items_of, whole_number
from sa1bpack.cluster.tasks import Died, Needs, once_unlocked, run_parts, run_tasks
from sa1bpack.disk.reading_mode import IO
from sa1bpack.errors import FormatError, SourceError
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.problems import Problem, Report, joined
from sa1bpack.format.side.spec import feature_shard_names, is_side, side_folders
from sa1bpack.format.verify import verify
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.packing.damage import sources_in_pack
from sa1bpack.packing.estimate import check_room, memory_bytes
from sa1bpack.packing.job import PackJob
from sa1bpack.packing.ledger import sources_to_pack
from sa1bpack.packing.options import PackOptions, Request, RunOptions, checked_request
from sa1bpack.packing.progress import Progress, unknown_keys_text
from sa1bpack.packing.publishers import part_publisher
from sa1bpack.packing.repair import OWN_FILES, RepairResult, repair
from sa1bpack.packing.run import PackResult, Totals, finalize, run_part
from sa1bpack.paths import local_path
from sa1bpack.progress import ProgressOption, check_progress, report
from sa1bpack.source.find import Source, look_at
from sa1bpack.urls import is_url

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RunKeywords

# A task reads one tar, which feeds about six workers (docs/performance.md).
WORKERS = 6


@checks_options(out="output", select="mask_select")
@takes_options(PackOptions, RunOptions)
def pack_on_ray(
    sources: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    address: str | None = None,
    progress: ProgressOption = None,
    **options: Unpack["RunKeywords"],
) -> PackResult:
    """Pack on a Ray cluster, whose nodes see sources and `output` under the same paths.

    The pack has the same bytes as if `pack` had made it.

    A task whose process or node dies is run again, up to 5 times; then its source is given up.
    Ctrl-C ends the tasks; what they have published stays, and the same call resumes, as it does if
    this process is killed.

    `workers` is the number of worker processes of each task, by default 6, for one tar at a time;
    Ray is asked for as many cores, and for the memory that they need.

    Args:
        sources, output: as in `pack`.
        address: address of the cluster, as in `ray.init`. Default: RAY_ADDRESS, or this machine
            alone.
        progress: show a bar on stderr, which advances with each complete source; or a function that
            is called as function(bytes done, bytes in all). Default: a bar if stderr is a terminal.

    Raises:
        MissingPackage: ray is not installed.
        ClusterError: no cluster can be reached.
        OptionError: as in `pack`, and if ray is initialized in this process already.
        Whatever else `pack` raises.
    """
    check_progress(progress)
    if options.get("workers") is None:
        options["workers"] = WORKERS
    request = checked_request(sources, output, options)
    job = PackJob(len(request.sources), tuple(source.name for source in request.sources))
    if not request.output.exists():  # if that is refused, it is not made
        check_room(request, look_at(request.sources, on_wait=report)[0])
    with part_publisher(request.output, request.options, job, job.sources) as publisher:
        ledger = publisher.ledger
        todo, failed = sources_to_pack(ledger, request)
        new = [source for source in todo if source.name not in ledger.sources]
        check_room(request, new)
        packed = len(request.sources) - len(new) - len(failed)
        again = {source.name for source in todo}  # their tasks return all their rejects
        rejects = [line for line in ledger.rejects() if line["source"] not in again]
        total = sum(source.nbytes for source in todo)
        show = Progress(total, request.max_rejects, rejects, progress)
        publisher.finish(failed)
    try:
        failed = failed | _run(address, request, job, todo, show)
    finally:
        show.close()
    # Once the attempts at tasks that Ray has given up have ended, too.
    found = once_unlocked(lambda: finalize(request.output))
    for note in found.notes:
        show.note(note)
    for source in request.sources:
        if source.name in found.missing and source.name not in failed:
            failed[source.name] = SourceError(f"{source.path}: {found.missing[source.name]}")
    if (text := unknown_keys_text(show.unknown_keys, "this run")) is not None:
        show.note(text)
    return PackResult(
        **{field.name: getattr(found, field.name) for field in fields(Totals)},
        sources=len(request.sources),
        packed_before=packed,
        new_images=show.images,
        failed=failed,
        notes=show.notes,
        seconds=show.seconds,
        unknown_keys=dict(sorted(show.unknown_keys.items())),
    )


def _run(
    address: str | None, request: Request, job: PackJob, todo: list[Source], progress: Progress
) -> dict[str, SourceError]:
    """Run a task for each source; returns name → error of those that were given up."""
    needs = Needs(request.workers, memory_bytes(request.workers, 1))
    sources = {source.name: source for source in todo}
    # The limit of rejects is that of the job, which is counted here.
    every = replace(request, output=request.output.absolute(), max_rejects=None, ignore_space=True)
    tasks = {}
    for name, source in sources.items():
        path = source.path.absolute() if isinstance(source.path, Path) else source.path
        one = replace(every, sources=[replace(source, path=path)])
        tasks[name] = {"request": one, "job": job, "progress": False}
    failed: dict[str, SourceError] = {}
    for name, packed in run_tasks(address, run_part, tasks, needs, progress.note):
        source = sources[name]
        progress.advance(source, source.nbytes)
        if isinstance(packed, Died):
            failed[name] = SourceError(f"{source.path}: {packed}; perhaps use fewer workers")
            continue
        result, rejects = packed
        for note in result.notes:
            progress.note(f"{name}: {note}")
        progress.images += result.new_images
        progress.add_unknown_keys(result.unknown_keys)
        progress.add_rejects(rejects)
        failed |= result.failed
    return failed


# A task reads one shard after the other, and needs no more than this (docs/cluster.md).
VERIFY_NEEDS = Needs(cores=1, memory=500_000_000)


@checks_options
def verify_on_ray(
    root: str | Path,
    *,
    address: str | None = None,
    quick: bool = False,
    progress: ProgressOption = None,
    io: str = "auto",
) -> Report:
    """Check a pack or a feature on a Ray cluster, whose nodes see it under the same path.

    The report has the same problems, counts and notes as that of `verify`. A shard whose task died
    each time it was run is reported as one that could not be read.

    Args:
        root, quick, io: as in `verify`.
        address: address of the cluster, as in `ray.init`. Default: RAY_ADDRESS, or this machine
            alone.
        progress: show a bar on stderr; or a function that is called as function(tasks done, all
            tasks), of which each checks a shard, or a feature shard. Default: a bar if stderr is a
            terminal.

    Raises:
        MissingPackage: ray is not installed.
        ClusterError: no cluster can be reached.
        OptionError: as in `verify`, and if ray is initialized in this process already.
        Whatever else `verify` raises.
    """
    check_progress(progress)
    root = local_path("root", root).absolute()
    choice("io", io, IO)
    names = _names_to_check(root)
    call = {"root": root, "quick": quick, "io": io, "progress": False}
    reports, died = run_parts(address, verify, names, call, VERIFY_NEEDS, progress)
    for name, why in died.items():
        shard = name if len(names) > 1 else None
        reports[name] = Report((Problem(f"not checked: {why}", shard=shard, denied=True),))
    return joined([reports[name] for name in names])


def _names_to_check(root: Path) -> list[str]:
    """A name for each part of the check, a task: of shards, or of feature shards."""
    if is_side(root):
        return feature_shard_names(root) or [root.name]
    try:
        names = [shard.name for shard in read_manifest(root).shards]
    except FormatError:
        return [root.name]  # reported, or raised, by its only part
    sides = [len(feature_shard_names(folder)) for folder in side_folders(root) if is_side(folder)]
    more = range(len(names), max(sides, default=0))
    return [*names, *(f"feature shards, {number}" for number in more)] or [root.name]


@checks_options
def repair_on_ray(
    pack: str | Path,
    sources: str | Path | Iterable[str | Path] | None = (),
    *,
    address: str | None = None,
    quick: bool = False,
    links: str | Path | None = None,
    workers: int | None = None,
    progress: ProgressOption = None,
) -> RepairResult:
    """Repair a pack on a Ray cluster, whose nodes see it and the sources under the same paths.

    The shards of each source are a task, which does what a part of `repair` does. What concerns the
    whole pack is then repaired here. So is all of a pack whose manifest is lost.

    The pack has the same bytes as if `repair` had repaired it. A source whose task died each time
    it was run is in the result's `left`.

    Args:
        pack, sources, quick, links, progress: as in `repair`.
        address: address of the cluster, as in `ray.init`. Default: RAY_ADDRESS, or this machine
            alone.
        workers: worker processes, and cores, of each task. Default: 1.

    Raises:
        MissingPackage: ray is not installed.
        ClusterError: no cluster can be reached.
        OptionError: as in `repair`, and if ray is initialized in this process already.
        Whatever else `repair` raises.
    """
    check_progress(progress)
    root = local_path("pack", pack)
    workers = 1 if workers is None else whole_number("workers", workers, 1)
    given = [sources] if isinstance(sources, str | Path) else list(items_of(sources))
    given = [each if is_url(each) else os.path.abspath(each) for each in given]  # noqa: PTH100
    links = None if links is None else local_path("links", links).absolute()
    options = {"quick": quick, "links": links}
    names = sources_in_pack(root)
    if names is None:
        report(f"{root}: no part can repair it without its manifest: it is repaired here")
        return repair(root, given, **options, progress=progress)
    names = names or [root.name]
    call = {"pack": root.absolute(), "sources": given, "workers": workers, "progress": False}
    needs = Needs(workers, memory_bytes(workers, 1))
    found, died = run_parts(address, repair, names, call | options, needs, progress)
    parts = [found[name] for name in names if name in found]
    result = RepairResult(
        root,
        tuple(dict.fromkeys(problem for part in parts for problem in part.problems)),
        [name for part in parts for name in part.repaired],
        left={name: reason for part in parts for name, reason in part.left.items()},
        extra=tuple(dict.fromkeys(problem for part in parts for problem in part.extra)),
        plan=[line for part in parts for line in part.plan],
        notes=[note for part in parts for note in part.notes],
        complete=all(part.complete for part in parts),
        seconds=max((part.seconds for part in parts), default=0.0),
    )
    if result.left:  # repaired here, or named again
        shards = [name for name in result.left if name != OWN_FILES]
        last = once_unlocked(
            lambda: repair(root, given, quick=True, shards=shards, links=links, progress=progress)
        )
        result.repaired += last.repaired
        result.notes += last.notes
        result.rewritten = last.rewritten
        result.left = last.left
        result.complete = last.complete
    for name, why in died.items():
        reason = f"not checked: {why}; repeat the command"
        result.left[name] = reason
        result.problems += (Problem(f"source {name}: {reason}", denied=True),)
    return result
