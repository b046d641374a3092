"""Histograms with round edges."""

import math
from dataclasses import dataclass

import numpy as np

_STEPS = (1, 2, 5, 10)
_BINS_A_DECADE = 4


@dataclass(frozen=True)
class Histogram:
    """The number of values between each two edges.

    counts
        (b,) int64. A value on an edge belongs to the bin above it.
    edges
        (b + 1,) float64, increasing; powers of ten and fractions of them with `logarithmic`.
    logarithmic
        Whether bins have equal width on a logarithmic scale.
    whole
        Whether the values are whole numbers, so that a bin ends one below its upper edge.
    left_out
        Number of values that cannot be shown: not finite, or not above 0 with `logarithmic`.
    """

    counts: np.ndarray
    edges: np.ndarray
    logarithmic: bool
    whole: bool
    left_out: int


def round_step(span: float, most: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten of which at most `most` cover `span` (> 0)."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(step * power for step in _STEPS if step * power * most >= span * (1 - 1e-9))


def histogram(values: np.ndarray, bins: int = 30) -> Histogram:
    """At most about `bins` bins of equal, round width; whole numbers get whole widths."""
    whole = np.issubdtype(values.dtype, np.integer)
    kept = values[np.isfinite(values)]
    low, high = (float(kept.min()), float(kept.max())) if kept.size else (0.0, 1.0)
    step = round_step(max(high - low, 1e-9 * max(1.0, abs(high))), bins)
    if whole:
        step = max(1.0, step)
    elif high == low:
        step = round_step(max(abs(high), 1.0), 20)
    first = math.floor(low / step + 1e-9)
    if _multiple(first, step) > low:  # by less than the rounding of the quotient
        first -= 1
    last = math.floor(high / step + 1e-9) + 1
    edges = np.array([_multiple(number, step) for number in range(first, last + 1)])
    return Histogram(_counts(kept, edges), edges, False, whole, values.size - kept.size)


def log_histogram(values: np.ndarray) -> Histogram:
    """For whole numbers: four bins per decade, from that of the smallest to that of the largest."""
    kept = values[values > 0]
    low, high = (int(kept.min()), int(kept.max())) if kept.size else (1, 9)
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    edges = 10.0 ** (np.arange(first * _BINS_A_DECADE, last * _BINS_A_DECADE + 1) / _BINS_A_DECADE)
    return Histogram(_counts(kept, edges), edges, True, True, values.size - kept.size)


def _multiple(number: int, step: float) -> float:
    """`number` steps, a product rather than a sum: 0.95 is an edge, not 0.9500000000001."""
    return float(f"{number * step:.12g}")


def _counts(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Number of values in each bin, including its lower edge and excluding its upper one."""
    places = np.searchsorted(edges, values, side="right") - 1
    return np.bincount(np.clip(places, 0, len(edges) - 2), minlength=len(edges) - 1)
