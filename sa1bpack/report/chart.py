"""Charts as inline SVG, each with a title, axes with units, and a table of its numbers."""

from collections.abc import Sequence

import numpy as np

from sa1bpack.report.histogram import Histogram, round_step
from sa1bpack.report.markup import Markup, element, table

# In units of the drawing; on a page, one is about a screen pixel.
_WIDTH, _HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _FLOOR = 50, 382, 10, 194  # edges of the plot
_ROW, _NAMES, _COUNTS = 24, 96, 62  # height of a bar's row, widths of its name and its count


def histogram_chart(shape: Histogram, title: str, note: str, x_label: str, y_label: str) -> Markup:
    """A figure of a histogram.

    title, note       above the chart; the note also says where the values are from
    x_label, y_label  labels of the axes, with units
    """
    across, top = _Axis(shape), _round_top(int(shape.counts.max(initial=0)))
    counts = shape.counts.tolist()
    drawing = [
        *_count_axis(top),
        *(_bar(shape, across, place, top) for place in range(len(counts))),
        *_value_axis(across),
        element("text", x_label, class_="label middle", x=(_LEFT + _RIGHT) // 2, y=_HEIGHT - 8),
        element(
            "text", y_label, class_="label middle",
            transform=f"translate(12 {(_TOP + _FLOOR) // 2}) rotate(-90)",
        ),
    ]  # fmt: skip
    lines = ((_range(shape, place), f"{count:,}") for place, count in enumerate(counts))
    return _figure(title, note, _HEIGHT, drawing, table((x_label, y_label), lines, numbers=2))


def bar_chart(
    rows: Sequence[tuple[str, int]], title: str, note: str, row_label: str, count_label: str
) -> Markup:
    """A figure of horizontal bars, one per row (name, count), with labels above the columns."""
    most = max(count for _, count in rows)
    drawing = [
        element("text", row_label, class_="label end", x=_NAMES - 8, y=14),
        element("text", count_label, class_="label", x=_NAMES, y=14),
    ]
    for place, (name, count) in enumerate(rows):
        top = 22 + place * _ROW
        length = max(1.0, (_WIDTH - _NAMES - _COUNTS) * count / most)
        drawing += [
            element("text", name, class_="tick end", x=_NAMES - 8, y=top + 15),
            _rectangle(f"{name}: {count:,}", _NAMES, top + 3, length, _ROW - 6),
            element("text", f"{count:,}", class_="tick", x=_at(_NAMES + length + 6), y=top + 15),
        ]
    numbers = table((row_label, count_label), ((n, f"{c:,}") for n, c in rows), numbers=1)
    return _figure(title, note, 26 + len(rows) * _ROW, drawing, numbers)


def compact(value: float) -> str:
    """A short form of a number for an axis: 0.95, 250, 20k, 1.5M."""
    for limit, unit, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / unit:.6g}{name}"
    return f"{value:,.6g}"


class _Axis:
    """The horizontal axis of a histogram: value → position in the plot."""

    def __init__(self, shape: Histogram):
        self._log = shape.logarithmic
        self._low, self._high = self._moved(shape.edges[0]), self._moved(shape.edges[-1])

    def _moved(self, value: float) -> float:
        return float(np.log10(value)) if self._log else float(value)

    def of(self, value: float) -> float:
        share = (self._moved(value) - self._low) / (self._high - self._low)
        return _LEFT + (_RIGHT - _LEFT) * share

    def ticks(self) -> list[float]:
        if self._log:
            first, last = round(self._low), round(self._high)
            step = -(
                -(last - first) // 8
            )  # a range that only damage makes this wide gets fewer ticks
            return [10.0**power for power in range(first, last + 1, step)]
        return _ticks(self._low, self._high, 6)


def _ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Round values from low to high, in at most about `most` steps of at least `least`."""
    step = max(least, round_step(high - low, most))
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _round_top(count: int) -> float:
    """The end of an axis that starts at 0: a tick at or above the largest count."""
    step = max(1.0, round_step(max(count, 1), 4))
    return step * max(1, int(np.ceil(count / step - 1e-9)))


def _height(count: float, top: float) -> float:
    return (_FLOOR - _TOP) * count / top


def _count_axis(top: float) -> list[Markup]:
    parts = []
    for count in _ticks(0, top, 4, least=1):
        y = _FLOOR - _height(count, top)
        parts.append(element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=_at(y), y2=_at(y)))
        parts.append(element("text", compact(count), class_="tick end", x=_LEFT - 6, y=_at(y + 4)))
    return parts


def _value_axis(across: _Axis) -> list[Markup]:
    parts = [element("line", class_="axis", x1=_LEFT, x2=_RIGHT, y1=_FLOOR, y2=_FLOOR)]
    for value in across.ticks():
        x = _at(across.of(value))
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=_FLOOR, y2=_FLOOR + 4))
        parts.append(element("text", compact(value), class_="tick middle", x=x, y=_FLOOR + 17))
    return parts


def _bar(shape: Histogram, across: _Axis, place: int, top: float) -> Markup:
    left, right = across.of(shape.edges[place]), across.of(shape.edges[place + 1])
    gap = 1 if right - left > 4 else 0
    count = int(shape.counts[place])
    height = _height(count, top)
    name = f"{_range(shape, place)}: {count:,}"
    return _rectangle(name, left + gap / 2, _FLOOR - height, right - left - gap, height)


def _rectangle(name: str, x: float, y: float, width: float, height: float) -> Markup:
    """A bar; its name is shown under the pointer."""
    return element(
        "rect", element("title", name), class_="bar", x=_at(x), y=_at(y), width=_at(width),
        height=_at(height),
    )  # fmt: skip


def _range(shape: Histogram, place: int) -> str:
    """The values of a bin as text, such as `20 to 29` or `0.95 to 0.96`."""
    low, high = shape.edges[place], shape.edges[place + 1]
    if not shape.whole:
        return f"{low:g} to {high:g}"
    first, last = int(np.ceil(low - 1e-9)), int(np.ceil(high - 1e-9)) - 1
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _at(value: float) -> str:
    """A coordinate; a tenth of a unit is less than a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _figure(
    title: str, note: str, height: int, drawing: Sequence[Markup], numbers: Markup
) -> Markup:
    label = f"{title}. {note}"
    return element(
        "figure",
        element("figcaption", element("h3", title), element("p", note)),
        element("svg", *drawing, role="img", aria_label=label, viewBox=f"0 0 {_WIDTH} {height}"),
        element("details", element("summary", "Numbers"), numbers),
        class_="chart card",
    )
