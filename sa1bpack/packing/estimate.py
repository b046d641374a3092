"""`--dry-run`: what packing would take, extrapolated from the first pairs of the sources."""

import os
import shutil
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sa1bpack import interrupts
from sa1bpack.errors import OutputRefused, SourceError
from sa1bpack.format.arrays import group_bytes
from sa1bpack.format.files import TEMPORARY_PREFIX
from sa1bpack.format.layout import AxisLengths, Layout, image_nbytes, image_planes
from sa1bpack.format.manifest import SHARDS_NAME, shard_folders
from sa1bpack.keywords import checks_options, takes_options
from sa1bpack.packing.ledger import sources_to_pack
from sa1bpack.packing.options import PRESETS, PackOptions, Request, RunOptions, checked_request
from sa1bpack.packing.pack_folder import existing_parent
from sa1bpack.packing.progress import Progress, nothing_to_do, unknown_keys_text
from sa1bpack.packing.publishers import inspect_pack
from sa1bpack.packing.sample import Buffers, Packed, attempt, most_image_bytes, warm_up
from sa1bpack.packing.source_packer import readers_of
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import SPOOL_MEMORY, PairReader, Reject, why_no_pairs
from sa1bpack.wording import counted, size_text, span_text

if TYPE_CHECKING:
    from sa1bpack.option_keywords import RunKeywords

# Enough for a mean; reading that far into a tar in random order takes about a second.
PROBE_PAIRS = 24

# Writing, hashing and messages, relative to decoding (measured, docs/performance.md).
_OVERHEAD = 1.15

_REMEDY = "use fewer tars or another disk, or continue with --ignore-space"

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
        shards: expected number of shards.
        workers, seconds: number of processes, and their wall time on this machine.
        probed, rejected: samples tried, and how many of them would be rejected.
        rejects: member → why it would be rejected, of the samples tried and of other members that
            were met on the way.
        no_pairs: why the source that was tried has no sample at all; empty if it has some.
        unknown_keys: key of the JSON records that would not be stored → number of samples tried
            whose records have it.
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
    unknown_keys: dict[str, int] = field(default_factory=dict)

    @property
    def needed_bytes(self) -> int:
        """Disk space that packing takes."""
        return self.disk_bytes - self.hole_bytes + self.spool_bytes

    @property
    def fits(self) -> bool:
        """True if the pack fits into the free space."""
        return self.needed_bytes <= self.free_bytes

    def as_text(self) -> str:
        """The forecast in a few lines."""
        if self.sources == 0 and not self.unreadable:
            return nothing_to_do(self.packed)
        verdict = "it fits" if self.fits else f"it DOES NOT FIT; {_REMEDY}"
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


@checks_options(out="output", select="mask_select")
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
        (3, 203, 11822090)
    """
    request = checked_request(sources, output, options)
    ledger = inspect_pack(request.output, request.options)
    todo, unreadable = sources_to_pack(ledger, request)
    todo = [source for source in todo if source.name not in ledger.sources]
    # Raises if there are too many.
    Progress(0, request.max_rejects, ledger.rejects(), progress=False)
    warm_up(request.options)
    probe = _Probe(todo[0] if todo else None, request.options)
    return replace(
        _forecast(request, todo, probe),
        packed=len(request.sources) - len(todo) - len(unreadable),
        unreadable=unreadable,
    )


def check_room(request: Request, sources: list[Source], shards: int | None = None) -> None:
    """Raise OutputRefused if the disk has no room for what is left of these sources to pack.

    The first images of one source are decoded, unless the disk has room for whatever tars of that
    size can hold. A source that cannot be read is left to the run.

    Args:
        request: the run's request.
        sources: sources that are not complete in the pack; for a job in parts, those of all parts.
        shards: number of shards that are on the disk at once, if they go to an object store; None:
            all.
    """
    if request.ignore_space or not sources:
        return
    options = request.options
    free = _free_bytes(request.output)
    row_bytes = options.layout.array("mask_bits").row_bytes if options.layout.bits else 0
    nbytes = sum(map(attrgetter("nbytes"), sources))
    most = nbytes // _LEAST_PAIR * most_image_bytes(options.layout)
    if most + nbytes // _LEAST_MASK * row_bytes + 64 * nbytes <= free:
        return
    for source in sources:
        with suppress(SourceError):
            forecast = _forecast(request, sources, _Probe(source, options))
            needed = forecast.needed_bytes
            remedy = _REMEDY
            takes = f"packing takes about {size_text(needed)} more"
            if shards is not None:
                needed = int(min(1.0, shards / max(forecast.shards, 1)) * needed)
                takes = f"staging takes about {size_text(needed)}, {shards} shards"
                remedy = f"make shards smaller (--samples-per-shard), {_REMEDY}"
            elif forecast.compact_bytes < needed:
                takes += f" ({size_text(forecast.compact_bytes)} with --preset compact)"
            if needed > forecast.free_bytes:
                raise OutputRefused(
                    f"{request.output}: {takes}, and {size_text(forecast.free_bytes)} are free "
                    f"there; {remedy}"
                )
            return


def _forecast(request: Request, sources: list[Source], probe: "_Probe") -> Forecast:
    """The forecast for what these sources have that no published shard holds yet."""
    options = request.options
    published = Counter(folder.name.rpartition("-")[0] for folder in shard_folders(request.output))
    per_shard = options.samples_per_shard
    shards = images = 0
    for source in sources if probe.sizes else ():
        pairs = max(1, round(source.nbytes * probe.pairs / probe.tar_bytes))
        whole = max(1, round(pairs * len(probe.sizes) / probe.pairs))
        left = max(0, whole - published[source.name] * per_shard)
        images = images + left
        shards = shards + -(-left // per_shard)
    disk_bytes, hole_bytes = probe.disk_bytes(options.layout, images)
    compact, holes = probe.disk_bytes(replace(options, **PRESETS["compact"]).layout, images)
    # Halves of pairs wait on the disk, in tars whose members are in any order.
    waiting = sorted(source.nbytes // 4 for source in sources if source.kind != "folder")
    spool_bytes = sum(max(0, each - SPOOL_MEMORY) for each in waiting[-readers_of(request) :])
    return Forecast(
        sources=len(sources),
        source_bytes=sum(source.nbytes for source in sources),
        begun=[source.name for source in sources if published[source.name]],
        images=images,
        masks=probe.scaled(images, options.layout).masks,
        disk_bytes=disk_bytes,
        hole_bytes=hole_bytes,
        spool_bytes=spool_bytes,
        free_bytes=_free_bytes(request.output),
        shards=shards,
        workers=request.workers,
        seconds=images * probe.seconds / max(1, probe.pairs) * _OVERHEAD / request.workers,
        probed=probe.pairs,
        rejected=probe.rejected,
        compact_bytes=compact - holes + spool_bytes,
        rejects=probe.rejects,
        no_pairs=probe.no_pairs,
        unknown_keys=dict(sorted(probe.unknown_keys.items())),
    )


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
        pairs, rejected: number of pairs that were tried, and of those that are rejected.
        rejects: member → why it is rejected, of these and of other members that were met.
        no_pairs: why the source has no pair; empty if it has some.
        unknown_keys: key that is not stored → number of records tried that have it.
        lengths: rows of the packed ones, with runs, and without images.
        tar_bytes, seconds: bytes and time of all that were tried.
        sizes: stored height and width of each packed image.
    """

    def __init__(self, source: Source | None, options: PackOptions):
        """Decode the first pairs, if there is a source. Raises SourceError if it cannot be read."""
        self.pairs = self.rejected = self.tar_bytes = 0
        self.seconds = 0.0
        self.lengths = AxisLengths()
        self.sizes: list[tuple[int, int]] = []
        self.rejects: dict[str, str] = {}
        self.no_pairs = ""
        self.unknown_keys: Counter[str] = Counter()
        if source is None:
            return
        if not options.layout.runs:  # for the compact layout
            options = replace(options, masks="bits+runs")
        buffers = Buffers(options)
        with PairReader(source, spool_dir=Path(tempfile.gettempdir())) as reader:
            for pair in islice(reader, PROBE_PAIRS):
                interrupts.check()
                self.pairs += 1
                json = zlib.compress(pair.json, 1) if source.kind == "gzip-tar" else pair.json
                self.tar_bytes += len(pair.jpeg) + len(json)
                self.tar_bytes += 4 * 512 if source.kind == "tar" else 0
                started = time.perf_counter()
                outcome = attempt(pair.file_name, pair.jpeg, pair.json, options, buffers)
                self.seconds += time.perf_counter() - started
                if isinstance(outcome, Reject):
                    self.rejected += 1
                    self.rejects[outcome.member] = f"{outcome.code}: {outcome.detail}"
                if isinstance(outcome, Packed):
                    self.unknown_keys.update(outcome.unknown_keys)
                    self.lengths += outcome.lengths
                    self.sizes.append(tuple(map(int, outcome.rows["size"][0, 2:])))

            for reject in reader.rejects:
                member = reject.member.removeprefix("./")
                self.rejects[member] = f"{reject.code}: {reject.detail}"
            if self.pairs == 0:
                codes = {reject.code for reject in reader.rejects}
                self.no_pairs = why_no_pairs(reader.ignored_names, codes)

    def scaled(self, images: int, layout: Layout) -> AxisLengths:
        """The lengths of this number of samples in a layout, as those that were tried suggest."""
        factor = images / max(1, len(self.sizes))
        runs = self.lengths.runs if layout.runs else 0
        nbytes = sum(image_nbytes(layout, *size) for size in self.sizes) if layout.flat else 0
        return AxisLengths(images, *(round(factor * n) for n in (self.lengths.masks, runs, nbytes)))

    def disk_bytes(self, layout: Layout, images: int) -> tuple[int, int]:
        """Bytes of the files of this number of samples, and how many of them are never written."""
        holes = 0
        for height, _ in () if layout.flat else self.sizes:
            planes = image_planes(layout, height, layout.image_size)
            holes += image_nbytes(layout, 0, 0) - sum(p.shape[0] * p.stride for p in planes)
        holes = round(holes * images / max(1, len(self.sizes)))
        return group_bytes(layout.array_rows(self.scaled(images, layout))), holes
