"""`pack`: the whole run, from the arguments to the published pack."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from sa1bpack import __version__
from sa1bpack.environment import pil_in_force
from sa1bpack.errors import OutputRefused, SourceError
from sa1bpack.packing.engines.inline import pack_inline
from sa1bpack.packing.engines.processes import pack_with_processes
from sa1bpack.packing.lane import Lane
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.request import checked_request
from sa1bpack.packing.run_log import on_record
from sa1bpack.packing.sample import warm_up
from sa1bpack.packing.watch import Rejects, Watch
from sa1bpack.packing.writers import Writers
from sa1bpack.source.find import Source


@dataclass(frozen=True)
class PackResult:
    """What a run did, and what the pack holds now.

    root
        The pack's folder.
    images, masks, annotations, dropped, rejects
        Totals of the pack: samples; masks stored; masks that their records had; images left out
        because no mask of theirs was left; members in rejects.jsonl.
    sources, packed_before
        Sources given, and those of them that the pack had whole before the run.
    new_images
        Samples that this run decoded.
    failed
        Name of each source that was given up → the error. Empty when the pack is complete.
    notes
        What the user was told during the run.
    seconds
        Wall time.
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
    notes: list[str] = field(repr=False)
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every source given is packed."""
        return not self.failed


def pack(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    workers: int | None = None,
    md5sums: str | Path | None = None,
    max_rejects: int | None = None,
    progress: bool | None = None,
    **options,
) -> PackResult:
    """Pack SA-1B tars (or extracted folders) into shards under `out`.

    Called again with the same options it goes on where it was interrupted, and adds sources that
    the pack does not have yet.

    sources
        Paths or glob patterns of tars and folders.
    out
        Folder of the pack; made when it is not there.
    workers
        Worker processes; 1 does all the work in this process. Default: the processors at hand.
    md5sums
        List in md5sum's format; a tar with another sum is refused, one that it lacks is an error.
    max_rejects
        More rejected members than this end the run (default: no limit).
    progress
        Show a progress bar on stderr. Default: when it is a terminal.
    options
        Fields of PackOptions.

    A source that cannot be read is given up and named in the result's `failed`; the others are
    packed. Raises OptionError, SourceError (nothing found, or no sum in the list), PackError
    (OutputLocked, OptionsDiffer, TooManyRejects, a worker that can't start), FormatError for a
    damaged pack in `out`, and OSError when the disk fails. After any of them, what was published
    stays, and nothing unfinished has a final name.
    """
    request = checked_request(sources, out, options, workers, md5sums, max_rejects)
    warm_up(request.options)
    ledger = Ledger(request.out, request.options)
    try:
        return pack_into(
            ledger, request.sources, request.workers, request.sums, max_rejects, progress
        )
    finally:
        ledger.release()


def pack_into(
    ledger: Ledger,
    sources: list[Source],
    workers: int,
    sums: dict[str, str],
    max_rejects: int | None,
    progress: bool | None,
) -> PackResult:
    """Pack what of these sources a ledger does not have; `sums` is source name → md5 due."""
    todo = sources_left(ledger, sources, sums)
    rejects = rejects_so_far(ledger, max_rejects)
    watch = Watch(sum(source.nbytes for source in todo), rejects, progress)
    packed_by = versions_in_force()
    _note_other_decoders(ledger, packed_by, watch)
    ledger.publish(complete=False)  # only now: a run that is refused leaves a pack as it was
    with on_record(ledger.root, watch, workers), Writers() as writers:
        lanes = [Lane(source, ledger, writers, packed_by, sums.get(source.name)) for source in todo]
        try:
            if workers == 1:
                pack_inline(lanes, ledger.options, watch)
            elif lanes:
                pack_with_processes(lanes, ledger.options, workers, watch)
        except BaseException as error:
            try:
                ledger.publish(complete=False)
            except OSError as second:  # on a disk that fails; the next run brings it up to date
                error.add_note(f"the manifest could not be written either: {second}")
            raise
        finally:
            watch.close()
    failed = {lane.source.name: lane.error for lane in lanes if lane.error is not None}
    ledger.publish(complete=not failed)
    counts = ledger.counts()
    return PackResult(
        root=ledger.root,
        images=counts["images"],
        masks=counts["masks"],
        annotations=counts["annotations"],
        dropped=counts["dropped_images"],
        rejects=counts["rejects"],
        sources=len(sources),
        packed_before=len(sources) - len(todo),
        new_images=watch.images,
        failed=failed,
        notes=watch.notes,
        seconds=watch.seconds,
    )


def sources_left(ledger: Ledger, sources: list[Source], sums: dict[str, str]) -> list[Source]:
    """Those that the pack does not have whole; raises OutputRefused for another of a name."""
    return [source for source in sources if not _is_packed(source, ledger, sums)]


def _is_packed(source: Source, ledger: Ledger, sums: dict[str, str]) -> bool:
    record = ledger.sources.get(source.name)
    if record is None:
        return False
    expected = sums.get(source.name, record["md5"])
    if record["nbytes"] != source.nbytes or record["md5"] != expected:
        raise OutputRefused(
            f"{source.path} has {source.nbytes} bytes"
            + (f" and should have the md5 {expected}" if source.name in sums else "")
            + f", but the pack holds a source {source.name!r} of {record['nbytes']} bytes "
            f"with the md5 {record['md5']}; rename one of them, or use another output folder"
        )
    record["md5_checked"] |= source.name in sums
    return True


def rejects_so_far(ledger: Ledger, max_rejects: int | None) -> Rejects:
    """The rejects of earlier runs; raises TooManyRejects when there are too many already."""
    rejects = Rejects(max_rejects)
    for line in ledger.rejects():
        rejects.add(line["source"], line["member"], line["detail"])
    rejects.check()
    return rejects


def versions_in_force() -> dict[str, str]:
    """What decides pixels and masks beside the options; every shard records it."""
    pil = pil_in_force()
    return {
        "sa1bpack": __version__,
        pil.package: pil.version,
        "simplejpeg": version("simplejpeg"),
    }


def _note_other_decoders(ledger: Ledger, packed_by: dict, watch: Watch) -> None:
    others = {
        tuple(sorted(shard.attributes["packed_by"].items()))
        for shard in ledger.shards.values()
        if shard.attributes["packed_by"] != packed_by
    }
    for other in sorted(others):
        was = ", ".join(f"{key} {value}" for key, value in other)
        watch.note(f"part of this pack was made with {was}; pixels may differ by rounding")
