"""`pack`: the complete run, from the arguments to the published pack."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Unpack

from sa1bpack import __version__, interrupts
from sa1bpack.arguments import checks_options
from sa1bpack.environment import pil_in_force
from sa1bpack.errors import SourceError
from sa1bpack.format.duplicates import find_duplicates
from sa1bpack.format.index import open_manifest_and_index
from sa1bpack.format.manifest import identity_text
from sa1bpack.masks.select import left_out_text
from sa1bpack.packing.estimate import check_room
from sa1bpack.packing.execution.inline import pack_inline
from sa1bpack.packing.execution.processes import pack_with_processes
from sa1bpack.packing.options import PackKeywords
from sa1bpack.packing.pack_state import PackState
from sa1bpack.packing.packed_sources import add_missing_md5, sources_to_pack
from sa1bpack.packing.progress import Progress, recorded_run, rejects_so_far
from sa1bpack.packing.request import Request, checked_request, upload_to
from sa1bpack.packing.sample import require_decoder, warm_up
from sa1bpack.packing.source_packer import SourcePacker
from sa1bpack.packing.writer_threads import WriterThreads
from sa1bpack.source.find import Source
from sa1bpack.urls import scheme_of, shown


@dataclass(frozen=True)
class PackResult:
    """What a run did, and what the pack holds now.

    root
        The pack's folder.
    images, masks, annotations, dropped, rejects
        Totals of the pack: samples; masks stored; masks that their records had; images dropped
        because no masks remained; members in rejects.jsonl.
    sources, packed_before
        Number of sources given, and of those that were complete in the pack before the run.
    new_images
        Samples that this run decoded.
    failed
        Name of each source that was given up → the error. Empty when the pack is complete.
    identity
        Which digests of its tars the pack records, in words.
    left_out
        How many masks of its images the pack does not hold, and which options left them out, in
        words; empty if it holds all.
    notes
        What was reported to the user during the run.
    seconds
        Wall time.
    url
        Of the pack in an object store, if it was uploaded; `root` is its staging folder.

    Examples:
        >>> result = sa1bpack.pack("tests/samples/sa_000000.tar", "packed", workers=1)
        >>> result.images, result.new_images, result.failed, result.complete
        (3, 0, {}, True)
    """

    root: Path
    images: int
    masks: int
    annotations: int
    dropped: int
    rejects: int
    sources: int
    packed_before: int
    new_images: int
    failed: dict[str, SourceError]
    identity: str
    notes: list[str] = field(repr=False)
    seconds: float
    url: str | None = None
    left_out: str = ""

    @property
    def complete(self) -> bool:
        """Whether every source given is packed."""
        return not self.failed


@checks_options("pack")
def pack(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    links: str | Path | None = None,
    downloads: int | None = None,
    staging: str | Path | None = None,
    workers: int | None = None,
    md5sums: str | Path | None = None,
    md5: bool = False,
    max_rejects: int | None = None,
    ignore_space: bool = False,
    progress: bool | None = None,
    **options: Unpack[PackKeywords],
) -> PackResult:
    """Pack SA-1B tars (or extracted folders) into shards under `out`.

    Called again with the same options it resumes after the last complete shard, and adds sources
    that the pack does not have yet.

    sources
        Paths or glob patterns of tars and folders, and URLs of tars: https, and s3 and gs, which
        may be patterns. A tar at a URL is read once, as a stream; a stream that breaks off is
        continued at its byte. Of those that are complete in the pack nothing is asked for.
    links
        A list of tars at URLs, `file name<TAB>URL` in each line, as SA-1B's download page offers
        it; packed in addition to `sources`, which may be `()`. Nothing that is written or reported
        has the query of a URL, which may be its signature.
    downloads
        Tars that are read at once if any is at a URL. Default: 4, but no more than there are
        workers, and at least one for six workers. With one worker it is one.
    out
        Folder of the pack; created if it does not exist. Or the URL of one in an object store, s3
        or gs, with `staging`.
    staging
        Local folder in which the pack for an object store is made, shard by shard. Uploaded shards
        take little of it: room for four is enough. It holds what a repeated run continues.
    workers
        Worker processes; 1 does all the work in this process. Default: the available processors.
    md5sums
        List in md5sum's format. A tar with another sum is refused; one missing from the list is an
        error.
    md5
        Compute and record the md5 of every tar, as a list does. Without either, a tar is identified
        by its XXH3-128, which is recorded in any case and costs nothing in comparison.
    max_rejects
        The run ends when more members than this are rejected. Default: no limit.
    ignore_space
        Continue although the disk has no room for the pack, as far as that can be estimated.
    progress
        Show a progress bar on stderr. Default: if it is a terminal.
    options
        Fields of PackOptions: image_size, fit, pixels, masks, max_masks and others.

    A source that cannot be read is given up and named in the result's `failed`; the others are
    packed. Raises OptionError, SourceError (nothing found, or no sum in the list), PackError
    (OutputRefused if the disk has no room, OutputLocked, OptionsDiffer, TooManyRejects, a worker
    that cannot start), FormatError for a damaged pack in `out`, MissingPackage without PIL, and
    OSError if the disk fails. After any of them, what was published stays, and nothing unfinished
    has a final name.

    Examples:
        >>> result = sa1bpack.pack("tests/samples/sa_000000.tar", "packed", workers=1)
        >>> result.images, result.masks
        (3, 203)
    """
    url, out = upload_to(out, staging)
    request = checked_request(
        sources, out, options, workers, md5sums, md5, max_rejects, links, downloads, ignore_space
    )
    if url is not None:  # of which little is on this disk at any time
        request = replace(request, ignore_space=True)
    warm_up(request.options)
    interrupts.check()
    if url is None:
        state = PackState(request.out, request.options)
    else:
        state = scheme_of(url).upload_state(url, request.out, request.options)
    try:
        result = pack_into(state, request, progress)
        if url is not None:
            state.finish(result.complete)
            result = replace(result, url=shown(url), root=request.out)
        return result
    finally:
        state.release()


def pack_into(state: PackState, request: Request, show_progress: bool | None) -> PackResult:
    """Pack those sources of a request that a pack does not have."""
    sources = request.sources
    todo, unreadable = sources_to_pack(state, sources, request.sums)
    check_room(request, todo)
    if request.md5:
        add_missing_md5(state, sources, request.sums, show_progress)
    rejects = rejects_so_far(state.rejects(), request.max_rejects)
    progress = Progress(sum(source.nbytes for source in todo), rejects, show_progress)
    packed_by = versions_in_force()
    note_other_decoders(state, packed_by, progress)
    state.publish(complete=False)  # only now: a refused run leaves a pack as it was
    with recorded_run(state.root, progress, request.workers):
        try:
            failed = unreadable | pack_sources(state, todo, request, packed_by, progress)
        except BaseException as error:
            try:
                state.publish(complete=False)
            except OSError as second:  # on a failing disk; the next run brings it up to date
                error.add_note(f"the manifest could not be written either: {second}")
            raise
        finally:
            progress.close()
    interrupts.check()
    state.publish(complete=not failed)
    duplicates = find_duplicates(*open_manifest_and_index(state.root))
    for line in (*duplicates.lines(), *state.without_pairs()):
        progress.note(line)
    before = len(sources) - len(todo) - len(unreadable)
    return result_of(state, len(sources), before, failed, progress)


def pack_sources(
    state: PackState,
    todo: list[Source],
    request: Request,
    packed_by: dict[str, str],
    progress: Progress,
) -> dict[str, SourceError]:
    """Publish the shards of these sources; returns name → error of those that were given up.

    packed_by
        As in `versions_in_force`.
    """
    with WriterThreads() as writers:
        packers = [
            SourcePacker(
                source,
                state,
                writers,
                packed_by,
                md5=request.md5,
                expected_md5=request.sums.get(source.name),
            )
            for source in todo
        ]
        if request.workers == 1:
            pack_inline(packers, state.options, progress)
        elif packers:
            pack_with_processes(
                packers, state.options, request.workers, progress, request.downloads
            )
    return {packer.source.name: packer.error for packer in packers if packer.error is not None}


def result_of(
    state: PackState,
    sources: int,
    packed_before: int,
    failed: dict[str, SourceError],
    progress: Progress,
) -> PackResult:
    """The result of a run that was given so many sources, of which some were complete before."""
    counts = state.counts()
    return PackResult(
        root=state.root,
        images=counts["images"],
        masks=counts["masks"],
        annotations=counts["annotations"],
        dropped=counts["dropped_images"],
        rejects=counts["rejects"],
        sources=sources,
        packed_before=packed_before,
        new_images=progress.images,
        failed=failed,
        identity=identity_text(state.sources.values()),
        notes=progress.notes,
        seconds=progress.seconds,
        left_out=left_out_text(state.options.to_json(), counts, counts["masks"]),
    )


def versions_in_force() -> dict[str, str]:
    """What determines pixels and masks besides the options; every shard records it.

    Raises MissingPackage as `require_decoder` does.
    """
    require_decoder()
    pil = pil_in_force()
    return {
        "sa1bpack": __version__,
        pil.package: pil.version,
        "simplejpeg": version("simplejpeg"),
    }


def note_other_decoders(state: PackState, packed_by: dict, progress: Progress) -> None:
    """Report other versions than those in force that have made shards of the pack."""
    others = {
        tuple(sorted(shard.attributes["packed_by"].items()))
        for shard in state.shards.values()
        if shard.attributes["packed_by"] != packed_by
    }
    for other in sorted(others):
        was = ", ".join(f"{key} {value}" for key, value in other)
        progress.note(f"part of this pack was made with {was}; pixels may differ by rounding")
