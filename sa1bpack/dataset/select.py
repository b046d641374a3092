"""Which samples a selection by shards, by a condition or by ids holds."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sa1bpack.dataset.columns import Columns
from sa1bpack.dataset.conditions import parse_condition
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import Rows, as_rows, concatenated, row_array
from sa1bpack.errors import OptionError, UnknownName
from sa1bpack.wording import span_text


def of_shards(pack: Pack, rows: Rows, field: str, names: str | Iterable[str]) -> Rows:
    """Those of the rows that are in the shards whose entry has one of these names in a field.

    Raises UnknownName for a name that no shard has.
    """
    wanted = {names} if isinstance(names, str) else set(names)
    edges, entries = pack.shards.first_row, pack.manifest.shards
    known = {getattr(entry, field) for entry in entries}
    if unknown := sorted(wanted - known, key=str):
        raise UnknownName(f"{unknown[0]!r}; {pack.name} has {span_text(known)}")
    chosen = np.array([getattr(entry, field) in wanted for entry in entries])
    if isinstance(rows, range) and rows == range(len(pack)):
        return concatenated(
            [range(edges[k], edges[k + 1]) for k in np.flatnonzero(chosen).tolist()]
        )
    rows = row_array(rows)
    return as_rows(rows[chosen[pack.shard_numbers(rows)]])


def flags(condition: Any, columns: Iterable[Columns], count: int) -> np.ndarray:
    """bool (count,): which samples fulfil a condition, see `Dataset.where`.

    columns  of all samples, one shard at a time

    Raises OptionError for what is neither bools nor a function that returns them.
    """
    if isinstance(condition, str):
        condition = parse_condition(condition)
    if not callable(condition):
        found = np.asarray(condition)
        if found.dtype != np.bool_:
            raise OptionError(f"where() takes bools, a function or a text, not {found.dtype}")
        return found
    keep = np.zeros(count, bool)
    for part in columns:
        keep[part.positions] = _called(condition, part)
    return keep


def _called(condition: Callable[[Columns], np.ndarray], columns: Columns) -> np.ndarray:
    found = np.asarray(condition(columns))
    if found.dtype != np.bool_ or found.shape != (len(columns),):
        raise OptionError(
            f"the condition returned {found.dtype} {found.shape}: it must return one bool "
            f"per sample, here ({len(columns)},)"
        )
    return found


def as_ids(image_ids: Any) -> np.ndarray:
    """Image ids as int64 (k,). Raises OptionError for what is not a row of integers of 64 bits."""
    found = np.asarray(image_ids)
    if found.ndim == 1 and found.size == 0:
        return np.empty(0, np.int64)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise OptionError(
            f"image_ids are {found.dtype} {found.shape}: give a one-dimensional array of integers"
        )
    if found.dtype == np.uint64 and found.max() > 2**63 - 1:
        raise OptionError(f"image_ids has {found.max()}: an id has 63 bits and a sign")
    return found.astype(np.int64)
