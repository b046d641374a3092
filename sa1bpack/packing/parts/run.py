"""`pack_part`: one part of a job, which packs every N-th source."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from sa1bpack import interrupts
from sa1bpack.arguments import checks_options, part_of_job, share_of
from sa1bpack.packing.estimate import check_room
from sa1bpack.packing.options import PackKeywords
from sa1bpack.packing.packed_sources import add_missing_md5, sources_to_pack
from sa1bpack.packing.parts.outcomes import Plan
from sa1bpack.packing.parts.state import PartState
from sa1bpack.packing.progress import Progress, recorded_run, rejects_so_far
from sa1bpack.packing.request import Request, checked_request
from sa1bpack.packing.run import (
    PackResult,
    note_other_decoders,
    pack_sources,
    result_of,
    versions_in_force,
)
from sa1bpack.packing.sample import warm_up
from sa1bpack.source.find import Source


@checks_options("pack_part")
def pack_part(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    part: tuple[int, int],
    *,
    links: str | Path | None = None,
    downloads: int | None = None,
    workers: int | None = None,
    md5sums: str | Path | None = None,
    md5: bool = False,
    max_rejects: int | None = None,
    ignore_space: bool = False,
    progress: bool | None = None,
    **options: Unpack[PackKeywords],
) -> PackResult:
    """Pack every N-th of the sources into `out`, which other parts pack into at the same time.

    When all parts are done, `finalize` makes their shards one pack. It has the same bytes as if
    `pack` had made it of all sources. A part may run at any time, again after it was killed or on
    another machine, and beside others of the same sources: a shard that another process has
    published meanwhile stays, and this one's is discarded.

    sources
        All sources of the job, the same for every part.
    out
        Folder of the pack, on a disk that all parts share; created if it does not exist.
    part
        (K, N): the K-th of N parts, K from 1 on, packs every N-th source by name, from the K-th on.
    max_rejects
        The part ends when more members of its sources than this are rejected. Default: no limit.

    links, downloads, workers, md5sums, md5, ignore_space, progress, options
        As in `pack`. The disk must have room for what is left of the whole job.

    The result's totals are those of the sources of the part; one
    that cannot be read is named in `failed`, and recorded for `finalize`.

    Raises what `pack` raises; OutputLocked only while another command than a part works on `out`.

    Examples:
        >>> for k in (1, 2):
        ...     done = sa1bpack.pack_part("tests/samples/*.tar", "job", (k, 2), workers=1)
        >>> sa1bpack.finalize("job").complete
        True
    """
    share = part_of_job(part)
    request = checked_request(
        sources, out, options, workers, md5sums, md5, max_rejects, links, downloads, ignore_space
    )
    check_room(request, request.sources)
    plan = Plan(share[1], tuple(source.name for source in request.sources))
    mine = share_of(request.sources, share)
    return run_part(replace(request, sources=mine), plan, progress)[0]


def run_part(
    request: Request, plan: Plan, progress: bool | None
) -> tuple[PackResult, list[dict[str, str]]]:
    """Pack the sources of a request as a part of a job; also returns the lines of their rejects."""
    warm_up(request.options)
    interrupts.check()
    names = [source.name for source in request.sources]
    state = PartState(request.out, request.options, plan, names)
    try:
        return _pack_into(state, request.sources, request, progress), state.rejects()
    finally:
        state.release()


def _pack_into(
    state: PartState, mine: list[Source], request: Request, show_progress: bool | None
) -> PackResult:
    records = deepcopy(state.sources)
    todo, failed = sources_to_pack(state, mine, request.sums)
    before = len(mine) - len(todo) - len(failed)
    if request.md5:
        add_missing_md5(state, mine, request.sums, show_progress)
    rejects = rejects_so_far(state.rejects(), request.max_rejects)
    progress = Progress(sum(source.nbytes for source in todo), rejects, show_progress)
    packed_by = versions_in_force()
    note_other_decoders(state, packed_by, progress)
    for name, record in state.sources.items():
        if record != records[name]:  # its md5 was computed or compared
            state.finish_source(record)
    if todo:
        state.begin()
    try:
        with recorded_run(state.notes, progress, request.workers):
            failed |= pack_sources(state, todo, request, packed_by, progress)
    finally:
        progress.close()
    for name, error in failed.items():
        state.fail(name, error)
    interrupts.check()
    return result_of(state, len(mine), before, failed, progress)
