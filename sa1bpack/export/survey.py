"""Distributions of masks and images, from some of the shards of a pack, as bars of charts.

All of SA-1B has 1.1 billion masks; blocks of samples from a few shards show the same. A pack of up
to 20,000 images is surveyed completely. The template draws the bars.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import FormatError
from sa1bpack.export.info import Stored
from sa1bpack.format.manifest import Manifest
from sa1bpack.format.problems import reason_of
from sa1bpack.wording import counted

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
