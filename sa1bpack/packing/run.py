"""`pack`, `pack_part` and `finalize`: complete runs, from the arguments to what is published."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sa1bpack import interrupts
from sa1bpack.arguments import Share, part_of_job, share_of
from sa1bpack.errors import OptionError, PackError, SourceError
from sa1bpack.format.manifest import PARTS_NAME, Manifest, identity_text
from sa1bpack.format.removal import remove_published
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.masks.select import left_out_text
from sa1bpack.packing.estimate import check_room
from sa1bpack.packing.ledger import Ledger
from sa1bpack.packing.options import PackOptions, RunOptions
from sa1bpack.packing.progress import Progress, log_run, unknown_keys_text
from sa1bpack.packing.publishers import FolderPublisher, Publisher, folder_publisher, part_publisher
from sa1bpack.packing.records import (
    PackJob,
    SourceNote,
    note_path,
    read_jobs,
    read_own_manifest,
    read_source_notes,
)
from sa1bpack.packing.requested_options import RequestedOptions, check_request
from sa1bpack.packing.sample import require_decoder, versions_in_force, versions_text, warm_up
from sa1bpack.packing.source_packer import pack_sources
from sa1bpack.packing.source_probe import requested_options
from sa1bpack.packing.work import Work, find_work, list_sources
from sa1bpack.paths import is_folder, local_path
from sa1bpack.progress import ProgressOption, check_progress, report
from sa1bpack.source.find import Source
from sa1bpack.source.records.coco_file import forget_coco_file
from sa1bpack.urls import is_store_url, scheme_of, shown
from sa1bpack.wording import counted, span_text

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RunKeywords

_NO_PARTS_AT_URLS = (
    "parts of a job share a folder, whose files they lock: finalize it on a disk, and upload it; "
    "or pack into the bucket without --part"
)


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The totals of a pack.

    Attributes:
        root: folder of the pack.
        images, masks, annotations, dropped, rejects: number of samples; of masks stored; of masks
            in their records; of images dropped because no masks remained; of members in
            rejects.jsonl.
        identity: the digests of its tars that the pack records, in words.
        left_out: number of masks of its images that the pack does not hold, and the options that
            left them out, in words; empty if it holds all.
        bytes: size of the files of the shards, with holes counted.
        reasons: code of a reason → how many members were rejected for it.
    """

    root: Path
    images: int
    masks: int
    annotations: int
    dropped: int
    rejects: int
    identity: str
    left_out: str = ""
    bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def totals_of(root: Path, manifest: Manifest) -> dict[str, Any]:
    """The fields of Totals, from the manifest of the pack at `root`."""
    counts = manifest.counts
    reasons = {}
    for name, count in counts.items():
        if name.startswith("rejects:"):
            reasons[name.removeprefix("rejects:")] = count
    return {
        "root": root,
        "images": manifest.samples,
        "masks": manifest.masks,
        "annotations": counts["annotations"],
        "dropped": counts["dropped_images"],
        "rejects": counts["rejects"],
        "identity": identity_text(manifest.sources),
        "left_out": left_out_text(manifest.options, counts, manifest.masks),
        "bytes": sum(map(attrgetter("bytes"), manifest.shards)),
        "reasons": reasons,
    }


@dataclass(frozen=True, kw_only=True)
class PackResult(Totals):
    """The outcome of a run, and the totals of the pack now.

    Attributes:
        root: folder of the pack.
        images, masks, annotations, dropped, rejects: totals of the pack: samples; masks stored;
            masks in their records; images dropped because no masks remained; members in
            rejects.jsonl.
        sources, packed_before: number of sources given, and of those that were complete in the pack
            before the run.
        new_images: samples that this run decoded.
        failed: name of each source that was given up → the error. Empty when the pack is complete.
        identity: the digests of its tars that the pack records, in words.
        left_out: number of masks of its images that the pack does not hold, and the options that
            left them out, in words; empty if it holds all.
        bytes: size of the files of the shards, with holes counted.
        reasons: code of a reason → how many members were rejected for it.
        notes: messages that were shown to the user during the run.
        unknown_keys: key of the JSON records that is not stored, such as "annotations.caption" →
            number of images that this run decoded whose records have it. If a record has more than
            64 such keys, the first 64 in alphabetical order count, and "...".
        seconds: wall time.
        url: URL of the pack in an object store, if it was uploaded; `root` is its staging folder.

    Examples:
        >>> result = sa1bpack.pack("tests/samples/sa_000000.tar", "packed", workers=1)
        >>> result.images, result.new_images, result.failed, result.complete
        (3, 0, {}, True)
    """

    sources: int
    packed_before: int
    new_images: int
    failed: dict[str, SourceError]
    notes: list[str] = field(repr=False)
    seconds: float
    url: str | None = None
    unknown_keys: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if every source given is packed."""
        return not self.failed


@checks_options
@takes_options(PackOptions, RunOptions)
def pack(
    sources: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    staging: str | Path | None = None,
    progress: ProgressOption = None,
    **options: Unpack["RunKeywords"],
) -> PackResult:
    """Pack SA-1B tars (or extracted folders) into shards under `output`.

    Called again, it resumes after the last complete shard, and adds sources that the pack does not
    have yet. Options that decide the bytes of a pack, and are left out, are those of the pack that
    `output` holds; defaults are for a new one.

    A source that cannot be read is given up and named in the result's `failed`; the others are
    packed. After an error, what was published stays, and nothing unfinished has a final name.

    Args:
        sources: paths or glob patterns of tars, folders and Parquet files, and URLs of tars: https,
            and s3 and gs, which may be patterns. A tar at a URL is read once, as a stream; a stream
            that breaks off is continued at its byte. No request is made for those that the pack
            holds completely.
        output: folder of the pack; created if it does not exist. Or the URL of one in an object
            store, s3 or gs, with `staging`.
        staging: local folder in which the pack for an object store is made, shard by shard. Shards
            leave it once they are uploaded: room for four is enough. It has what a repeated run
            needs to continue.
        progress: show a bar on stderr; or a function that is called as function(bytes done, all
            bytes) of the sources, by one thread at a time. Default: a bar if stderr is a terminal.

    Raises:
        OptionError: a value that cannot be used.
        SourceError: no source was found, or the list has no sum for one.
        PackError: the run cannot start or continue: OutputRefused if the disk has no room,
            OutputLocked, OptionsDiffer if an option is given that the pack was not made with,
            TooManyRejects, or a worker that cannot start.
        FormatError: the pack in `output` is damaged.
        MissingPackage: PIL is not installed, or the packages for an object store are not.
        StoreError: the object store of `output` fails.
        OSError: the disk fails.

    Examples:
        >>> result = sa1bpack.pack("tests/samples/sa_000000.tar", "packed", workers=1)
        >>> result.images, result.masks
        (3, 270)
    """
    check_progress(progress)
    require_decoder()
    url: str | None = None  # of an object store
    if isinstance(output, str) and is_store_url(output):
        url = output
    if (url is None) != (staging is None):
        shown_output = str(output) if url is None else shown(url)
        raise OptionError(
            f"output is {shown_output!r}: name a folder as `staging` if the pack is to be uploaded "
            "to the URL of an object store, and only then"
        )
    folder = output
    if staging is not None:
        folder = staging
    request = check_request(sources, folder, options)
    if url is None:
        opened = folder_publisher(request.output, requested_options(request))
    else:
        opened = scheme_of(url).bucket_publisher(url, request.output, requested_options(request))
    run_options = request.run_options
    with opened as publisher:
        named = list_sources(request)
        work = find_work(publisher.ledger, named, run_options.records_md5)
        result = run_work(publisher, run_options, work, work.new, progress)
        notes = publisher.ledger.findings(publisher.root)
    for note in notes:
        report(note)
    result.notes.extend(notes)
    _report_unknown_keys(result)
    if url is not None:
        result = replace(result, url=shown(url), root=request.output)
    return result


@checks_options
@takes_options(PackOptions, RunOptions)
def pack_part(
    sources: str | Path | Iterable[str | Path],
    output: str | Path,
    part: tuple[int, int],
    *,
    progress: ProgressOption = None,
    **options: Unpack["RunKeywords"],
) -> PackResult:
    """Pack every N-th of the sources into `output`, which other parts pack into at the same time.

    When all parts are done, `finalize` makes their shards one pack. It has the same bytes as if
    `pack` had made it of all sources. A part may run at any time, again after it was killed or on
    another machine, and beside others of the same sources: a shard that another process has
    published meanwhile stays, and this one's is discarded.

    The result's totals are those of the sources of the part; one that cannot be read is named in
    `failed`, and recorded for `finalize`.

    The disk must have room for what is left of the whole job; the part ends when more members of
    its own sources than `max_rejects` are rejected.

    Args:
        sources: all sources of the job, the same for every part.
        output: folder of the pack, on a disk that all parts share; created if it does not exist.
        part: (K, N): the K-th of N parts, K from 1 on, packs every N-th source by name, from the
            K-th on.
        progress: as in `pack`.

    Raises:
        OutputLocked: another command than a part works there.
        Whatever else `pack` raises.

    Examples:
        >>> for k in (1, 2):
        ...     done = sa1bpack.pack_part("tests/samples/*.tar", "job", (k, 2), workers=1)
        >>> sa1bpack.finalize("job").complete
        True
    """
    check_progress(progress)
    share = part_of_job(part)
    require_decoder()
    request = check_request(sources, output, options)
    run_options = request.run_options
    with part_publisher(request.output, requested_options(request)) as publisher:
        named = list_sources(request)
        job = PackJob(parts=share[1], sources=tuple(source.name for source in named))
        publisher.take_part(job, share_of(job.sources, share))
        mine = share_of(named, share)
        work = find_work(publisher.ledger, mine, run_options.records_md5)
        # The disk must have room for the other parts, too, as far as sizes are known.
        need_room = list(work.new)
        for source in named:
            if source not in mine and source.kind != "remote":
                need_room.append(source)
        result = run_work(publisher, run_options, work, need_room, progress)
    _report_unknown_keys(result)
    return result


def _report_unknown_keys(result: PackResult) -> None:
    """Tell the user which keys of the records are not stored, if there are any."""
    text = unknown_keys_text(result.unknown_keys, "this run")
    if text is not None:
        report(text)
        result.notes.append(text)


def run_work(
    publisher: Publisher,
    options: RunOptions,
    work: Work,
    need_room: Sequence[Source],
    progress: ProgressOption,
) -> PackResult:
    """Pack what there is to do, and publish it.

    Args:
        publisher: the publisher of the pack.
        options: the options of the run.
        work: what there is to do.
        need_room: the sources that the disk must have room for, unless the options say otherwise.
        progress: as in `pack`.

    Raises:
        What `pack` raises.
    """
    ledger = publisher.ledger
    if work.sources:
        warm_up(ledger.options)
    check_room(publisher.root, ledger.options, options, need_room, publisher.shards_at_once)
    total = sum(source.nbytes for source in work.sources)
    counts = Progress(total, options.max_rejects, ledger.rejects(), progress)
    _note_state(ledger, counts)
    publisher.begin()  # only now: a refused run leaves a pack as it was
    outcome = "finished"
    try:
        interrupts.check()
        failed = work.unreadable | pack_sources(publisher, work.sources, options, counts)
        for source in work.sources:
            if source.name not in failed and source.name not in ledger.sources:
                raise PackError(f"{source.path}: not recorded as packed; repeat the command")
    except BaseException as error:
        outcome = f"stopped by {type(error).__name__}"
        try:
            publisher.publish()
        except OSError as second:  # on a failing disk; the next run brings it up to date
            error.add_note(f"the manifest could not be written either: {second}")
        raise
    finally:
        counts.close()
        forget_coco_file()
        log_run(publisher.root, counts, options.worker_count, outcome)
    interrupts.check()
    manifest = publisher.finish(failed)
    for line in counts.empty_masks.lines("this run"):
        counts.note(line)
    return pack_result(totals_of(publisher.root, manifest), work, failed, counts)


def pack_result(
    totals: Mapping[str, Any], work: Work, failed: dict[str, SourceError], counts: Progress
) -> PackResult:
    """The result of a run.

    Args:
        totals: the fields of Totals, of the pack now.
        work: what there was to do.
        failed: name → error, of the sources that were given up.
        counts: what was counted.
    """
    return PackResult(
        **totals,
        sources=work.named,
        packed_before=work.packed_before,
        new_images=counts.images,
        failed=failed,
        notes=counts.notes,
        seconds=counts.seconds,
        unknown_keys=dict(sorted(counts.unknown_keys.items())),
    )


def _note_state(ledger: Ledger, counts: Progress) -> None:
    """Tell the user what a pack lacks, and what made it: its options, and other versions."""
    if ledger.taken_options:
        counts.note(ledger.taken_options)
    for shortfall in ledger.shortfalls.values():
        counts.note(f"{shortfall}; what is missing is packed again from the tar, if it is given")
    packed_by = versions_in_force()
    others = set()
    for shard in ledger.shards.values():
        if shard.attributes["packed_by"] != packed_by:
            others.add(versions_text(shard.attributes["packed_by"]))
    for other in sorted(others):
        counts.note(f"part of this pack was made with {other}; pixels may differ by rounding")


@dataclass(frozen=True, kw_only=True)
class FinalizeResult(Totals):
    """The totals of a pack now, and what its job lacks.

    Attributes:
        root: folder of the pack.
        images, masks, annotations, dropped, rejects: totals of the pack, as in PackResult.
        sources: number of sources that the pack holds to their end.
        missing: name of each other source of the job → why it is missing.
        parts: parts (K, N) to be repeated, of the job begun last: those that have the missing
            sources.
        known: it is known which sources belong to the pack: from the parts of a job, or because it
            was complete before.
        identity: the digests of its tars that the pack records, in words.
        left_out: number of masks of its images that the pack does not hold, and the options that
            left them out, in words; empty if it holds all.
        bytes: size of the files of the shards, with holes counted.
        reasons: code of a reason → how many members were rejected for it.
        notes: duplicate sources and image ids, and shards that were removed.

    Examples:
        >>> for k in (1, 2):
        ...     done = sa1bpack.pack_part("tests/samples/*.tar", "job", (k, 2), workers=1)
        >>> result = sa1bpack.finalize("job")
        >>> result.complete, result.parts, result.missing
        (True, (), {})
    """

    sources: int
    missing: dict[str, str]
    parts: tuple[tuple[int, int], ...]
    known: bool
    notes: list[str]

    @property
    def complete(self) -> bool:
        """True if every source of the job is packed to its end."""
        return self.known and not self.missing


@checks_options
def finalize(pack: str | Path) -> FinalizeResult:
    """Make one pack of the shards that the parts of a job (`pack_part`) have published there.

    Writes index, rejects.jsonl, manifest and checksums. If sources are missing, the pack holds the
    others, its manifest says that it is not complete, and the result names them; repeat their parts
    and then the call. Shards of a source whose bytes were found to be wrong are removed.

    Reads no tar. If it is killed, at any moment, repeat the call.

    Raises:
        NotAPack, FormatError: the pack is damaged.
        OutputLocked: a part or another command works on it.
        VersionError: the pack has a newer version.
        OSError: the disk fails.

    Examples:
        >>> sa1bpack.finalize("packed").missing
        {}
    """
    root = local_path("pack", pack, _NO_PARTS_AT_URLS)
    manifest = read_own_manifest(root)
    parts_folder = root / PARTS_NAME
    with folder_publisher(root, RequestedOptions()) as publisher:
        ledger = publisher.ledger
        jobs = read_jobs(root)
        source_notes = read_source_notes(root)
        if manifest.says_complete and is_folder(parts_folder):
            publisher.publish()  # a complete one must match its checksums all the time
        notes = _withdraw_corrupt(publisher, source_notes)
        expected = {source for source, _ in ledger.shards}
        expected |= source_notes.keys() | ledger.shortfalls.keys()
        for job in jobs:
            expected.update(job.sources)
        missing = {}
        for name in sorted(expected - ledger.sources.keys()):
            missing[name] = _why_missing(ledger, name, source_notes.get(name))
        known = bool(jobs) or manifest.says_complete
        complete = known and not missing
        published = publisher.publish(complete=complete)
        if complete and is_folder(parts_folder):
            remove_published(parts_folder)
        for name in ledger.sources:  # what names the missing ones stays
            note_path(root, name).unlink(missing_ok=True)
        return FinalizeResult(
            **totals_of(root, published),
            sources=len(ledger.sources),
            missing=missing,
            parts=_parts_to_repeat(jobs, missing),
            known=known,
            notes=notes + ledger.findings(root),
        )


def _withdraw_corrupt(
    publisher: FolderPublisher, source_notes: Mapping[str, SourceNote]
) -> list[str]:
    """Withdraw the shards of sources whose bytes are wrong; returns lines for the user."""
    lines = []
    for name, note in source_notes.items():
        is_packed = name in publisher.ledger.sources
        if note.corrupt and not is_packed and publisher.ledger.shards_of(name):
            count = counted(publisher.withdraw(name), "shard")
            lines.append(f"{name}: its bytes are wrong; {count} withdrawn")
    return lines


def _why_missing(ledger: Ledger, name: str, note: SourceNote | None) -> str:
    """Why a source is not packed to its end, in words."""
    if note is not None and note.record is None:
        return f"given up: {note.error}"
    if name in ledger.shortfalls:
        return f"{ledger.shortfalls[name]}; pack it again, as before"
    shards = {shard.entry.name for shard in ledger.shards_of(name).values()}
    listed = {shard for shard in ledger.listed if shard.rpartition("-")[0] == name}
    gone = sorted(listed - shards)
    if gone:
        return f"{span_text(gone)}, which the pack had, is gone; pack it again, as before"
    if shards:
        return f"packed in part, {counted(len(shards), 'shard')}"
    return "no shard is published"


def _parts_to_repeat(jobs: Sequence[PackJob], missing: Container[str]) -> tuple[Share, ...]:
    """The parts of the job begun last that have missing sources."""
    parts = set()
    for job in jobs[-1:]:
        for row, name in enumerate(job.sources):
            if name in missing:
                parts.add((row % job.parts + 1, job.parts))
    return tuple(sorted(parts))
