"""`--dry-run`: what packing would take, extrapolated from the first pairs of the sources."""

import errno
import os
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sa1bpack import interrupts
from sa1bpack.errors import OptionError, OutputRefused, SourceError
from sa1bpack.format.arrays import group_bytes
from sa1bpack.format.layout import PIXELS, AxisLengths, Layout, image_nbytes, image_planes
from sa1bpack.format.manifest import SHARDS_NAME, shard_folders
from sa1bpack.format.working_names import TEMPORARY_PREFIX
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.packing.empty_masks import NONE_EMPTY
from sa1bpack.packing.kept_rows import bytes_of_rows
from sa1bpack.packing.options import MASKS, PRESETS, PackOptions, RunOptions
from sa1bpack.packing.pack_folder import existing_parent
from sa1bpack.packing.progress import Progress, nothing_to_do, unknown_keys_text
from sa1bpack.packing.publishers import inspect_pack
from sa1bpack.packing.requested_options import check_request
from sa1bpack.packing.sample import (
    Buffers,
    Outcome,
    PairBytes,
    attempt,
    most_image_bytes,
    require_decoder,
    warm_up,
)
from sa1bpack.packing.source_packer import readers_of
from sa1bpack.packing.source_probe import requested_options
from sa1bpack.packing.work import find_work, list_sources
from sa1bpack.paths import temporary_folder
from sa1bpack.progress import report
from sa1bpack.source.find import Source
from sa1bpack.source.folder_files import count_images
from sa1bpack.source.pairs import SPOOL_MEMORY, Pair, Reject, why_no_pairs
from sa1bpack.source.records.bare import BareReader
from sa1bpack.source.records.images import PairOptions
from sa1bpack.source.records.table import SA1B, open_pairs
from sa1bpack.source.tar import BLOCK
from sa1bpack.wording import counted, size_text, span_text

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RunKeywords

# Enough for a mean; reading that far into a tar in random order takes about a second.
PROBE_PAIRS = 24

# Writing, hashing and messages, relative to decoding (measured, docs/performance.md).
_OVERHEAD = 1.15

# Rejects that the forecast names.
_REJECTS_NAMED = 10

# A pair of a source, and the record of a mask in it, have more bytes than this, also compressed.
_LEAST_PAIR = 512
_LEAST_MASK = 64


# Memory of a run, of each tar that it reads at once, and of each worker, for images and records
# like SA-1B's (docs/packing.md, "Memory and disk").
RUN_BYTES = 250_000_000
READING_BYTES = 300_000_000
WORKER_BYTES = 140_000_000


def memory_bytes(workers: int, readings: int) -> int:
    """Memory that a run takes with this number of workers, and of tars that are read at once."""
    return RUN_BYTES + readings * READING_BYTES + workers * WORKER_BYTES


@dataclass(frozen=True)
class Forecast:
    """The space and time that packing would take, extrapolated from `probed` samples.

    Attributes:
        sources, source_bytes: number and size of the tars and folders to be packed.
        packed: number of sources skipped because they are complete in the pack.
        unreadable: name of each source at a URL that cannot be read → the error. They are not
            counted.
        begun: names of those of the `sources` that the pack holds in part; only what is missing is
            counted.
        images, masks: expected samples and stored masks.
        disk_bytes: size of the pack's files; `hole_bytes` of them are holes that a filesystem with
            sparse files does not store (the padding below images wider than tall; none with fit
            "native").
        spool_bytes: bytes of the spool: halves of pairs that wait for their other half while tars
            are read.
        free_bytes: free space where the pack would lie, including that of shards which are being
            made.
        compact_bytes: disk space that packing would take with the preset "compact", and otherwise
            these options.
        fitting: of a pack that does not fit, the layouts that would, as options of the command
            line, with the disk space of each; the largest first.
        shards: expected number of shards.
        workers, seconds: number of processes, and their wall time on this machine.
        probed, rejected: samples tried, and how many of them would be rejected.
        rejects: member → why it would be rejected, of the samples tried and of other members that
            were met on the way.
        no_pairs: why the source that was tried has no sample at all; empty if it has some.
        unknown_keys: key of the JSON records that would not be stored → number of samples tried
            whose records have it.
        notes: lines about masks without a pixel of the samples tried, and images passed over.
    """

    sources: int
    source_bytes: int
    begun: list[str]
    images: int
    masks: int
    disk_bytes: int
    hole_bytes: int
    spool_bytes: int
    free_bytes: int
    shards: int
    workers: int
    seconds: float
    probed: int
    rejected: int
    compact_bytes: int
    packed: int = 0
    unreadable: dict[str, SourceError] = field(default_factory=dict)
    rejects: dict[str, str] = field(default_factory=dict)
    no_pairs: str = ""
    fitting: tuple[str, ...] = ()
    unknown_keys: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def needed_bytes(self) -> int:
        """Disk space that packing takes."""
        return self.disk_bytes - self.hole_bytes + self.spool_bytes

    @property
    def fits(self) -> bool:
        """True if the pack fits into the free space."""
        return self.needed_bytes <= self.free_bytes

    @property
    def remedy(self) -> str:
        """The layouts that would fit, in words, and what else helps."""
        remedy = "use fewer tars or another disk, or continue with --ignore-space"
        if self.fitting:
            return f"what would fit: {'; '.join(self.fitting)}. Or {remedy}"
        return f"no layout would fit: {remedy}"

    def as_text(self) -> str:
        """The forecast in a few lines."""
        if self.sources == 0 and not self.unreadable:
            return nothing_to_do(self.packed)
        verdict = "it fits"
        if not self.fits:
            verdict = f"it DOES NOT FIT; {self.remedy}"
        lines = [
            f"sources   {self.sources:,} with {size_text(self.source_bytes)}",
            f"images    about {self.images:,}, with {self.masks:,} masks stored",
            f"disk      {size_text(self.needed_bytes)} ({size_text(self.disk_bytes)} where padding "
            f"is not stored as holes), {counted(self.shards, 'shard')}",
            f"compact   {size_text(self.compact_bytes)} with --preset compact",
            f"free      {size_text(self.free_bytes)}: {verdict}",
            f"time      about {timedelta(seconds=max(1, round(self.seconds)))} with "
            f"{counted(self.workers, 'worker')} here",
            f"measured on {counted(self.probed, 'image')}; nothing was written",
        ]
        if self.no_pairs:
            lines.append(f"no sample was met: {self.no_pairs}")
        if self.rejects:
            lines.append(f"{counted(len(self.rejects), 'member')} met so far would be rejected:")
            lines += [f"  {member}: {why}" for member, why in self._first_rejects()]
        if len(self.rejects) > _REJECTS_NAMED:
            lines.append(f"  and {len(self.rejects) - _REJECTS_NAMED:,} more")
        lines += self.notes
        if text := unknown_keys_text(self.unknown_keys, "the images tried"):
            lines.append(text)
        if self.packed:
            lines.append(f"skipped: {counted(self.packed, 'source')} already in the pack")
        if self.unreadable:
            lines.append(f"cannot be read: {counted(len(self.unreadable), 'source')}")
        if self.begun:
            lines.append(f"packed in part, and counted here without that: {span_text(self.begun)}")
        return "\n".join(lines)

    def _first_rejects(self) -> list[tuple[str, str]]:
        return [*self.rejects.items()][:_REJECTS_NAMED]


@checks_options
@takes_options(PackOptions, RunOptions)
def estimate(
    sources: str | Path | Iterable[str | Path], output: str | Path, **options: Unpack["RunKeywords"]
) -> Forecast:
    """Estimate what `pack` with the same arguments would take; writes nothing.

    Of sources that the pack there holds, complete or in part, only what is missing is counted.
    Decodes the first pairs of the first source and extrapolates by bytes.

    No md5 is computed or compared.

    Args:
        sources, output: as for `pack`.

    Raises:
        Whatever `pack` would raise before it starts to read: for unusable options and sources, a
            folder that is in use, cannot be written, or holds something else, a damaged pack, or
            one with other options.

    Examples:
        >>> forecast = sa1bpack.estimate("tests/samples/sa_000000.tar", "another")
        >>> forecast.images, forecast.masks, forecast.disk_bytes
        (3, 270, 12354584)
    """
    require_decoder()
    request = check_request(sources, output, options)
    run_options = request.run_options
    ledger = inspect_pack(request.output, requested_options(request))
    _check_writable(request.output)
    work = find_work(ledger, list_sources(request), run_options.records_md5)
    Progress(0, run_options.max_rejects, ledger.rejects(), progress=False)  # raises as a run would
    if ledger.taken_options:
        report(ledger.taken_options)
    warm_up(ledger.options)
    probe = _Probe(next(iter(work.new), None), ledger.options, run_options.annotations)
    forecast = _forecast(request.output, run_options, work.new, probe)
    return replace(forecast, packed=work.packed_before, unreadable=work.unreadable)


def _check_writable(output: Path) -> None:
    """Raise PermissionError if the run could not write into the folder of the pack."""
    for folder in (existing_parent(output), existing_parent(output / SHARDS_NAME)):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def check_room(
    output: Path,
    pack_options: PackOptions,
    run_options: RunOptions,
    sources: Sequence[Source],
    shards_at_once: int | None = None,
) -> None:
    """Raise OutputRefused if the disk has no room for what is left of these sources to pack.

    The first images of one source are decoded, unless the disk has room for whatever tars of that
    size can hold. A source that cannot be read is left to the run.

    Args:
        output: folder of the pack.
        pack_options, run_options: the options of the run.
        sources: sources that are not complete in the pack; for a job in parts, those of all parts.
        shards_at_once: number of shards that are on the disk at once, if they go to an object
            store; None: all.
    """
    if run_options.ignore_space or _certainly_fits(output, pack_options.layout, sources):
        return
    for source in sources:
        with suppress(SourceError):
            probe = _Probe(source, pack_options, run_options.annotations)
            forecast = _forecast(output, run_options, sources, probe)
            _refuse_if_too_large(output, forecast, shards_at_once)
            return


def _certainly_fits(output: Path, layout: Layout, sources: Sequence[Source]) -> bool:
    """True if the disk has room for whatever tars of this size can hold."""
    nbytes = sum(source.nbytes for source in sources)
    mask_bytes = 0
    if layout.bits:
        mask_bytes = layout.array("mask_bits").row_bytes
    images = nbytes // _LEAST_PAIR * most_image_bytes(layout)
    masks = nbytes // _LEAST_MASK * mask_bytes
    return images + masks + 64 * nbytes <= _free_bytes(output)


def _refuse_if_too_large(output: Path, forecast: Forecast, shards_at_once: int | None) -> None:
    """Raise OutputRefused if a pack, or what is staged of it at once, does not fit."""
    needed = forecast.needed_bytes
    remedy = forecast.remedy
    text = f"packing takes about {size_text(needed)} more"
    if shards_at_once is not None:
        needed = int(min(1.0, shards_at_once / max(forecast.shards, 1)) * needed)
        text = f"staging takes about {size_text(needed)}, {shards_at_once} shards"
        remedy = (
            "make shards smaller (--samples-per-shard), use another disk, or continue with "
            "--ignore-space"
        )
    elif forecast.compact_bytes < needed:
        text += f" ({size_text(forecast.compact_bytes)} with --preset compact)"
    if needed > forecast.free_bytes:
        raise OutputRefused(
            f"{output}: {text}, and {size_text(forecast.free_bytes)} are free there; {remedy}"
        )


def _forecast(
    output: Path, run_options: RunOptions, sources: Sequence[Source], probe: "_Probe"
) -> Forecast:
    """The forecast for what these sources have that no published shard holds yet."""
    options = probe.options
    published = Counter(folder.name.rpartition("-")[0] for folder in shard_folders(output))
    shards = 0
    images = 0
    for source in sources:
        missing = probe.images_of(source) - published[source.name] * options.pairs_per_shard
        if missing > 0:
            images += missing
            shards += -(-missing // options.pairs_per_shard)
    disk_bytes, hole_bytes = probe.disk_bytes(options.layout, images)
    compact = replace(options, **PRESETS["compact"])
    compact_bytes, compact_holes = probe.disk_bytes(compact.layout, images)
    spool_bytes = _spool_bytes(sources, readers_of(run_options, sources))
    free_bytes = _free_bytes(output)
    fitting: list[str] = []
    if disk_bytes - hole_bytes + spool_bytes > free_bytes:
        fitting = _fitting_layouts(probe, images, spool_bytes, free_bytes)
    seconds_per_image = probe.seconds / max(1, probe.pairs)
    return Forecast(
        sources=len(sources),
        source_bytes=sum(source.nbytes for source in sources),
        begun=[source.name for source in sources if published[source.name]],
        images=images,
        masks=probe.scaled(images, options.layout).masks,
        disk_bytes=disk_bytes,
        hole_bytes=hole_bytes,
        spool_bytes=spool_bytes,
        free_bytes=free_bytes,
        shards=shards,
        workers=run_options.worker_count,
        seconds=images * seconds_per_image * _OVERHEAD / run_options.worker_count,
        probed=probe.pairs,
        rejected=probe.rejected,
        compact_bytes=compact_bytes - compact_holes + spool_bytes,
        rejects=probe.rejects,
        no_pairs=probe.no_pairs,
        fitting=tuple(fitting),
        unknown_keys=dict(sorted(probe.unknown_keys.items())),
        notes=probe.notes + probe.empty_masks.lines("the images tried"),
    )


def _spool_bytes(sources: Sequence[Source], readers: int) -> int:
    """The most that halves of pairs take on the disk, in tars whose members are in any order."""
    tars = [source for source in sources if source.kind not in ("folder", "parquet")]
    waiting = sorted(source.nbytes // 4 for source in tars)
    return sum(max(0, nbytes - SPOOL_MEMORY) for nbytes in waiting[-readers:])


def _fitting_layouts(probe: "_Probe", images: int, spool_bytes: int, free_bytes: int) -> list[str]:
    """The layouts that would fit, as options of the command line, the largest first."""
    options = probe.options
    fitting = []
    for fit, pixels, masks in product({options.fit: 0, "native": 0}, PIXELS, MASKS):
        try:
            layout = replace(options, fit=fit, pixels=pixels, masks=masks).layout
        except OptionError:  # such as planes on a canvas of an odd size
            continue
        nbytes, hole_bytes = probe.disk_bytes(layout, images)
        needed = nbytes - hole_bytes + spool_bytes
        if needed <= free_bytes:
            flags = ""
            for name, value in (("fit", fit), ("pixels", pixels), ("masks", masks)):
                if value != getattr(options, name):
                    flags += f"--{name} {value} "
            fitting.append((needed, f"{flags}({size_text(needed)})"))
    fitting.sort(reverse=True)
    return [text for _, text in fitting]


def _free_bytes(output: Path) -> int:
    """Free bytes where a pack is, or would be, counting those of shards that are being made."""
    free = shutil.disk_usage(existing_parent(output)).free
    for temporary in (output / SHARDS_NAME).glob(f"{TEMPORARY_PREFIX}*"):
        # os.walk passes over folders that another part's process has just moved; glob does not.
        for folder, _, names in os.walk(temporary):
            for name in names:
                with suppress(FileNotFoundError):
                    free += Path(folder, name).stat().st_blocks * 512
    return free


class _Probe:
    """The space and time that the first pairs of a source take.

    Attributes:
        options: options of the pack.
        pairs, rejected: number of pairs that were tried, and of those that are rejected.
        rejects: member → why it is rejected, of these and of other members that were met.
        no_pairs: why the source has no pair; empty if it has some.
        unknown_keys: key that is not stored → number of records tried that have it.
        empty_masks: those of their masks that have no pixel.
        lengths: rows of the packed ones, with runs, and without images.
        tar_bytes, seconds: bytes and time of all that were tried.
        sizes: stored height and width of each packed image.
        kept_bytes: bytes of the values that are kept of their records.
        all_images: all files of a folder that are named like images are packed.
        notes: lines on images that are passed over.
    """

    def __init__(self, source: Source | None, options: PackOptions, annotations: Path | None):
        """Decode the first pairs, if there is a source, whose records are in `annotations`, if any.

        Raises SourceError if it cannot be read.
        """
        self.options = options
        self.pairs = 0
        self.rejected = 0
        self.tar_bytes = 0
        self.seconds = 0.0
        self.lengths = AxisLengths()
        self.sizes: list[tuple[int, int]] = []
        self.rejects: dict[str, str] = {}
        self.no_pairs = ""
        self.unknown_keys: Counter[str] = Counter()
        self.empty_masks = NONE_EMPTY
        self.kept_bytes = 0
        self.all_images = True
        self.notes: list[str] = []
        if source is not None:
            self._decode_first_pairs(source, annotations)

    def _decode_first_pairs(self, source: Source, annotations: Path | None) -> None:
        options = self.options
        if not options.layout.runs:  # which other layouts would store
            options = replace(options, masks="bits+runs")
        buffers = Buffers(options)
        reading = PairOptions(
            spool_dir=temporary_folder(),
            annotations=annotations,
            keys=options.keys,
        )
        with open_pairs(source, str(options.records), reading) as reader:
            for pair in islice(reader, PROBE_PAIRS):
                interrupts.check()
                self.pairs += 1
                self.tar_bytes += _bytes_in_source(source, pair, str(options.records))
                started = time.perf_counter()
                pair_bytes = PairBytes(pair.file_name, pair.jpeg, pair.json)
                outcome = attempt(pair_bytes, options, buffers)
                self.seconds += time.perf_counter() - started
                self._count(outcome)
            for reject in reader.rejects:
                member = reject.member.removeprefix("./")
                self.rejects[member] = f"{reject.code}: {reject.detail}"
            if isinstance(reader, BareReader):
                self.all_images = reader.all_images
                self.notes = reader.described().get("lost", [])
            if self.pairs == 0:
                codes = {reject.code for reject in reader.rejects}
                self.no_pairs = why_no_pairs(reader.ignored_names, codes)

    def _count(self, outcome: Outcome) -> None:
        if isinstance(outcome, Reject):
            self.rejected += 1
            self.rejects[outcome.member] = f"{outcome.code}: {outcome.detail}"
        elif outcome is not None:
            self.unknown_keys.update(outcome.unknown_keys)
            self.empty_masks += outcome.empty_masks
            self.lengths += outcome.lengths
            self.kept_bytes += bytes_of_rows(self.options.kept_keys, outcome.kept_rows)
            _, _, height, width = outcome.rows["size"][0].tolist()
            self.sizes.append((height, width))

    def images_of(self, source: Source) -> int:
        """Number of images that a source makes, as those that were tried suggest."""
        if not self.sizes:
            return 0
        pairs = max(1, round(source.nbytes * self.pairs / self.tar_bytes))
        if self.options.records != SA1B and source.kind == "folder":  # which holds annotations, too
            pairs = count_images(source.local_path, self.all_images)
        return max(1, round(pairs * len(self.sizes) / self.pairs))

    def scaled(self, images: int, layout: Layout) -> AxisLengths:
        """The lengths of this number of samples in a layout, as those that were tried suggest."""
        factor = images / max(1, len(self.sizes))
        runs = 0
        if layout.runs:
            runs = self.lengths.runs
        image_bytes = 0
        if layout.flat:
            image_bytes = sum(image_nbytes(layout, *size) for size in self.sizes)
        return AxisLengths(
            samples=images,
            masks=round(factor * self.lengths.masks),
            runs=round(factor * runs),
            image_bytes=round(factor * image_bytes),
        )

    def disk_bytes(self, layout: Layout, images: int) -> tuple[int, int]:
        """Bytes of the files of this number of samples, and how many of them are never written."""
        hole_bytes = 0
        if not layout.flat:
            for height, _ in self.sizes:
                hole_bytes += image_nbytes(layout, 0, 0)
                for plane in image_planes(layout, height, layout.image_size):
                    hole_bytes -= plane.shape[0] * plane.stride
        hole_bytes = round(hole_bytes * images / max(1, len(self.sizes)))
        kept_bytes = round(self.kept_bytes * images / max(1, len(self.sizes)))
        return group_bytes(layout.array_rows(self.scaled(images, layout))) + kept_bytes, hole_bytes


def _bytes_in_source(source: Source, pair: Pair, records: str) -> int:
    """The bytes that a pair takes in its source, with its headers in a tar."""
    if records != SA1B:  # a source has the bytes of its images, nearly
        return len(pair.jpeg)
    nbytes = len(pair.jpeg) + len(pair.json)
    if source.kind == "gzip-tar":
        nbytes = len(pair.jpeg) + len(zlib.compress(pair.json, 1))
    if source.kind == "tar":
        nbytes += 4 * BLOCK
    return nbytes
