"""Offsets of ranges that lie one after another."""

import numpy as np


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """int64 (n,) counts as int64 (n + 1,) offsets from 0."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=offsets[1:])
    return offsets


def expanded(first: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The rows of n ranges, one range after another: range i begins at first[i].

    Args:
        first: int64 (n,), first row of each range.
        offsets: int64 (n + 1,) from 0: range i has offsets[i + 1] - offsets[i] rows.
    """
    return np.repeat(first - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])
