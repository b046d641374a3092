"""`--dry-run`: what packing would take, extrapolated from the first pairs of the sources."""

import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Unpack

from sa1bpack.errors import SourceError
from sa1bpack.format import Extent, Layout
from sa1bpack.format.image_bytes import canvas_spans
from sa1bpack.format.shard_writer import shard_bytes
from sa1bpack.packing.execution.attempt import attempt
from sa1bpack.packing.options import PackKeywords, PackOptions
from sa1bpack.packing.pack_state import PackState
from sa1bpack.packing.packed_sources import sources_to_pack
from sa1bpack.packing.progress import nothing_to_do
from sa1bpack.packing.request import checked_request, existing_parent
from sa1bpack.packing.run import rejects_so_far
from sa1bpack.packing.sample import Buffers, Packed, warm_up
from sa1bpack.packing.shard_builder import Rejected
from sa1bpack.source.find import Source
from sa1bpack.source.pairs import PairReader
from sa1bpack.wording import counted, size_text

# Enough for a mean; reading that far into a tar in random order takes about a second.
PROBE_PAIRS = 24

# Writing, hashing and messages, relative to decoding (measured, docs/performance.md).
_OVERHEAD = 1.15


# Memory of a run, of each tar that it reads at once, and of each worker, for images and records
# like SA-1B's (docs/packing.md, "Memory and disk").
RUN_BYTES, READING_BYTES, WORKER_BYTES = 250_000_000, 300_000_000, 140_000_000


def memory_bytes(workers: int, readings: int) -> int:
    """Memory that a run takes with so many workers, and so many tars read at once."""
    return RUN_BYTES + readings * READING_BYTES + workers * WORKER_BYTES


@dataclass(frozen=True)
class Forecast:
    """What packing would take, extrapolated from `probed` samples.

    sources, source_bytes
        Number and size of the tars and folders to be packed.
    packed
        Number of sources skipped because they are complete in the pack.
    unreadable
        Name of each source at a URL that cannot be read → the error. They are not counted.
    begun
        Names of those among `sources` that the pack holds in part. They are counted in full.
    images, masks
        Expected samples and stored masks.
    disk_bytes
        Size of the pack's files; `hole_bytes` of them are holes that a filesystem with sparse
        files does not store (the padding below images wider than tall; none with fit "native").
    free_bytes
        Free space where the pack would lie.
    shards
        Expected number of shards.
    workers, seconds
        Number of processes, and their wall time on this machine.
    probed, rejected
        Samples tried, and how many of them would be rejected.
    """

    sources: int
    source_bytes: int
    packed: int
    unreadable: dict[str, SourceError]
    begun: list[str]
    images: int
    masks: int
    disk_bytes: int
    hole_bytes: int
    free_bytes: int
    shards: int
    workers: int
    seconds: float
    probed: int
    rejected: int

    @property
    def fits(self) -> bool:
        """Whether the pack fits into the free space."""
        return self.disk_bytes - self.hole_bytes <= self.free_bytes

    def as_text(self) -> str:
        """The forecast in a few lines."""
        if self.sources == 0 and not self.unreadable:
            return nothing_to_do(self.packed)
        needed = self.disk_bytes - self.hole_bytes
        verdict = "fits" if self.fits else "DOES NOT FIT"
        lines = [
            f"sources   {self.sources:,} with {size_text(self.source_bytes)}",
            f"images    about {self.images:,}, with {self.masks:,} masks stored",
            f"disk      {size_text(needed)} ({size_text(self.disk_bytes)} with holes counted), "
            f"{counted(self.shards, 'shard')}",
            f"free      {size_text(self.free_bytes)}: it {verdict}",
            f"time      about {_duration(self.seconds)} with "
            f"{counted(self.workers, 'worker')} here",
            f"measured on {counted(self.probed, 'image')}; nothing was written",
        ]
        if self.rejected:
            lines.append(f"{self.rejected:,} of these would be rejected")
        if self.packed:
            lines.append(f"skipped: {counted(self.packed, 'source')} already in the pack")
        if self.unreadable:
            lines.append(f"cannot be read: {counted(len(self.unreadable), 'source')}")
        if self.begun:
            lines.append(f"packed in part, but counted here in full: {_some(self.begun)}")
        return "\n".join(lines)


def estimate(
    sources: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    workers: int | None = None,
    md5sums: str | Path | None = None,
    md5: bool = False,
    max_rejects: int | None = None,
    links: str | Path | None = None,
    downloads: int | None = None,
    **options: Unpack[PackKeywords],
) -> Forecast:
    """Estimate what `pack` with the same arguments would take; writes nothing.

    Sources that are complete in the pack in `out` are skipped; one that it holds in part is counted
    in full. Decodes the first pairs of the first source and extrapolates by bytes.

    sources, out, workers, md5sums, md5, max_rejects, links, downloads, options
        As for `pack`.

    Raises what `pack` would raise before it starts to read: for unusable options and sources, a
    folder that is in use, cannot be written, or holds something else, a damaged pack, or one with
    other options. No md5 is computed or compared.

    Examples:
        >>> forecast = sa1bpack.estimate("tests/samples/sa_000000.tar", "another")
        >>> forecast.images, forecast.masks, forecast.disk_bytes
        (3, 203, 11822090)
    """
    request = checked_request(
        sources, out, options, workers, md5sums, md5, max_rejects, links, downloads
    )
    options, state = request.options, PackState.inspect(request.out, request.options)
    todo, unreadable = sources_to_pack(state, request.sources, request.sums)
    rejects_so_far(state, request.max_rejects)
    probe = _probe(todo[0], options) if todo else _Probe(0, 0, Extent(), 1.0, 0.0, 0.0)
    total = sum(source.nbytes for source in todo)
    images_of = [probe.images_in(source.nbytes) for source in todo]
    images = sum(images_of)
    extent = probe.scaled(images)
    return Forecast(
        sources=len(todo),
        source_bytes=total,
        packed=len(request.sources) - len(todo) - len(unreadable),
        unreadable=unreadable,
        begun=[source.name for source in todo if state.parts_of(source.name)],
        images=images,
        masks=extent.masks,
        disk_bytes=shard_bytes(options.layout, extent),
        hole_bytes=int(images * probe.hole_bytes),
        free_bytes=shutil.disk_usage(existing_parent(request.out)).free,
        shards=sum(-(-count // options.samples_per_shard) for count in images_of),
        workers=request.workers,
        seconds=images * probe.seconds * _OVERHEAD / request.workers,
        probed=probe.pairs,
        rejected=probe.rejected,
    )


@dataclass(frozen=True)
class _Probe:
    """Means over the first pairs of a source: bytes in the tar, seconds, bytes of holes."""

    pairs: int
    rejected: int
    packed: Extent
    tar_bytes: float
    seconds: float
    hole_bytes: float

    def images_in(self, nbytes: int) -> int:
        if self.packed.samples == 0:
            return 0
        pairs = max(1, round(nbytes / self.tar_bytes))
        return max(1, round(pairs * self.packed.samples / self.pairs))

    def scaled(self, images: int) -> Extent:
        factor = images / max(1, self.packed.samples)
        scaled = {axis: round(count * factor) for axis, count in asdict(self.packed).items()}
        return Extent(**{**scaled, "samples": images})


def _probe(source: Source, options: PackOptions) -> _Probe:
    warm_up(options)
    buffers = Buffers(options)
    packed_extent = Extent()
    pairs = rejected = tar_bytes = hole_bytes = 0
    seconds = 0.0
    with PairReader(source, spool_dir=Path(tempfile.gettempdir())) as reader:
        for pair in islice(reader, PROBE_PAIRS):
            pairs += 1
            tar_bytes += _bytes_in_tar(source, pair)
            started = time.perf_counter()
            outcome = attempt(pair.file_name, pair.jpeg, pair.json, options, buffers)
            seconds += time.perf_counter() - started
            rejected += isinstance(outcome, Rejected)
            if isinstance(outcome, Packed):
                packed_extent = packed_extent + outcome.extent
                hole_bytes += _hole_bytes(options.layout, outcome)
    return _Probe(
        pairs,
        rejected,
        packed_extent,
        tar_bytes / max(1, pairs),
        seconds / max(1, pairs),
        hole_bytes / max(1, packed_extent.samples),
    )


def _hole_bytes(layout: Layout, packed: Packed) -> int:
    """Bytes of a sample's canvas that are never written."""
    if layout.flat:
        return 0
    spans = canvas_spans(layout, int(packed.rows["size"][0, 2]))
    return packed.rows["image"].nbytes - sum(stop - start for start, stop in spans)


def _bytes_in_tar(source: Source, pair) -> int:
    """Bytes that a pair occupies in its source; gzip shrinks JSON, but not JPEGs."""
    if source.kind == "folder":
        return len(pair.jpeg) + len(pair.json)
    if source.kind == "tar":
        return len(pair.jpeg) + len(pair.json) + 4 * 512
    return len(pair.jpeg) + len(zlib.compress(pair.json, 1))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
