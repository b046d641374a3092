"""`pack_on_ray`, `verify_on_ray` and `repair_on_ray`: parts of a job as tasks of a Ray cluster.

A task packs one source as a part of a job does: nodes share nothing but the pack's folder, and a
task that Ray runs again, because its node or its process died, resumes after the last complete
shard, even while the first attempt still runs. `finalize` makes the shards one pack.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sa1bpack.arguments import choice, items_of, whole_number
from sa1bpack.cluster.tasks import Died, Needs, once_unlocked, run_parts, run_tasks
from sa1bpack.disk.direct import IO
from sa1bpack.errors import FormatError, SourceError
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.problems import Problem, Report, joined
from sa1bpack.format.side.manifest import is_side
from sa1bpack.format.side.shards import feature_shard_names, side_folders
from sa1bpack.format.verify import verify
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.packing.apply_repair import RepairResult
from sa1bpack.packing.damage import sources_in_pack
from sa1bpack.packing.estimate import check_room, memory_bytes
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions, RunOptions
from sa1bpack.packing.progress import Progress, unknown_keys_text
from sa1bpack.packing.publishers import part_publisher
from sa1bpack.packing.records import PackJob
from sa1bpack.packing.repair import repair
from sa1bpack.packing.repair_plan import OWN_FILES
from sa1bpack.packing.requested_options import PackRequest, RequestedOptions, check_request
from sa1bpack.packing.run import FinalizeResult, PackResult, Totals, finalize, pack_result, run_work
from sa1bpack.packing.source_probe import requested_options
from sa1bpack.packing.work import Work, find_work, list_sources
from sa1bpack.paths import local_path, patterns_of
from sa1bpack.progress import ProgressOption, check_progress, report
from sa1bpack.source.find import Source
from sa1bpack.urls import is_url

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RunKeywords

# A task reads one tar, which feeds about six workers (docs/performance.md).
WORKERS = 6


@checks_options
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
            is called as function(bytes done, all bytes). Default: a bar if stderr is a terminal.

    Raises:
        MissingPackage: ray is not installed.
        ClusterError: no cluster can be reached.
        OptionError: as in `pack`, and if ray is initialized in this process already.
        Whatever else `pack` raises.
    """
    check_progress(progress)
    if options.get("workers") is None:
        options["workers"] = WORKERS
    request = check_request(sources, output, options)
    run_options = request.run_options
    with part_publisher(request.output, requested_options(request)) as publisher:
        named = list_sources(request)
        job = PackJob(parts=len(named), sources=tuple(source.name for source in named))
        publisher.take_part(job, job.sources)
        work = find_work(publisher.ledger, named, run_options.records_md5)
        pack_options = publisher.ledger.options
        check_room(request.output, pack_options, run_options, work.new)
        counts = _counts(publisher.ledger, work, run_options, progress)
        if publisher.ledger.taken_options:
            counts.note(publisher.ledger.taken_options)
        publisher.begin()
        publisher.finish(work.unreadable)
    try:
        failed = work.unreadable | _pack_sources(
            address, request, pack_options, job, work.sources, counts
        )
    finally:
        counts.close()
    # Once the attempts at tasks that Ray has given up have ended, too.
    finalized = once_unlocked(lambda: finalize(request.output))
    for source in named:
        if source.name in finalized.missing and source.name not in failed:
            failed[source.name] = SourceError(f"{source.path}: {finalized.missing[source.name]}")
    return _result(finalized, work, failed, counts)


def _counts(
    ledger: Ledger, work: Work, run_options: RunOptions, progress: ProgressOption
) -> Progress:
    """The counts of the job, which begin with the rejects of what is packed already."""
    names = {source.name for source in work.sources}
    rejects = []
    for line in ledger.rejects():
        if line["source"] not in names:  # whose tasks return all their rejects
            rejects.append(line)
    total = sum(source.nbytes for source in work.sources)
    return Progress(total, run_options.max_rejects, rejects, progress)


def _result(
    finalized: FinalizeResult, work: Work, failed: dict[str, SourceError], counts: Progress
) -> PackResult:
    """The result of the job, of which the user is notified as at the end of `pack`."""
    for note in finalized.notes:
        counts.note(note)
    unknown_keys = unknown_keys_text(counts.unknown_keys, "this run")
    if unknown_keys is not None:
        counts.note(unknown_keys)
    totals = {field.name: getattr(finalized, field.name) for field in fields(Totals)}
    return pack_result(totals, work, failed, counts)


def _pack_sources(
    address: str | None,
    request: PackRequest,
    pack_options: PackOptions,
    job: PackJob,
    sources: Sequence[Source],
    counts: Progress,
) -> dict[str, SourceError]:
    """Run a task for each source; returns name → error of those that were given up."""
    workers = request.run_options.worker_count
    # The limit of rejects is that of the job, and they are counted here.
    run_options = replace(request.run_options, max_rejects=None, ignore_space=True)
    if run_options.annotations is not None:
        run_options = replace(run_options, annotations=run_options.annotations.absolute())
    by_name = {}
    tasks = {}
    for source in sources:
        if isinstance(source.path, Path):
            source = replace(source, path=source.path.absolute())
        by_name[source.name] = source
        tasks[source.name] = {
            "output": request.output.absolute(),
            "pack_options": pack_options,
            "run_options": run_options,
            "source": source,
            "job": job,
        }
    needs = Needs(workers, memory_bytes(workers, 1))
    failed: dict[str, SourceError] = {}
    for name, outcome in run_tasks(address, pack_source, tasks, needs, counts.note):
        source = by_name[name]
        counts.advance(source, source.nbytes)
        if isinstance(outcome, Died):
            failed[name] = SourceError(f"{source.path}: {outcome}; perhaps use fewer workers")
            continue
        result, rejects = outcome
        for note in result.notes:
            counts.note(f"{name}: {note}")
        counts.images += result.new_images
        counts.add_unknown_keys(result.unknown_keys)
        counts.add_rejects(rejects)
        failed |= result.failed
    return failed


def pack_source(
    output: Path, pack_options: PackOptions, run_options: RunOptions, source: Source, job: PackJob
) -> tuple[PackResult, list[dict[str, str]]]:
    """Pack one source of a job: the task. Returns also the lines of all its rejects."""
    with part_publisher(output, RequestedOptions.all_of(pack_options)) as publisher:
        publisher.take_part(job, [source.name])
        work = find_work(publisher.ledger, [source], run_options.records_md5)
        result = run_work(publisher, run_options, work, need_room=[], progress=False)
        return result, publisher.ledger.rejects()


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
    for name, death in died.items():
        shard = None
        if len(names) > 1:
            shard = name
        reports[name] = Report((Problem(f"not checked: {death}", shard=shard, denied=True),))
    return joined([reports[name] for name in names])


def _names_to_check(root: Path) -> list[str]:
    """A name for each part of the check, a task: of shards, or of feature shards."""
    if is_side(root):
        return feature_shard_names(root) or [root.name]
    try:
        names = [shard.name for shard in read_manifest(root).shards]
    except FormatError:
        return [root.name]  # reported, or raised, by its only part
    most_feature_shards = 0
    for folder in side_folders(root):
        if is_side(folder):
            most_feature_shards = max(most_feature_shards, len(feature_shard_names(folder)))
    for number in range(len(names), most_feature_shards):
        names.append(f"feature shards, {number}")
    return names or [root.name]


@checks_options
def repair_on_ray(
    pack: str | Path,
    sources: str | Path | Iterable[str | Path] | None = (),
    *,
    address: str | None = None,
    quick: bool = False,
    links: str | Path | None = None,
    annotations: str | Path | None = None,
    workers: int | None = None,
    progress: ProgressOption = None,
) -> RepairResult:
    """Repair a pack on a Ray cluster, whose nodes see it and the sources under the same paths.

    The shards of each source are a task, which does what a part of `repair` does. What concerns the
    whole pack is then repaired here. So is all of a pack whose manifest is lost.

    The pack has the same bytes as if `repair` had repaired it. A source whose task died each time
    it was run is in the result's `left`.

    Args:
        pack, sources, quick, links, annotations, progress: as in `repair`.
        address: address of the cluster, as in `ray.init`. Default: RAY_ADDRESS, or this machine
            alone.
        workers: worker processes, and cores, of each task. Default: 1. And worker processes of
            what is repaired here. Default: the available processors.

    Raises:
        MissingPackage: ray is not installed.
        ClusterError: no cluster can be reached.
        OptionError: as in `repair`, and if ray is initialized in this process already.
        Whatever else `repair` raises.
    """
    check_progress(progress)
    root = local_path("pack", pack)
    workers_per_task = 1
    if workers is not None:
        workers_per_task = whole_number("workers", workers, 1)
    patterns = _absolute(sources)
    if links is not None:
        links = local_path("links", links).absolute()
    if annotations is not None:
        annotations = local_path("annotations", annotations).absolute()
    where: dict[str, Any] = {"links": links, "annotations": annotations}
    names = sources_in_pack(root)
    if names is None:
        report(f"{root}: no part can repair it without its manifest: it is repaired here")
        return repair(root, patterns, quick=quick, workers=workers, progress=progress, **where)
    call = {
        "pack": root.absolute(),
        "sources": patterns,
        "quick": quick,
        **where,
        "workers": workers_per_task,
        "progress": False,
    }
    names = names or [root.name]
    needs = Needs(workers_per_task, memory_bytes(workers_per_task, 1))
    repaired, died = run_parts(address, repair, names, call, needs, progress)
    result = _joined_repairs(root, [repaired[name] for name in names if name in repaired])
    if result.left:  # repaired here, or named again
        options: dict[str, Any] = {"quick": True, "workers": workers, "progress": progress, **where}
        options["shards"] = [name for name in result.left if name != OWN_FILES]
        last = once_unlocked(lambda: repair(root, patterns, **options))
        result.repaired += last.repaired
        result.notes += last.notes
        result.rewritten = last.rewritten
        result.left = last.left
        result.complete = last.complete
    for name, death in died.items():
        reason = f"not checked: {death}; repeat the command"
        result.left[name] = reason
        result.problems += (Problem(f"source {name}: {reason}", denied=True),)
    return result


def _absolute(sources: str | Path | Iterable[str | Path] | None) -> list[str]:
    """Sources as every node finds them: URLs, and absolute paths and patterns."""
    patterns = []
    for source in map(str, patterns_of("sources", items_of(sources))):
        if is_url(source):
            patterns.append(source)
        else:  # a Path would drop a closing slash
            source = os.path.expanduser(source)  # noqa: PTH111
            patterns.append(os.path.abspath(source))  # noqa: PTH100
    return patterns


def _joined_repairs(root: Path, parts: Sequence[RepairResult]) -> RepairResult:
    """One result of those of the parts of a repair, the first part first."""
    result = RepairResult(root, complete=True)
    for part in parts:
        result.problems += part.problems
        result.repaired += part.repaired
        result.left |= part.left
        result.extra += part.extra
        result.plan += part.plan
        result.notes += part.notes
        result.complete = result.complete and part.complete
        result.seconds = max(result.seconds, part.seconds)
    result.problems = tuple(dict.fromkeys(result.problems))
    result.extra = tuple(dict.fromkeys(result.extra))
    return result
