"""`report`: everything about a pack, as one self-contained HTML page: no script, no network.

Distributions are those of some of the shards: all of SA-1B has 1.1 billion masks, and blocks of
samples from a few shards show the same. A pack of up to 20,000 images is surveyed completely.
"""

import base64
import io
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from sa1bpack.arguments import MAX_WORD, checks_options, choice, paths_of, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import FormatError
from sa1bpack.export.drawing import drawn, fitted, mask_text, shape_text
from sa1bpack.export.info import PackInfo, Stored, read_info, text_of
from sa1bpack.export.output import check_output
from sa1bpack.export.show import checked_count, random_indices
from sa1bpack.export.subject import Unreadable, read_or_reason
from sa1bpack.format.files import replace_file
from sa1bpack.format.manifest import REJECTS_NAME, SHARDS_NAME, Manifest, read_manifest
from sa1bpack.format.problems import Check, PackFiles, Problem, Progress, joined, reason_of
from sa1bpack.format.verify import verify as verify_pack
from sa1bpack.format.verify_shard import check_shard
from sa1bpack.packing.progress import read_runs
from sa1bpack.wording import counted, printable, size_text

MAX_IMAGES = 20_000
MAX_SHARDS = 64

# The mask arrays that a survey collects → title of the chart, and label of its axis.
_COLUMNS = {
    "area": ("Mask area", "area in source pixels (log scale)"),
    "predicted_iou": ("Predicted IoU", "predicted IoU"),
    "stability_score": ("Stability score", "stability score"),
}
_COMMON_SIZES = 8  # the rest are one bar
_BINS, _BINS_A_DECADE = 30, 4


@dataclass
class Survey:
    """Findings in the surveyed shards.

    images
        Number of surveyed samples.
    shards
        Names of the shards that were read.
    unreadable
        The errors of the shards that could not be read.
    columns
        "area", "predicted_iou" and "stability_score" → (m,) values of all masks of those samples:
        int64 source pixels, float64, float64.
    sizes
        (width, height) of a source image in pixels → number of those samples.
    stored
        What those shards take on the disk, and record of their making.
    """

    images: int = 0
    shards: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    stored: Stored = field(default_factory=Stored)


def survey(dataset: Dataset, seed: int) -> Survey:
    """Survey up to 64 shards of a complete dataset, chosen at random, and 20,000 of their images.

    From each shard it takes a block of samples at a random start. Damage does not end the survey:
    it is named in `unreadable`.
    """
    rng = np.random.default_rng(seed)
    total, entries = len(dataset), dataset.manifest.shards
    whole = total <= MAX_IMAGES and len(entries) <= MAX_SHARDS
    numbers = np.sort(rng.permutation(len(entries))[:MAX_SHARDS]).tolist()
    block = total if whole else -(-MAX_IMAGES // len(numbers))
    found = Survey()
    for number in numbers:
        first = int(rng.integers(max(1, entries[number].samples - block + 1)))
        try:  # all of a block or, if its shard is damaged, nothing
            shard = dataset.pack[number]
            stop = min(first + block, len(shard))
            masks = slice(*(int(shard["mask_offset"][edge]) for edge in (first, stop)))
            columns = {name: np.array(shard[name][masks]) for name in _COLUMNS}
            sizes, stored = shard["size"][first:stop, :2].tolist(), Stored.of(shard)
        except (FormatError, OSError) as error:
            found.unreadable.append(reason_of(error))
            continue
        for name, values in columns.items():
            found.columns[name] = np.append(found.columns.get(name, values[:0]), values)
        found.sizes.update((width, height) for height, width in sizes)
        found.shards.append(shard.entry.name)
        found.images += stop - first
        found.stored += stored
    return found


# ------------------------------------------------------------------------------------------ charts


class Bar(NamedTuple):
    """A bin or a name, its count as text, and its share of the largest count, in percent."""

    name: str
    count: str
    share: float


@dataclass
class Chart:
    """A chart; without bars, only a note.

    note     where the values are from
    columns  headings: of a bin or a name, and of its count
    ends     of a histogram: the values at both ends of its axis
    """

    title: str
    note: str
    columns: tuple[str, str]
    bars: list[Bar]
    ends: tuple[str, str] | None = None


def charts(manifest: Manifest, mask_counts: np.ndarray, survey: Survey) -> list[Chart]:
    """Histograms of masks per image, image sizes, areas, predicted IoU and stability."""
    if not mask_counts.size:
        return []
    images = counted(len(mask_counts), "image")
    found = [_chart(mask_counts, "Masks per image", f"all {images}", ("masks per image", "images"))]
    if survey.images:
        of = f"all {images}"
        if survey.images < manifest.samples:
            shards = counted(len(manifest.shards), "shard")
            of = f"{survey.images:,} of {images}, in {len(survey.shards):,} of {shards}"
        common = survey.sizes.most_common(_COMMON_SIZES)
        sizes = {f"{width} x {height}": count for (width, height), count in common}
        if len(survey.sizes) > len(common):
            sizes["others"] = survey.sizes.total() - sum(sizes.values())
        note = f"Width x height of the source, {counted(len(survey.sizes), 'size')}; {of}."
        bars = _bars(list(sizes), list(sizes.values()))
        found.append(Chart("Image sizes", note, ("pixels", "images"), bars))
        of = f"{counted(len(survey.columns['area']), 'mask')} of {of}"
        for name, (title, label) in _COLUMNS.items():
            if len(values := survey.columns[name]):
                found.append(_chart(values, title, of, (label, "masks")))
    return found


def round_step(span: float, most: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten of which at most `most` cover `span` (> 0)."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(each * power for each in (1, 2, 5, 10) if each * power * most >= span * (1 - 1e-9))


def histogram(values: np.ndarray, logarithmic: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Counts int64 (b,) and edges float64 (b + 1,): a value on an edge is in the bin above it.

    At most about 30 bins of equal, round width; whole numbers get whole widths. With `logarithmic`,
    four bins per decade, from that of the smallest to that of the largest. Values that are not
    finite, or not above 0 on a logarithmic axis, are not counted.
    """
    kept = values[values > 0 if logarithmic else np.isfinite(values)]
    low, high = (float(kept.min()), float(kept.max())) if kept.size else (1.0, 9.0)
    if logarithmic:
        first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
        edges = np.logspace(first, last, (last - first) * _BINS_A_DECADE + 1)
    else:
        whole = np.issubdtype(values.dtype, np.integer)
        scale = max(1.0, abs(high))
        span = 1.5 * scale if low == high and not whole else max(high - low, 1e-9 * scale)
        step = max(1.0, round_step(span, _BINS)) if whole else round_step(span, _BINS)
        numbers = range(math.floor(low / step) - 1, math.floor(high / step) + 3)
        # A product has few digits: 0.95 is an edge, not 0.9500000000001.
        edges = np.array([float(f"{number * step:.12g}") for number in numbers])
        first, last = np.searchsorted(edges, (low, high), "right").tolist()
        edges = edges[first - 1 : last + 1]
    return np.histogram(kept, edges)


def _chart(values: np.ndarray, title: str, of: str, columns: tuple[str, str]) -> Chart:
    counts, edges = map(np.ndarray.tolist, histogram(values, columns[0].endswith("(log scale)")))
    whole = np.issubdtype(values.dtype, np.integer)
    form = ",.0f" if whole else ".3f"
    low, middle, high = (format(float(at), form) for at in np.quantile(values, (0, 0.5, 1)))
    note = f"Smallest {low}, median {middle}, largest {high}; {of}."
    if left_out := values.size - sum(counts):
        note += f" Not shown: {counted(left_out, 'value')} that the axis cannot show."
    if not any(counts):
        return Chart(title, note, columns, [])
    names = [_range(*pair, whole) for pair in pairwise(edges)]
    ends = f"{edges[0]:,.10g}", f"{edges[-1]:,.10g}"
    return Chart(title, note, columns, _bars(names, counts), ends)


def _bars(names: list[str], counts: list[int]) -> list[Bar]:
    most = max(counts)
    return [
        Bar(name, f"{count:,}", round(100 * count / most, 2))
        for name, count in zip(names, counts, strict=True)
    ]


def _range(low: float, high: float, whole: bool) -> str:
    """The values of a bin as text, such as `20 to 29` or `0.95 to 0.96`."""
    if not whole:
        return f"{low:g} to {high:g}"
    first, last = math.ceil(low - 1e-9), math.ceil(high - 1e-9) - 1
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


# -------------------------------------------------------------------------------------- the report

_log = logging.getLogger("sa1bpack")

DEFAULT_SAMPLES = 12
_TILE = (450, 600)  # largest height and width of a picture, in pixels
_QUALITY = 82  # of its JPEG
_SHOWN_REJECTS = 20


VERIFY = ("sample", "quick", "full", "none")
SAMPLED_SHARDS = 8


@dataclass(frozen=True)
class Verification:
    """Result of a check: its extent, its time and its findings.

    how
        One of VERIFY: the check that was made. For a small pack it is "quick" if "sample" was asked
        for.
    covered
        What that check covers in this pack, in words.
    problems, notes
        As in `sa1bpack.verify`'s report.
    finished
        When the check ended.
    seconds
        How long it took.
    """

    how: str
    covered: str
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    finished: datetime
    seconds: float

    @property
    def ok(self) -> bool:
        """True if no problem was found, also if nothing was checked."""
        return not self.problems


_LIGHT = (
    "Structure, exact file sizes and the checksums of all files except pixels, mask bits and runs"
)


def verification(
    packs: Sequence[tuple[Path, Manifest]], how: str, seed: int, progress: Progress | None = None
) -> Verification:
    """Check packs, their folders and manifests, by `how`, one of VERIFY.

    progress  called as progress(bytes done, bytes in all), for one pack after the other
    """
    shards = [(root, manifest, entry) for root, manifest in packs for entry in manifest.shards]
    if how == "sample" and len(shards) <= SAMPLED_SHARDS:
        how = "quick"
    started = time.monotonic()
    if how == "sample":
        picked = np.random.default_rng(seed).permutation(len(shards))[:SAMPLED_SHARDS]
        chosen = [shards[number] for number in np.sort(picked).tolist()]
        check = Check(PackFiles(packs[0][0]), progress)
        check.total = sum(entry.bytes for _, _, entry in chosen)
        for root, manifest, entry in chosen:
            folder = root / SHARDS_NAME / entry.name
            check_shard(check, folder, entry, manifest.layout, quick=True)
        found = check.report({})
    else:
        roots = [root for root, _ in packs if how != "none"]
        found = joined(
            [verify_pack(root, quick=how == "quick", progress=progress) for root in roots]
        )
    count, images = (found.counts.get(key, 0) for key in ("shards", "samples"))
    size = f"{counted(count, 'shard')} with {counted(images, 'image')}"
    own = "the pack's own files" if len(packs) == 1 else "the packs' own files"
    covered = {
        "none": "Nothing was checked for this report.",
        "sample": f"{_LIGHT}, of {SAMPLED_SHARDS} of {counted(len(shards), 'shard')}, chosen at "
        f"random (seed {seed}). sa1bpack verify --quick checks all shards.",
        "quick": f"{_LIGHT}, of {size} and of {own}.",
        "full": f"Every byte of {size} against the checksums of files and samples.",
    }[how]
    seconds = time.monotonic() - started
    return Verification(how, covered, found.problems, found.notes, datetime.now(UTC), seconds)


@dataclass(frozen=True)
class ReportResult:
    """Result of `report`: the file, and what was found.

    path
        The file.
    images
        Samples of the pack.
    surveyed
        Number of samples in the distributions of masks.
    verification
        What was checked, and the problems found.
    unreadable
        The errors of shards and samples that could not be read for the page.
    complete
        Whether the pack is complete; what an incomplete one holds so far is logged as a warning.
    """

    path: Path
    images: int
    surveyed: int
    verification: Verification
    unreadable: tuple[str, ...]
    complete: bool

    @property
    def ok(self) -> bool:
        """True if no damage was found in what was checked and read."""
        return self.verification.ok and not self.unreadable


@checks_options(out="output")
def report(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    verify: str = "sample",
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    progress: Progress | None = None,
) -> ReportResult:
    """Write a page about a pack: state, counts, distributions, pictures, options, runs, rejects.

    The page is one file that needs no network and runs no script. It takes seconds for a pack of
    any size: distributions of masks are those of at most 20,000 images in 64 shards, and the page
    says which. Damage is reported on the page and in the result, never raised.

    Args:
        pack: folder of a pack, complete or not; several, or a glob pattern, are one dataset. An
            image id that is held more than once counts each time, and the page names it.
        output: the page, `*.html`; an existing file is replaced atomically.
        verify: "sample" checks up to 8 shards as "quick" does. "quick" checks everything except
            pixels, bits and runs; "full" reads every byte, as `sa1bpack.verify` does; "none" checks
            nothing.
        samples: number of random samples to show, 1 to 400.
        seed: seed of every random choice.
        progress: called by the verification as progress(bytes done, total bytes).

    Raises:
        OptionError: a value that is not a valid choice, a path that cannot be used, or packs of
            different layouts.
        FormatError: the folder is not a pack, or its manifest or index is damaged, including the
            records of the packer in the manifest.
        MissingPackage: neither pillow-simd nor Pillow is installed.

    Examples:
        >>> result = sa1bpack.report("packed", "report.html", verify="none", samples=1)
        >>> result.path
        PosixPath('report.html')
    """
    roots = tuple(paths_of("pack", pack))
    path = check_output(output, ".html")
    choice("verify", verify, VERIFY)
    samples = checked_count("samples", samples)
    seed = whole_number("seed", seed, 0, MAX_WORD)
    dataset = None
    if len(roots) > 1 or read_manifest(roots[0]).index is not None:
        dataset = open_pack(roots, duplicates="all")
    held = read_info(roots, None if dataset is None else dataset.pack)
    manifest = held.manifest
    if dataset is None and not manifest.complete:  # else sa1bpack.open has logged it
        _log.warning("%s: %s", roots[0].absolute(), held.completeness)
    packs = [(roots[0], manifest)]
    if dataset is not None:
        packs = [(folder.root, folder.manifest) for folder in dataset.pack.folders]
    checked = verification(packs, verify, seed, progress)
    seen = Survey() if dataset is None else survey(dataset, seed)
    runs = (run for root in roots for run in read_runs(root))
    text = (
        _templates()
        .get_template("report.html")
        .render(
            held=held,
            manifest=manifest,
            seen=seen,
            checked=checked,
            runs=sorted(runs, key=attrgetter("finished")),
            rejects=[reject for root in roots for reject in _first_rejects(root)][:_SHOWN_REJECTS],
            reasons=[(reason, f"{count:,}") for reason, count in held.reasons.items()],
            pictures=[] if dataset is None else _pictures(dataset, samples, seed, seen.unreadable),
            seed=seed,
            version=version("sa1bpack"),
            totals=_totals(held, seen),
            features=[f"{name}: {text}" for name, text in held.features.items()],
            verdict=_verdict(checked),
            charts=charts(manifest, held.mask_counts, seen),
            identity=_identity(held, seen),
        )
    )
    replace_file(path, text.encode())
    return ReportResult(
        path, manifest.samples, seen.images, checked, tuple(seen.unreadable), manifest.complete
    )


def _first_rejects(root: Path) -> list[tuple[Any, ...]]:
    """The first lines of rejects.jsonl; a damaged line is shown as it is."""
    found = []
    with (
        suppress(FileNotFoundError),
        (root / REJECTS_NAME).open(encoding="utf-8", errors="replace") as file,
    ):
        for line in islice(file, _SHOWN_REJECTS):
            try:
                reject = msgspec.json.decode(line, type=dict[str, Any])
            except (ValueError, RecursionError):
                reject = {"detail": f"not a record: {line.strip()}"}
            keys = ("source", "reason", "member", "detail")
            found.append(tuple(reject.get(key, "") for key in keys))
    return found


class _Picture(NamedTuple):
    """A sample on the page; without a JPEG, the title says why it cannot be read.

    jpeg  in base64
    """

    title: str
    facts: str = ""
    masks: str = ""
    jpeg: str = ""
    width: int = 0
    height: int = 0


def _pictures(dataset: Dataset, count: int, seed: int, unreadable: list[str]) -> list[_Picture]:
    """Random samples; errors are shown in place of a picture and added to the list."""
    pictures = []
    for index in random_indices(len(dataset), count, seed):
        subject = read_or_reason(dataset, index, max(_TILE))
        if isinstance(subject, Unreadable):
            if subject.reason not in unreadable:
                unreadable.append(subject.reason)
            pictures.append(_Picture(f"Row {index:,}: {subject.reason}"))
            continue
        height, width = fitted(*subject.rgb.shape[:2], *_TILE)
        buffer = io.BytesIO()
        drawn(subject, height, width).save(buffer, "JPEG", quality=_QUALITY)
        jpeg = base64.b64encode(buffer.getvalue()).decode()
        sample = subject.sample
        facts = f"id {sample['image_id']}, row {sample['index']:,}, {shape_text(subject)}"
        masks = mask_text(subject)
        pictures.append(_Picture(sample["file_name"], facts, masks, jpeg, width, height))
    return pictures


# ----------------------------------------------------------------------------- the page


def _templates() -> Environment:
    """The templates of the page. All text is escaped: only they are markup."""
    templates = Environment(
        loader=PackageLoader("sa1bpack.export"),
        autoescape=True,
        undefined=StrictUndefined,
        # What macros and blocks return is markup; all else is text.
        finalize=lambda value: value if hasattr(value, "__html__") else printable(value),
        keep_trailing_newline=True,
    )
    templates.filters |= {"counted": counted, "duration": _duration, "shown": _shown}
    templates.filters |= {"moment": _moment, "size": size_text}
    return templates


def _totals(held: PackInfo, seen: Survey) -> list[tuple[str, ...]]:
    """Name, value and remark of the numbers at the top."""
    manifest, counts = held.manifest, held.mask_counts
    masks, disk, shards = [], [], []
    if counts.size:
        masks = [f"{np.mean(counts):.1f} per image, median {np.median(counts):.0f}"]
    nbytes = sum(entry.bytes for entry in manifest.shards)
    if seen.stored.bytes:
        about = "" if seen.stored.bytes == nbytes else "about "
        on_disk = size_text(nbytes * seen.stored.disk_bytes / seen.stored.bytes)
        disk = [f"{about}{on_disk} on disk"]
    if sizes := sorted(entry.samples for entry in manifest.shards):
        same = sizes[0] == sizes[-1]
        span = counted(sizes[0], "image") if same else f"{sizes[0]:,} to {sizes[-1]:,} images"
        sources = counted(len({entry.source for entry in manifest.shards}), "source")
        shards = [f"of {span}, from {sources}"]
    rejects = manifest.counts.get("rejects")
    return [
        ("Images", f"{manifest.samples:,}"),
        ("Masks", f"{manifest.masks:,}", *masks),
        (
            "Masks left out",
            f"{held.annotations - manifest.masks:,}",
            held.left_out or f"of {held.annotations:,}",
        ),
        ("Size", size_text(nbytes), *disk),
        ("Shards", f"{len(manifest.shards):,}", *shards),
        ("Rejects", "not recorded" if rejects is None else f"{rejects:,}"),
    ]


def _verdict(checked: Verification) -> tuple[str, str, str]:
    """The result of a check: "good", "warn" or "bad", in words, and the remedy."""
    if checked.how == "none":
        return "warn", "Not verified.", ""
    if checked.ok:
        return "good", "Every byte is sound." if checked.how == "full" else "No problem found.", ""
    found = checked.problems
    denied = all(problem.denied for problem in found)
    kind, verdict = ("warn", "Not all could be read") if denied else ("bad", "Damaged")
    damaged = any(not (problem.extra or problem.denied) for problem in found)
    remedy = "sa1bpack repair rebuilds what is damaged, from the tars." if damaged else ""
    return kind, f"{verdict}: {counted(len(found), 'problem')}.", remedy


def _identity(held: PackInfo, seen: Survey) -> list[tuple[str, str]]:
    manifest, stored = held.manifest, seen.stored
    made = [
        "; ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        for versions in stored.packed_by
    ]
    unknown = "no key of the JSON, in the shards read"
    if stored.unknown_keys:
        unknown = f"keys of the JSON: {', '.join(stored.unknown_keys)}"
    index = "one in each pack" if len(held.roots) > 1 else manifest.index or "none yet"
    return [
        ("format", f"{manifest.format} {'.'.join(map(str, manifest.version))}"),
        *(("packed by", text) for text in made or ["not recorded"]),
        ("seen in", f"{len(seen.shards):,} of {counted(len(manifest.shards), 'shard')}"),
        ("index", index),
        ("not stored", unknown),
    ]


def _shown(value: Any) -> str:
    """A recorded value as text."""
    words = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else text_of(value)


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
