"""`report`: everything about a pack, as one self-contained HTML page: no script, no network.

Distributions are those of some of the shards: all of SA-1B has 1.1 billion masks, and a few shards,
whose images are in random order, show the same. A pack of up to 20,000 images in 64 shards is
surveyed completely.
"""

import base64
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jinja2 import Template

from sa1bpack import __version__
from sa1bpack.arguments import MAX_WORD, choice, whole_number
from sa1bpack.dataset.dataset import Dataset
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.dataset.places import origins_of
from sa1bpack.errors import FormatError
from sa1bpack.export.disk_use import DiskUse
from sa1bpack.export.drawing import drawn, file_of, fitted
from sa1bpack.export.histograms import bin_text, histogram
from sa1bpack.export.info import PackInfo, read_info, template
from sa1bpack.export.pack_records import PackRecords, pack_records
from sa1bpack.export.sheet import mask_text, shape_text
from sa1bpack.export.show import DEFAULT_SAMPLES, checked_count, random_indices
from sa1bpack.export.subject import Unreadable, read_subject
from sa1bpack.format.manifest import REJECTS_NAME, Manifest, file_to_write, read_manifest
from sa1bpack.format.problems import Problem, joined, reason_of
from sa1bpack.format.replacing import replace_file
from sa1bpack.format.verify import verify as verify_pack
from sa1bpack.keywords import checks_options
from sa1bpack.mask_numbers import MASK_NUMBERS
from sa1bpack.options import REPORT_CHECKS
from sa1bpack.packing.progress import read_runs
from sa1bpack.progress import ProgressOption, check_progress
from sa1bpack.wording import counted, printable

MAX_IMAGES = 20_000
MAX_SHARDS = 64

# The mask arrays that a survey collects → title of the chart, and label of its axis.
_CHARTS = {"area": ("Mask area", "area in source pixels (log scale)")} | {
    number.array: (number.title, number.title[0].lower() + number.title[1:])
    for number in MASK_NUMBERS
    if number.title
}
_COMMON_SIZES = 8  # the rest are one bar
_BINS = 30


@dataclass
class PackSurvey:
    """Findings in the surveyed shards.

    Attributes:
        images: number of surveyed samples.
        shards: names of the shards that were read.
        unreadable: the errors of the shards that could not be read.
        columns: "area", "predicted_iou" and others that have a chart → (m,), values of all masks of
            the surveyed samples: int64 in source pixels, float64.
        sizes: (width, height) of a source image in pixels → number of surveyed samples.
        stored: disk use of these shards, and the records of their making.
    """

    images: int = 0
    shards: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    stored: DiskUse = field(default_factory=DiskUse)


def survey_of(dataset: Dataset, seed: int) -> PackSurvey:
    """Survey shards of a complete dataset, in random order, until they have 20,000 images.

    At most 64 shards are read. Damage does not end the survey: it is named in `unreadable`.
    """
    survey = PackSurvey()
    stored_arrays = {spec.name for spec in dataset.layout.arrays}
    order = np.random.default_rng(seed).permutation(len(dataset.pack))
    for number in order[:MAX_SHARDS].tolist():
        if survey.images >= MAX_IMAGES:
            break
        try:  # all of a shard or, if it is damaged, nothing
            shard = dataset.pack[number]
            columns = {name: np.array(shard[name]) for name in _CHARTS if name in stored_arrays}
            sizes = shard["size"][:, :2].tolist()
            stored = DiskUse.of(shard)
        except (FormatError, OSError) as error:
            survey.unreadable.append(reason_of(error))
            continue
        for name, values in columns.items():
            survey.columns[name] = np.append(survey.columns.get(name, values[:0]), values)
        survey.sizes.update((width, height) for height, width in sizes)
        survey.shards.append(shard.entry.name)
        survey.images += len(shard)
        survey.stored += stored
    return survey


# ------------------------------------------------------------------------------------------ charts


class Bar(NamedTuple):
    """A bin or a name, its count as text, and its share of the largest count, in percent."""

    name: str
    number: str
    share: float


@dataclass
class Chart:
    """A chart; without bars, only a note.

    Attributes:
        note: where the values are from.
        columns: headings of the bin or name, and of its count.
        ends: for a histogram, the values at both ends of its axis.
    """

    title: str
    note: str
    columns: tuple[str, str]
    bars: list[Bar]
    ends: tuple[str, str] | None = None


def charts_of(manifest: Manifest, mask_counts: np.ndarray, survey: PackSurvey) -> list[Chart]:
    """Histograms of masks per image, image sizes, areas, predicted IoU and stability."""
    if not mask_counts.size:
        return []
    images = counted(len(mask_counts), "image")
    of = f"all {images}"
    charts = [_chart(mask_counts, "Masks per image", of, ("masks per image", "images"))]
    if survey.images:
        if survey.images < manifest.samples:
            shards = counted(len(manifest.shards), "shard")
            of = f"{survey.images:,} of {images}, in {len(survey.shards):,} of {shards}"
        common = survey.sizes.most_common(_COMMON_SIZES)
        sizes = {f"{width} x {height}": count for (width, height), count in common}
        if len(survey.sizes) > len(common):
            sizes["others"] = survey.sizes.total() - sum(sizes.values())
        note = f"Width x height of the source, {counted(len(survey.sizes), 'size')}; {of}."
        bars = _bars(list(sizes), list(sizes.values()))
        charts.append(Chart("Image sizes", note, ("pixels", "images"), bars))
        of = f"{counted(len(survey.columns['area']), 'mask')} of {of}"
        for name, (title, label) in _CHARTS.items():
            values = survey.columns.get(name, mask_counts[:0])
            if len(values):
                charts.append(_chart(values, title, of, (label, "masks")))
    return charts


def _chart(values: np.ndarray, title: str, of: str, columns: tuple[str, str]) -> Chart:
    counts, edges = map(np.ndarray.tolist, histogram(values, _BINS, "log" in columns[0]))
    whole = np.issubdtype(values.dtype, np.integer)
    form = ",.0f" if whole else ".3f"
    finite = values[np.isfinite(values)]
    quantiles = np.quantile(finite if finite.size else values, (0, 0.5, 1)).tolist()
    low, middle, high = (format(quantile, form) for quantile in quantiles)
    note = f"Smallest {low}, median {middle}, largest {high}; {of}."
    if left_out := values.size - sum(counts):
        note += f" Not shown: {counted(left_out, 'value')} that the axis cannot show."
    if not any(counts):
        return Chart(title, note, columns, [])
    names = [bin_text(*pair, whole) for pair in pairwise(edges)]
    ends = f"{edges[0]:,.10g}", f"{edges[-1]:,.10g}"
    return Chart(title, note, columns, _bars(names, counts), ends)


def _bars(names: list[str], counts: list[int]) -> list[Bar]:
    return [
        Bar(name, f"{count:,}", round(100 * count / max(counts), 2))
        for name, count in zip(names, counts, strict=True)
    ]


# -------------------------------------------------------------------------------------- the report

_log = logging.getLogger("sa1bpack")

_TILE = (450, 600)  # largest height and width of a picture, in pixels
_QUALITY = 82  # of its JPEG
_SHOWN_REJECTS = 20


SAMPLED_SHARDS = 8


@dataclass(frozen=True)
class Verification:
    """Result of a check: its extent, its time and its findings.

    Attributes:
        how: one of REPORT_CHECKS: the check that was made. For a small pack it is "quick" if
            "sample" was asked for.
        covered: what the check covers in this pack, in words.
        problems, notes: as in `sa1bpack.verify`'s report.
        finished: when the check ended.
        seconds: duration of the check.
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

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        problems = counted(len(self.problems), "problem")
        if not self.ok and all(problem.denied for problem in self.problems):
            return f"NOT ALL COULD BE READ: {problems}"
        sound = {"none": "not verified", "full": "every byte is sound"}
        return sound.get(self.how, "no problem found") if self.ok else f"DAMAGED: {problems}"


_LIGHT = (
    "Structure, exact file sizes and the checksums of all files except pixels, mask bits and runs"
)


def verification(
    records: Sequence[PackRecords], how: str, seed: int, progress: ProgressOption = None
) -> Verification:
    """Check packs by `how`, one of REPORT_CHECKS.

    Args:
        records: the records of the packs.
        seed: seed of the choice of shards.
        progress: as in `verify`, for one pack after the other.
    """
    shards = sum(len(read_manifest(record.folder).shards) for record in records)
    parts = -(-shards // SAMPLED_SHARDS)
    part = None
    if how == "sample" and parts > 1:
        part = int(np.random.default_rng(seed).integers(parts)) + 1, parts
    elif how == "sample":
        how = "quick"
    started = time.monotonic()
    checked = [] if how == "none" else [record.name for record in records]
    reports = [
        verify_pack(name, quick=how != "full", progress=progress, part=part) for name in checked
    ]
    verified = joined(reports)
    count = verified.counts.get("shards", 0)
    images = verified.counts.get("samples", 0)
    size = f"{counted(count, 'shard')} with {counted(images, 'image')}"
    files_of_packs = "the pack's own files" if len(records) == 1 else "the packs' own files"
    covered = {
        "none": "Nothing was checked for this report.",
        "sample": f"{_LIGHT}, of {count:,} of {counted(shards, 'shard')}, 1 in {parts:,} from a "
        f"random one on (seed {seed}). sa1bpack verify --quick checks all shards.",
        "quick": f"{_LIGHT}, of {size} and of {files_of_packs}.",
        "full": f"Every byte of {size} against the checksums of files and samples.",
    }[how]
    seconds = time.monotonic() - started
    return Verification(
        how=how,
        covered=covered,
        problems=verified.problems,
        notes=verified.notes,
        finished=datetime.now(UTC),
        seconds=seconds,
    )


@dataclass(frozen=True)
class ReportResult:
    """Result of `report`: the file, and what was found.

    Attributes:
        path: the file that was written.
        images: number of samples in the pack.
        surveyed: number of samples in the distributions of masks.
        verification: what was checked, and the problems found.
        unreadable: the errors of shards and samples that could not be read for the page.
        complete: the pack is complete; what an incomplete one holds so far is logged as a warning.
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


@checks_options
def report(
    pack: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    verify: str = "sample",
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
    progress: ProgressOption = None,
) -> ReportResult:
    """Write a page about a pack: state, counts, distributions, pictures, options, runs, rejects.

    The page is one file that needs no network and runs no script. It takes seconds for a pack of
    any size: distributions of masks are those of some 20,000 images in at most 64 shards, and the
    page says which. Damage is reported on the page and in the result, never raised.

    Of a pack at a URL, the small arrays of the shards that are surveyed are fetched, the samples
    that are shown, and what is verified.

    Args:
        pack: folder of a pack, complete or not, or its URL; several, or a glob pattern, are one
            dataset. An image id that is held more than once counts each time, and the page names
            it.
        output: the page, `*.html`; an existing file is replaced atomically.
        verify: "sample" checks up to 8 shards as "quick" does. "quick" checks everything except
            pixels, bits and runs; "full" reads every byte, as `sa1bpack.verify` does; "none" checks
            nothing.
        samples: number of random samples to show, 1 to 400.
        seed: seed of every random choice.
        progress: show a bar of the verification on stderr; or a function that it calls as
            function(bytes done, bytes in all). Default: a bar if stderr is a terminal.

    Raises:
        OptionError: a value that is not a valid choice, a path that cannot be used, or packs of
            different layouts.
        FormatError: the folder is not a pack, or its manifest or index is damaged, including the
            records of the packer in the manifest.
        StoreError: a URL cannot be read.
        MissingPackage: neither pillow-simd nor Pillow is installed, or what reads a URL.

    Examples:
        >>> result = sa1bpack.report("packed", "report.html", verify="none", samples=1)
        >>> result.path
        PosixPath('report.html')
    """
    path = file_to_write("output", output, ".html")
    choice("verify", verify, REPORT_CHECKS)
    check_progress(progress)
    samples = checked_count("samples", samples)
    seed = whole_number("seed", seed, 0, MAX_WORD)
    origins, empty = origins_of("pack", pack)
    if not origins:
        raise empty[0]
    with pack_records(origins, of_shards=False) as records:
        return _report(records, path, verify, samples, seed, progress)


def _report(
    records: Sequence[PackRecords],
    path: Path,
    how: str,
    samples: int,
    seed: int,
    progress: ProgressOption,
) -> ReportResult:
    """`report`, whose arguments were checked, of packs whose records are here."""
    dataset = None
    if len(records) > 1 or read_manifest(records[0].folder).index is not None:
        dataset = open_pack([record.name for record in records], duplicates="all")
    held = read_info(records, dataset.pack if dataset is not None else None)
    manifest = held.manifest
    if dataset is None and not manifest.complete:  # else sa1bpack.open has logged it
        place = records[0].named(str(records[0].folder.absolute()))
        _log.warning("%s: %s", place, held.completeness)
    checked = verification(records, how, seed, progress)
    survey = PackSurvey()
    pictures: list[dict[str, str | int]] = []
    if dataset is not None:
        survey = survey_of(dataset, seed)
        pictures = _pictures(dataset, samples, seed, survey.unreadable)
    replace_file(path, _page(records, held, checked, survey, pictures, seed).encode())
    return ReportResult(
        path=path,
        images=manifest.samples,
        surveyed=survey.images,
        verification=checked,
        unreadable=tuple(survey.unreadable),
        complete=manifest.complete,
    )


@cache
def _template() -> Template:
    """The template of the page, which takes longer to compile than to render."""
    return template(
        "report.html",
        {"duration": _duration, "moment": _moment},
        autoescape=True,  # only templates are markup
        # What macros and blocks return is markup; all else is text.
        finalize=lambda value: value if hasattr(value, "__html__") else printable(value),
        keep_trailing_newline=True,
    )


def _page(
    records: Sequence[PackRecords],
    held: PackInfo,
    checked: Verification,
    survey: PackSurvey,
    pictures: list[dict[str, str | int]],
    seed: int,
) -> str:
    """The page as HTML."""
    runs = []
    rejects = []
    for record in records:
        runs += read_runs(record.folder)
        rejects += _first_rejects(record.folder)
    return _template().render(
        held=held,
        manifest=held.manifest,
        layout=held.manifest.layout.to_json(),
        seen=survey,
        checked=checked,
        runs=sorted(runs, key=attrgetter("finished")),
        rejects=rejects[:_SHOWN_REJECTS],
        reasons=[(reason, f"{count:,}") for reason, count in held.reasons.items()],
        pictures=pictures,
        seed=seed,
        version=__version__,
        features=[f"{name}: {text}" for name, text in held.features.items()] + held.notes,
        charts=charts_of(held.manifest, held.mask_counts, survey),
    )


def _first_rejects(root: Path) -> list[tuple[Any, ...]]:
    """The first lines of rejects.jsonl; a damaged line is shown as it is."""
    rejects = []
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
            rejects.append(tuple(reject.get(key, "") for key in keys))
    return rejects


def _pictures(
    dataset: Dataset, count: int, seed: int, unreadable: list[str]
) -> list[dict[str, str | int]]:
    """Random samples: title, facts, masks, JPEG in base64 with its size in pixels.

    One that cannot be read has a title that says why, and no JPEG; its error is added to the list.
    """
    pictures: list[dict[str, str | int]] = []
    for index in random_indices(len(dataset), count, seed):
        subject = read_subject(dataset, index)
        if isinstance(subject, Unreadable):
            if subject.reason not in unreadable:
                unreadable.append(subject.reason)
            pictures.append({"title": f"Row {index:,}: {subject.reason}", "jpeg": ""})
            continue
        height, width = fitted(subject.rgb.shape, *_TILE)
        sample = subject.sample
        jpeg = file_of(drawn(subject, height, width), "JPEG", _QUALITY)
        pictures.append(
            {
                "title": sample["file_name"],
                "facts": f"id {sample['image_id']}, row {sample['row']:,}, {shape_text(subject)}",
                "masks": mask_text(subject),
                "jpeg": base64.b64encode(jpeg).decode(),
                "height": height,
                "width": width,
            }
        )
    return pictures


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"
