"""The charts of a report: bins or names with their counts, which the template draws as bars."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sa1bpack.format.manifest import Manifest
from sa1bpack.report.survey import Survey
from sa1bpack.wording import counted

_COMMON_SIZES = 8  # the rest are one bar
_BINS, _BINS_A_DECADE = 30, 4


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

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The numbers that the chart shows."""
        return [(bar.name, bar.count) for bar in self.bars]


class Histogram(NamedTuple):
    """The number of values between each two edges.

    counts    int64 (b,); a value on an edge belongs to the bin above it
    edges     float64 (b + 1,), increasing
    left_out  number of values that are not finite, or not above 0 on a logarithmic axis
    """

    counts: np.ndarray
    edges: np.ndarray
    left_out: int


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
        found.append(_sizes_chart(survey, of))
        of = f"{counted(len(survey.area), 'mask')} of {of}"
        for values, title, label in (
            (survey.area, "Mask area", "area in source pixels (log scale)"),
            (survey.predicted_iou, "Predicted IoU", "predicted IoU"),
            (survey.stability_score, "Stability score", "stability score"),
        ):
            if len(values):
                found.append(_chart(values, title, of, (label, "masks")))
    return found


def round_step(span: float, most: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten of which at most `most` cover `span` (> 0)."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(each * power for each in (1, 2, 5, 10) if each * power * most >= span * (1 - 1e-9))


def histogram(values: np.ndarray, logarithmic: bool = False) -> Histogram:
    """At most about 30 bins of equal, round width; whole numbers get whole widths.

    With `logarithmic`, four bins per decade, from that of the smallest to that of the largest.
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
    return Histogram(np.histogram(kept, edges)[0], edges, values.size - kept.size)


def _chart(values: np.ndarray, title: str, of: str, columns: tuple[str, str]) -> Chart:
    shape = histogram(values, columns[0].endswith("(log scale)"))
    whole = np.issubdtype(values.dtype, np.integer)
    form = ",.0f" if whole else ".3f"
    low, middle, high = (format(float(at), form) for at in np.quantile(values, (0, 0.5, 1)))
    note = f"Smallest {low}, median {middle}, largest {high}; {of}."
    if shape.left_out:
        note += f" Not shown: {counted(shape.left_out, 'value')} that the axis cannot show."
    if not shape.counts.any():
        return Chart(title, note, columns, [])
    edges = shape.edges.tolist()
    names = [_range(*pair, whole) for pair in pairwise(edges)]
    ends = f"{edges[0]:,.10g}", f"{edges[-1]:,.10g}"
    return Chart(title, note, columns, _bars(names, shape.counts.tolist()), ends)


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


def _sizes_chart(survey: Survey, of: str) -> Chart:
    common = survey.sizes.most_common(_COMMON_SIZES)
    found = {f"{width} x {height}": count for (width, height), count in common}
    if len(survey.sizes) > len(common):
        found["others"] = survey.sizes.total() - sum(found.values())
    note = f"Width x height of the source, {counted(len(survey.sizes), 'size')}; {of}."
    bars = _bars(list(found), list(found.values()))
    return Chart("Image sizes", note, ("pixels", "images"), bars)
