"""`pack_on_ray`: the sources of a pack as tasks of a Ray cluster.

A task packs one source as a part of a job does: nodes share nothing but the pack's folder, and a
task that Ray runs again, because its node or its process died, resumes after the last complete
shard, even while the first attempt still runs. `finalize` makes the shards one pack.
"""

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Unpack

from sa1bpack import interrupts
from sa1bpack.arguments import checks_options
from sa1bpack.cluster.tasks import Died, Needs, once_unlocked, run_tasks
from sa1bpack.errors import OutputLocked, SourceError
from sa1bpack.packing.estimate import check_room, memory_bytes
from sa1bpack.packing.options import Request, RunKeywords, checked_request
from sa1bpack.packing.pack_state import Totals, sources_to_pack
from sa1bpack.packing.parts import PartState, Plan, finalize
from sa1bpack.packing.progress import Progress
from sa1bpack.packing.run import PackResult, run_part
from sa1bpack.source.find import Source

# A task reads one tar, which feeds about six workers (docs/performance.md).
WORKERS = 6


@checks_options(out="output", select="mask_select")
def pack_on_ray(
    sources: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    address: str | None = None,
    progress: bool | None = None,
    **options: Unpack[RunKeywords],
) -> PackResult:
    """Pack on a Ray cluster, whose nodes see sources and `output` under the same paths.

    The pack has the same bytes as if `pack` had made it.

    address
        Of the cluster, as in `ray.init`. Default: RAY_ADDRESS, or this machine alone.
    progress
        Show a bar on stderr, which advances with each complete source. Default: if it is a
        terminal.
    options
        Among them `workers`, the worker processes of each task; so many cores, and the memory they
        need, are asked of Ray. Default: 6, for one tar at a time.

    Everything else is as in `pack`. A task whose process or node dies is run again, up to 5 times;
    then its source is given up. Ctrl-C ends the tasks; what they have published stays, and the
    same call resumes, as it does if this process is killed.

    Raises what `pack` raises; MissingPackage without ray, ClusterError if no cluster can be
    reached, and OptionError if ray is initialized in this process already.
    """
    if options.get("workers") is None:
        options["workers"] = WORKERS
    request = checked_request(sources, output, options)
    plan = Plan(len(request.sources), tuple(source.name for source in request.sources))
    todo, packed, unreadable, show = _look(request, plan, progress)
    failed: dict[str, SourceError] = dict(unreadable)
    try:
        failed |= _run(address, request, plan, todo, show)
    finally:
        show.close()
    interrupts.check()
    try:  # once the attempts at tasks that Ray has given up have ended, too
        found = once_unlocked(lambda: finalize(request.output), interrupts.check)
    except OutputLocked as error:
        error.add_note(
            f"every source is done; once it has ended: sa1bpack finalize {request.output}"
        )
        raise
    for note in found.notes:
        show.note(note)
    return PackResult(
        **{field.name: getattr(found, field.name) for field in fields(Totals)},
        sources=len(request.sources),
        packed_before=packed,
        new_images=show.images,
        failed=failed,
        notes=show.notes,
        seconds=show.seconds,
    )


def _look(
    request: Request, plan: Plan, show_progress: bool | None
) -> tuple[list[Source], int, dict[str, SourceError], Progress]:
    """Prepare the folder.

    Returns the sources that are tasks, how many are packed, those that cannot be read, and the
    progress so far.
    """
    if not request.output.exists():  # if that is refused, it is not made
        check_room(request, request.sources)
    state = PartState(request.output, request.options, plan, plan.sources)
    try:
        todo, unreadable = sources_to_pack(state, request)
        new = [source for source in todo if source.name not in state.sources]
        check_room(request, new)
        packed = len(request.sources) - len(new) - len(unreadable)
        again = {source.name for source in todo}  # their tasks return all their rejects
        rejects = [line for line in state.rejects() if line["source"] not in again]
        total = sum(source.nbytes for source in todo)
        progress = Progress(total, request.max_rejects, rejects, show_progress)
        state.fail(unreadable)
    finally:
        state.release()
    return todo, packed, unreadable, progress


def _run(
    address: str | None, request: Request, plan: Plan, todo: list[Source], progress: Progress
) -> dict[str, SourceError]:
    """Run a task for each source; returns name → error of those that were given up."""
    needs = Needs(request.workers, memory_bytes(request.workers, 1))
    sources = {source.name: source for source in todo}
    tasks = {}
    for name, source in sources.items():
        if isinstance(source.path, Path):
            source = replace(source, path=source.path.absolute())
        one = replace(
            request,
            sources=[source],
            output=request.output.absolute(),
            max_rejects=None,  # the limit is that of the job, which is counted here
            ignore_space=True,
        )
        tasks[name] = {"request": one, "plan": plan, "progress": False}
    failed: dict[str, SourceError] = {}
    options = {"check": interrupts.check, "say": progress.note}
    for name, packed in run_tasks(address, run_part, tasks, needs, **options):
        source = sources[name]
        progress.source_done(source)
        if isinstance(packed, Died):
            failed[name] = SourceError(
                f"{source.path}: {packed}; repeat the command, perhaps with fewer workers"
            )
            continue
        result, rejects = packed
        for note in result.notes:
            progress.note(f"{name}: {note}")
        progress.images += result.new_images
        progress.add_rejects(rejects)
        failed |= result.failed
    return failed
