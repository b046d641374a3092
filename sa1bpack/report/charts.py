"""The charts of a report, laid out for the template that writes them as SVG."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sa1bpack.format import Manifest
from sa1bpack.report.survey import Survey
from sa1bpack.wording import counted

_COMMON_SIZES = 8  # the rest are one bar
_STEPS = (1, 2, 5, 10)
_BINS, _BINS_A_DECADE = 30, 4
# In units of a drawing, of which one is about a pixel: edges of the plot of a histogram; height of
# a row of bars, and widths of its name and its count.
_WIDTH, _HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _FLOOR = 50, 382, 10, 194
_ROW, _NAMES, _COUNTS = 24, 96, 62


class Bar(NamedTuple):
    """A rectangle from its upper left corner; its name is shown under the pointer."""

    name: str
    x: float
    y: float
    width: float
    height: float


class Label(NamedTuple):
    """A text; its kind is a class of the style sheet, which says where it begins."""

    kind: str
    x: float
    y: float
    text: str


@dataclass
class Chart:
    """A chart in units of its drawing, and the numbers that it shows; without bars, only a note.

    note     where the values are from
    columns  headings of the two columns of `rows`: a bin or a name, and its count
    numbers  of these columns, from the right, that hold numbers
    ticks    of a histogram: x of the ticks of its axis, y of its lines
    """

    title: str
    note: str
    columns: tuple[str, str]
    rows: list[tuple[str, str]]
    numbers: int = 2
    height: int = _HEIGHT
    bars: list[Bar] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    ticks: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


class Histogram(NamedTuple):
    """The number of values between each two edges.

    counts       int64 (b,); a value on an edge belongs to the bin above it
    edges        float64 (b + 1,), increasing
    logarithmic  whether bins have equal width on a logarithmic scale
    whole        whether values are whole numbers, so that a bin ends one below its upper edge
    left_out     number of values that are not finite, or not above 0 with `logarithmic`
    """

    counts: np.ndarray
    edges: np.ndarray
    logarithmic: bool
    whole: bool
    left_out: int


def charts(manifest: Manifest, mask_counts: np.ndarray, survey: Survey) -> list[Chart]:
    """Histograms of masks per image, image sizes, areas, predicted IoU and stability."""
    if not mask_counts.size:
        return []
    of_all = f"all {counted(len(mask_counts), 'image')}"
    found = [_chart(mask_counts, "Masks per image", of_all, ("masks per image", "images"))]
    if survey.images:
        of = _basis(manifest, survey)
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


def _basis(manifest: Manifest, survey: Survey) -> str:
    """The basis of the values, as text: all images, or so many of them."""
    if survey.images == manifest.samples:
        return f"all {counted(survey.images, 'image')}"
    return (
        f"{survey.images:,} of {counted(manifest.samples, 'image')}, "
        f"in {len(survey.shards):,} of {counted(len(manifest.shards), 'shard')}"
    )


def round_step(span: float, most: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten of which at most `most` cover `span` (> 0)."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(step * power for step in _STEPS if step * power * most >= span * (1 - 1e-9))


def histogram(values: np.ndarray, logarithmic: bool = False) -> Histogram:
    """At most about 30 bins of equal, round width; whole numbers get whole widths.

    With `logarithmic`, four bins per decade, from that of the smallest to that of the largest.
    """
    whole = np.issubdtype(values.dtype, np.integer)
    kept = values[values > 0 if logarithmic else np.isfinite(values)]
    low, high = (float(kept.min()), float(kept.max())) if kept.size else (1.0, 9.0)
    if logarithmic:
        decades = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
        edges = 10.0 ** (np.arange(*(_BINS_A_DECADE * d for d in decades)) / _BINS_A_DECADE)
        edges = np.append(edges, 10.0 ** decades[1])
    else:
        step = round_step(max(high - low, 1e-9 * max(1.0, abs(high))), _BINS)
        if whole:
            step = max(1.0, step)
        elif high == low:
            step = round_step(max(abs(high), 1.0), 20)
        first = math.floor(low / step + 1e-9)
        if _multiple(first, step) > low:  # by less than the rounding of the quotient
            first -= 1
        last = math.floor(high / step + 1e-9) + 1
        edges = np.array([_multiple(number, step) for number in range(first, last + 1)])
    counts = np.histogram(kept, edges)[0]
    return Histogram(counts, edges, logarithmic, whole, values.size - kept.size)


def _multiple(number: int, step: float) -> float:
    """`number` steps, a product rather than a sum: 0.95 is an edge, not 0.9500000000001."""
    return float(f"{number * step:.12g}")


def _ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Round values in [low, high], at most about `most` steps of at least `least` apart."""
    step = max(least, round_step(high - low, most))
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [_multiple(number, step) for number in numbers]


def _compact(value: float) -> str:
    """A short form of a number for an axis: 0.95, 250, 20k, 1.5M."""
    for limit, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / unit:.6g}{name}"
    return f"{value:,.6g}"


def _chart(values: np.ndarray, title: str, of: str, columns: tuple[str, str]) -> Chart:
    shape = histogram(values, columns[0].endswith("(log scale)"))
    form = ",.0f" if shape.whole else ".3f"
    low, middle, high = (format(float(at), form) for at in np.quantile(values, (0, 0.5, 1)))
    note = f"Smallest {low}, median {middle}, largest {high}; {of}."
    if shape.left_out:
        note += f" Not shown: {counted(shape.left_out, 'value')} that the axis cannot show."
    counts = shape.counts.tolist()
    rows = [(_range(shape, place), f"{count:,}") for place, count in enumerate(counts)]
    chart = Chart(title, note, columns, rows)
    if not any(counts):
        return chart
    edges = np.log10(shape.edges) if shape.logarithmic else shape.edges
    first, last = float(edges[0]), float(edges[-1])
    step = max(1.0, round_step(max(counts), 4))
    top = step * math.ceil(max(counts) / step)  # a tick at or above the tallest bar

    def across(value: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * (value - first) / (last - first), 1)

    def up(count: float) -> float:
        return round(_FLOOR - (_FLOOR - _TOP) * count / top, 1)

    for row, count, low, high in zip(rows, counts, edges[:-1], edges[1:], strict=True):
        x, width = across(low), across(high) - across(low)
        gap = 1 if width > 4 else 0
        name = f"{row[0]}: {row[1]}"
        bar = Bar(name, x + gap / 2, up(count), round(width - gap, 1), round(_FLOOR - up(count), 1))
        chart.bars.append(bar)
    powers = shape.logarithmic
    values = _ticks(first, last, 8, least=1) if powers else _ticks(first, last, 6)
    lines = _ticks(0, top, 4, least=1)
    chart.ticks = [across(value) for value in values], [up(count) for count in lines]
    chart.labels = [
        *(
            Label("middle", across(value), _FLOOR + 17, _compact(10**value if powers else value))
            for value in values
        ),
        *(Label("end", _LEFT - 6, up(count) + 4, _compact(count)) for count in lines),
        Label("middle", (_LEFT + _RIGHT) // 2, _HEIGHT - 8, columns[0]),
        Label("upwards", -(_TOP + _FLOOR) // 2, 12, columns[1]),
    ]
    return chart


def _range(shape: Histogram, place: int) -> str:
    """The values of a bin as text, such as `20 to 29` or `0.95 to 0.96`."""
    low, high = shape.edges[place], shape.edges[place + 1]
    if not shape.whole:
        return f"{low:g} to {high:g}"
    first, last = math.ceil(low - 1e-9), math.ceil(high - 1e-9) - 1
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _sizes_chart(survey: Survey, of: str) -> Chart:
    common = survey.sizes.most_common(_COMMON_SIZES)
    bars = [(f"{width} x {height}", count) for (width, height), count in common]
    if len(survey.sizes) > len(common):
        bars.append(("others", survey.sizes.total() - sum(count for _, count in common)))
    note = f"Width x height of the source, {counted(len(survey.sizes), 'size')}; {of}."
    chart = Chart(
        "Image sizes",
        note,
        ("pixels", "images"),
        [(name, f"{count:,}") for name, count in bars],
        numbers=1,
        height=26 + _ROW * len(bars),
    )
    chart.labels = [Label("end", _NAMES - 8, 14, "pixels"), Label("start", _NAMES, 14, "images")]
    most = max(count for _, count in bars)
    for place, (name, count) in enumerate(bars):
        top = 22 + place * _ROW
        length = round(max(1.0, (_WIDTH - _NAMES - _COUNTS) * count / most), 1)
        chart.bars.append(Bar(f"{name}: {count:,}", _NAMES, top + 3, length, _ROW - 6))
        chart.labels.append(Label("end", _NAMES - 8, top + 15, name))
        chart.labels.append(Label("start", _NAMES + length + 6, top + 15, f"{count:,}"))
    return chart
