"""`pack`: the whole run, from the arguments to the published pack."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from threading import BoundedSemaphore

from sa1bpack import __version__
from sa1bpack.environment import available_cpus, pil_in_force
from sa1bpack.errors import FormatError, OptionError, OutputRefused, SourceError
from sa1bpack.format.manifest import check_shard_name
from sa1bpack.packing.engines.inline import pack_inline
from sa1bpack.packing.engines.processes import pack_with_processes
from sa1bpack.packing.lane import MOST_IN_PUBLICATION, Lane
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.run_log import on_record
from sa1bpack.packing.sample import warm_up
from sa1bpack.packing.watch import Watch
from sa1bpack.source.find import Source, find_sources
from sa1bpack.source.md5sums import read_md5sums


@dataclass(frozen=True)
class PackResult:
    """What a run did, and what the pack holds now.

    root
        The pack's folder.
    images, masks, annotations, dropped, rejects
        Totals of the pack: samples; masks stored; masks that their records had; images left out
        because no mask of theirs was left; members in rejects.jsonl.
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
    new_images: int
    failed: dict[str, SourceError]
    notes: list[str] = field(repr=False)
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every source given is packed."""
        return not self.failed


def checked_workers(workers: int | None) -> int:
    """The number of workers asked for. Raises OptionError for fewer than one."""
    if workers is None:
        return available_cpus()
    if not isinstance(workers, int) or workers < 1:
        raise OptionError(f"workers is {workers!r}; a whole number of at least 1 is needed")
    return workers


def checked_options(options: dict) -> PackOptions:
    """PackOptions of these fields; raises OptionError also for a field that there is not."""
    known = {field.name for field in fields(PackOptions)}
    if unknown := sorted(options.keys() - known):
        raise OptionError(
            f"there is no option {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        )
    return PackOptions(**options)


def check_outside(out: Path, sources: list[Source]) -> None:
    """Raise OptionError when the pack would lie within a folder that it is made from."""
    for source in sources:
        if source.kind == "folder" and out.resolve().is_relative_to(source.path.resolve()):
            raise OptionError(
                f"{out} lies within the source {source.path}, and would be read as part of it; "
                "choose a folder outside"
            )


def sources_to_pack(sources: str | Path | Iterable[str | Path]) -> list[Source]:
    """Find the sources; raises OptionError for none, SourceError for what cannot be a source."""
    found = find_sources([sources] if isinstance(sources, str | Path) else sources)
    if not found:
        raise OptionError("no source is given; name at least one tar or folder")
    for source in found:
        try:
            check_shard_name(f"{source.name}-000", str(source.path))
        except FormatError as error:
            raise SourceError(f"{error}; shards are named after their source: rename it") from None
    return found


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
    choice = checked_options(options)
    workers = checked_workers(workers)
    if max_rejects is not None and (not isinstance(max_rejects, int) or max_rejects < 0):
        raise OptionError(f"max_rejects is {max_rejects!r}; it must be 0 or more, or None")
    found = sources_to_pack(sources)
    check_outside(Path(out), found)
    sums = _expected_sums(found, md5sums)
    warm_up(choice)
    ledger = Ledger(Path(out), choice)
    try:
        return pack_into(ledger, found, workers, sums, max_rejects, progress)
    finally:
        ledger.release()


def _expected_sums(sources: list[Source], md5sums) -> dict[str, str]:
    """Name of a source → its md5 in the list."""
    if md5sums is None:
        return {}
    sums = read_md5sums(Path(md5sums))
    tars = [source for source in sources if source.kind != "folder"]
    missing = [source.path.name for source in tars if source.path.name not in sums]
    if missing:
        raise SourceError(
            f"{md5sums} has no sum for {', '.join(missing[:5])}"
            f"{' and others' if len(missing) > 5 else ''}; complete the list, or pack without it"
        )
    return {source.name: sums[source.path.name] for source in tars}


def pack_into(
    ledger: Ledger,
    sources: list[Source],
    workers: int,
    sums: dict[str, str],
    max_rejects: int | None,
    progress: bool | None,
) -> PackResult:
    """Pack what of these sources a ledger does not have; `sums` is source name → md5 due."""
    todo = [source for source in sources if not _is_packed(source, ledger, sums)]
    watch = Watch(
        sum(source.nbytes for source in todo), len(ledger.rejects()), max_rejects, progress
    )
    packed_by = versions_in_force()
    _note_other_decoders(ledger, packed_by, watch)
    watch.check_rejects()
    ledger.publish(complete=False)  # only now: a run that is refused leaves a pack as it was
    with on_record(ledger.root, watch, workers):
        room = BoundedSemaphore(MOST_IN_PUBLICATION)
        lanes = [Lane(source, ledger, room, packed_by, sums.get(source.name)) for source in todo]
        try:
            if workers == 1:
                pack_inline(lanes, ledger.options, watch)
            elif lanes:
                pack_with_processes(lanes, ledger.options, workers, watch)
        except BaseException as error:
            for lane in lanes:
                lane.stop()
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
        new_images=watch.images,
        failed=failed,
        notes=watch.notes,
        seconds=watch.seconds,
    )


def _is_packed(source: Source, ledger: Ledger, sums: dict[str, str]) -> bool:
    """Whether the pack has all of a source; raises OutputRefused for another of that name."""
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
