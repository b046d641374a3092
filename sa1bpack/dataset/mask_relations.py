"""Relations of an image's masks as numbers of each mask, from the arrays of its shard."""

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from sa1bpack.errors import MaskError
from sa1bpack.format.offsets import expanded, offsets_of

# Of these, the first ones follow from the same common pixels of all pairs, which take the time;
# which masks touch takes more.
_OF_THE_HIERARCHY = ("depth", "parent", "children", "level")
RELATION_NUMBERS = (*_OF_THE_HIERARCHY, "touching")


def numbers_together(name: str) -> tuple[str, ...]:
    """The relations that are computed at once where one is asked for."""
    return _OF_THE_HIERARCHY if name in _OF_THE_HIERARCHY else (name,)


def relation_numbers(
    arrays: Mapping[str, np.ndarray],
    rows: np.ndarray,
    size: tuple[int, int],
    names: Collection[str],
) -> dict[str, np.ndarray]:
    """Name → int64 (m,): relations of the masks of one image, as `Columns.relation` describes them.

    Args:
        arrays: `run_ends` and `run_offset` of the shard; or, of packs without runs, `mask_bits`.
        rows: int64 (m,), the rows of the masks in the shard.
        size: height and width of the source image.
        names: some of RELATION_NUMBERS.

    Raises:
        MaskError: the runs of the masks are damaged.
    """
    masks = len(rows)
    if not masks:
        return {name: np.empty(0, np.int64) for name in names}
    # The module has compiled kernels, and is imported when one is needed.
    relations = import_module("sa1bpack.masks.relations")
    if "run_ends" in arrays:
        related = relations.relate_runs(*_runs_of(arrays, rows), *size)
    else:
        related = relations.relate_bits(np.ascontiguousarray(arrays["mask_bits"][rows]))
    return {name: _number(related, name, masks) for name in names}


def _number(related: Any, name: str, masks: int) -> np.ndarray:
    """int64 (m,): one relation; `related` is a `masks.Relations`."""
    numbers: np.ndarray
    if name == "depth":
        numbers = related.depths
    elif name == "parent":
        numbers = related.parents
    elif name == "level":
        numbers = related.levels
    elif name == "children":
        numbers = np.bincount(related.parents + 1, minlength=masks + 1)[1:]
    else:
        numbers = related.touching.sum(1)
    return numbers.astype(np.int64, copy=False)


def _runs_of(arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int32 (r,) run ends and int64 (m + 1,) offsets from 0 of masks. Raises MaskError."""
    run_ends = arrays["run_ends"]
    first = arrays["run_offset"][rows]
    stop = arrays["run_offset"][rows + 1]
    # Compared, not subtracted: a difference of two int64 may wrap round.
    if (first < 0).any() or (stop < first).any() or (stop > len(run_ends)).any():
        raise MaskError(f"offsets of runs are not non-decreasing from 0 to {len(run_ends)}")
    offset = offsets_of(stop - first)
    return run_ends[expanded(first, offset)], offset
