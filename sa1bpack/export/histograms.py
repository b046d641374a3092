"""Histograms of the numbers of a pack, with round edges."""

import math

import numpy as np

_BINS_A_DECADE = 4


def histogram(
    values: np.ndarray, most: int, logarithmic: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Counts int64 (b,) and edges float64 (b + 1,): a value on an edge is in the bin above it.

    At most about `most` bins of equal, round width; whole numbers get whole widths. With
    `logarithmic`, four bins per decade, from that of the smallest to that of the largest. Values
    that are not finite, or not above 0 on a logarithmic axis, are not counted.
    """
    on_axis = values[values > 0] if logarithmic else values[np.isfinite(values)]
    if not on_axis.size:
        return np.zeros(0, np.int64), np.ones(1)
    low = float(on_axis.min())
    high = float(on_axis.max())
    if logarithmic:
        first = math.floor(math.log10(low))
        last = math.floor(math.log10(high)) + 1
        edges = np.logspace(first, last, (last - first) * _BINS_A_DECADE + 1)
        return np.histogram(on_axis, edges)
    whole = np.issubdtype(values.dtype, np.integer)
    scale = max(1.0, abs(high))
    span = max(high - low, 1e-9 * scale)
    if low == high and not whole:
        span = 1.5 * scale
    # The smallest 1, 2 or 5 times a power of ten of which at most `most` cover the span.
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(k * power for k in (1, 2, 5, 10) if k * power * most >= span * (1 - 1e-9))
    if whole:
        step = max(1.0, step)
    numbers = range(math.floor(low / step) - 1, math.floor(high / step) + 3)
    # A product has few digits: 0.95 is an edge, not 0.9500000000001.
    edges = np.array([float(f"{number * step:.12g}") for number in numbers])
    first, last = np.searchsorted(edges, (low, high), "right").tolist()
    return np.histogram(on_axis, edges[first - 1 : last + 1])


def bin_text(low: float, high: float, whole: bool) -> str:
    """The values of a bin as text, such as `20 to 29` or `0.95 to 0.96`."""
    if not whole:
        return f"{low:g} to {high:g}"
    first = math.ceil(low - 1e-9)
    last = math.ceil(high - 1e-9) - 1
    if first == last:
        return f"{first:,}"
    return f"{first:,} to {last:,}"
