"""Which rows of a pack a dataset holds: a range where that is possible, else an array of rows."""

import operator
from typing import Any

import numpy as np

# Rows of a pack in the order of a dataset: an arithmetic progression, or int64 (n,) read-only.
Rows = range | np.ndarray


def take(rows: Rows, selection: Any) -> Rows:
    """The rows at the positions that a slice, an index array or a bool array selects.

    selection  slice; integers (negative ones count from the end), any order, repeats allowed; or
               bool (n,)

    Raises IndexError as numpy does: a position out of range, a bool array of another length, an
    array that is neither bool nor integer or not one-dimensional.
    """
    if isinstance(selection, slice):
        return as_rows(rows[selection])
    positions = as_positions(selection, len(rows))
    if isinstance(rows, range):
        return as_rows(rows.start + positions * rows.step)
    return as_rows(rows[positions])


def as_position(index: Any) -> int:
    """An integer of any kind as an int. Raises TypeError for anything else, bools included."""
    if isinstance(index, bool | np.bool_):  # which operator.index takes for 0 and 1
        raise _not_an_index(index)
    return operator.index(index)


def _not_an_index(value: Any) -> TypeError:
    return TypeError(
        f"a dataset is indexed by integers, slices and index arrays, not by {type(value).__name__}"
    )


def as_positions(selection: Any, length: int) -> np.ndarray:
    """An index array or a bool array as int64 positions in 0 to length - 1."""
    if np.ndim(selection) == 0:
        raise _not_an_index(selection)
    selection = np.asarray(selection)
    if selection.ndim != 1:
        raise IndexError(f"an index array must have one dimension, this has {selection.ndim}")
    if selection.dtype == np.bool_:
        if len(selection) != length:
            raise IndexError(
                f"a bool array of {len(selection)} cannot select from a dataset of {length} samples"
            )
        return np.flatnonzero(selection)
    if selection.size == 0:
        return np.empty(0, np.int64)
    if not np.issubdtype(selection.dtype, np.integer):
        raise IndexError(f"an index array must be of integers or bools, this is {selection.dtype}")
    low, high = selection.min(), selection.max()
    if low < -length or high >= length:
        raise IndexError(
            f"index {low if low < -length else high} is out of range for a dataset of {length} "
            "samples"
        )
    positions = selection.astype(np.int64)
    positions[positions < 0] += length
    return positions


def as_rows(rows: Rows) -> Rows:
    """Rows in their one canonical form, so that the same rows have the same fingerprint."""
    count = len(rows)
    if count == 0:
        return range(0)
    first = int(rows[0])
    if count == 1:
        return range(first, first + 1)
    step = int(rows[1]) - first
    if isinstance(rows, range) or _is_progression(rows, first, step):
        return range(first, first + step * count, step)
    rows.flags.writeable = False
    return rows


def _is_progression(rows: np.ndarray, first: int, step: int) -> bool:
    if step == 0 or rows[-1] != first + step * (len(rows) - 1):
        return False
    return bool((np.diff(rows) == step).all())


def row_array(rows: Rows) -> np.ndarray:
    """The rows as int64 (n,)."""
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
    return rows


def rows_at(rows: Rows, positions: np.ndarray) -> np.ndarray:
    """The rows at int64 positions, which must be within 0 to n - 1."""
    if isinstance(rows, range):
        return rows.start + positions * rows.step
    return rows[positions]


def concatenated(ranges: list[range]) -> Rows:
    """Several ranges one after the other."""
    if len(ranges) == 1:
        return as_rows(ranges[0])
    return as_rows(np.concatenate([np.empty(0, np.int64), *map(row_array, ranges)]))


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """int64 (n,) counts as int64 (n + 1,) offsets from 0."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def shard_bounds(first_row: list[int], rows: Rows) -> np.ndarray:
    """int64 (k + 1,): positions from 0 to n among rows, where the shard changes.

    first_row  first row of each shard, and the number of all rows
    """
    if len(rows) == 0:
        return np.zeros(1, np.int64)
    edges = np.array(first_row)
    if isinstance(rows, range) and rows.step > 0:
        # The first position whose row is at or after the edge.
        inner = -((rows.start - edges) // rows.step)
        return np.unique(np.concatenate([[0], np.clip(inner, 0, len(rows)), [len(rows)]]))
    numbers = np.searchsorted(edges, row_array(rows), side="right") - 1
    changes = np.flatnonzero(np.diff(numbers)) + 1
    return np.concatenate([[0], changes, [len(rows)]]).astype(np.int64)
