"""The rows of a pack that a dataset holds, how ids find them, and what identifies them.

Rows are a range where that is possible, else an array. They are identified by their fingerprint: an
XXH3-64 of the digests of the shards that have them, and of the rows in these, as docs/format.md
specifies. It is that of content, not of a place: the same in a pack that has grown, in a merged
one, and over several packs. Orders and states of a selection depend on nothing else.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.files import REMEDY

# Rows of a pack in the order of a dataset: an arithmetic progression, or int64 (n,) read-only.
Rows = range | np.ndarray

_VERSION = b"sa1bpack samples 1\n"


def take(rows: Rows, selection: Any) -> Rows:
    """The rows at the positions that a slice, an index array or a bool array selects.

    Args:
        selection: a slice; integers in any order, negative ones counted from the end, repeats
            allowed; or bool (n,).

    Raises:
        IndexError: as in numpy, a position is out of range, a bool array has another length, or an
            array is neither bool nor integer, or not one-dimensional.
    """
    if isinstance(selection, slice):
        return as_rows(rows[selection])
    if np.ndim(selection) == 0:
        raise _not_an_index(selection)
    selection = np.asarray(selection)
    length = len(rows)
    if selection.ndim != 1:
        raise IndexError(f"an index array must have one dimension, this has {selection.ndim}")
    if selection.dtype == np.bool_ and len(selection) == length:
        return as_rows(rows_at(rows, np.flatnonzero(selection)))
    if selection.size == 0 and selection.dtype != np.bool_:
        return range(0)
    np.broadcast_to(np.int8(0), length)[selection]  # numpy's errors, of an array without memory
    positions = selection.astype(np.int64)
    positions[positions < 0] += length
    return as_rows(rows_at(rows, positions))


def as_position(index: Any) -> int:
    """An integer of any kind as an int. Raises TypeError for anything else, bools included."""
    if isinstance(index, bool | np.bool_):  # which operator.index takes for 0 and 1
        raise _not_an_index(index)
    try:
        return operator.index(index)
    except TypeError:
        raise _not_an_index(index) from None


def _not_an_index(value: Any) -> TypeError:
    return TypeError(
        f"a dataset is indexed by integers, slices and index arrays, not by {type(value).__name__}"
    )


def as_rows(rows: Rows) -> Rows:
    """Rows in their one canonical form, so that the same rows have the same fingerprint."""
    count = len(rows)
    if count == 0:
        return range(0)
    first = int(rows[0])
    if count == 1:
        return range(first, first + 1)
    step = int(rows[1]) - first
    if isinstance(rows, range) or (step and (np.diff(rows) == step).all()):
        return range(first, first + step * count, step)
    rows.flags.writeable = False
    return rows


def row_array(rows: Rows) -> np.ndarray:
    """The rows as int64 (n,)."""
    if isinstance(rows, range):
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
    return rows


def rows_at(rows: Rows, positions: np.ndarray) -> np.ndarray:
    """The rows at int64 positions, which must be within 0 to n - 1."""
    if isinstance(rows, range):
        return rows.start + positions * rows.step
    selected: np.ndarray = rows[positions]
    return selected


def shard_bounds(first_row: Sequence[int] | np.ndarray, rows: Rows) -> np.ndarray:
    """int64 (k + 1,): positions from 0 to n among rows, where the shard changes.

    Args:
        first_row: first row of each shard, and the number of all rows.
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


def digest_of(
    first_row: Sequence[int] | np.ndarray, digests: Sequence[str], rows: Rows
) -> xxhash.xxh3_64:
    """The digest of rows, whose 16 hexadecimal digits are the fingerprint of rows with all masks.

    Args:
        first_row: first row of each shard, and the number of all rows.
        digests: digest of each shard.
    """
    edges = np.array(first_row)
    # The longest stretches of neighbouring rows of one shard, in the order of the rows.
    bounds = shard_bounds(edges, rows)
    if not isinstance(rows, range) or rows.step != 1:
        rows = row_array(rows)
        breaks = np.diff(rows) != 1
        breaks[bounds[1:-1] - 1] = True
        bounds = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(rows)]])
    starts = rows_at(rows, bounds[:-1])
    count = np.diff(bounds)
    numbers = np.searchsorted(edges, starts, side="right") - 1
    first = starts - edges[numbers]
    shards = len(digests)
    used_at = np.full(shards, len(numbers))
    used_at[numbers[::-1]] = np.arange(len(numbers))[::-1]  # of an index given twice, the last
    used = np.argsort(used_at, kind="stable")[: np.count_nonzero(used_at < len(numbers))]
    ordinal = np.empty(shards, np.int64)
    ordinal[used] = np.arange(len(used))
    digest = xxhash.xxh3_64(_VERSION)
    digest.update("".join(f"{digests[number]}\n" for number in used.tolist()).encode())
    digest.update(np.stack([ordinal[numbers], first, count], 1).astype("<i8").tobytes())
    return digest


@dataclass(frozen=True)
class IdLookup:
    """The positions of image ids among n samples.

    Attributes:
        ids: int64 (n,), the image ids.
        stored: int64 (n,), stable argsort of the ids as it was read, unchecked.
        path: where `stored` was read from.
    """

    ids: np.ndarray
    stored: np.ndarray | None = None
    path: Path | None = None

    @cached_property
    def order(self) -> np.ndarray:
        """int64 (n,): stable argsort of the ids; computed once unless it was read."""
        return np.argsort(self.ids, kind="stable") if self.stored is None else self.stored

    def positions(self, image_ids: np.ndarray) -> np.ndarray:
        """int64 (k,): the first position of each id, -1 if there is none.

        Args:
            image_ids: int64 (k,), in any order.

        Raises:
            FormatError: the order that was read has a row that does not exist.
        """
        count = len(self.ids)
        if not count or not len(image_ids):
            return np.full(len(image_ids), -1)
        by_id = np.argsort(image_ids)  # each search begins where the last one ended, in the cache
        positions = np.empty(len(image_ids), np.int64)
        try:
            ranks = np.searchsorted(self.ids, image_ids[by_id], sorter=self.order)
            positions[by_id] = self.order[np.minimum(ranks, count - 1)]
            damaged = bool(positions.min() < 0 or positions.max() >= count)
        except (IndexError, ValueError):  # numpy's words for a row that does not exist
            damaged = True
        if damaged:
            raise FormatError(f"{self.path}: a row is not from 0 to {count - 1}; {REMEDY}")
        return np.where(self.ids[positions] == image_ids, positions, -1)
