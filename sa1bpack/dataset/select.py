"""Selections of samples, and of masks.

Samples are selected by shards, a condition, ids, a hash of the image id, or a file; masks by a
condition. `conditions.py` has the language of conditions as text, `condition_values.py` what they
may compare.

A sample is in a random part of the size f if u < f, where u in [0, 1) is a pure function of (seed,
use, image id), which docs/training.md states: the numbers of `random_words` with epoch 0. So more
tars, another order, a merge or a repair move no sample from one part to another, a larger part
contains every smaller one of the same seed, and packs on different machines agree.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sa1bpack.dataset.columns import Columns
from sa1bpack.dataset.condition_values import (
    checked_condition,
    evaluated,
    values_of_masks,
    values_of_samples,
)
from sa1bpack.dataset.kept_masks import KeptMasks, MaskFilter, flags_of_bits
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import IdLookup, Rows, as_rows, row_array, rows_at
from sa1bpack.errors import OptionError, OutputRefused, UnknownName
from sa1bpack.format.manifest import refuse_in_pack
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.format.selection import SelectedMasks, is_selection, read_selection, write_selection
from sa1bpack.paths import exists, listed
from sa1bpack.random_words import words
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief, counted, span_text

_log = logging.getLogger("sa1bpack")


# What a hash is used for, and the version of its rule: draws of other uses are other numbers. So a
# fraction of a dataset is independent of its validation part.
SPLIT = int.from_bytes(b"split 1", "big")
FRACTION = int.from_bytes(b"share 1", "big")


def of_shards(pack: Pack, rows: Rows, field: str, names: str | Iterable[str]) -> Rows:
    """The rows that are in the shards whose entry has one of these names in a field.

    Raises UnknownName for a name that no shard has.
    """
    chosen_names = listed(names)
    entries = pack.manifest.shards
    known = {getattr(entry, field) for entry in entries}
    for name in chosen_names:
        if name not in known:
            kind = "shard" if field == "name" else field
            raise UnknownName(f"no {kind} {brief(name)}: {pack.name} has {span_text(known)}")
    chosen = np.array([getattr(entry, field) in chosen_names for entry in entries])
    if pack.is_whole(rows):
        return as_rows(np.flatnonzero(np.repeat(chosen, np.diff(pack.first_row))))
    rows = row_array(rows)
    return as_rows(rows[chosen[pack.shard_numbers(rows)]])


def flags(condition: Any, pack: Pack, columns: Iterable[Columns], count: int) -> np.ndarray:
    """bool (count,): which samples fulfil a condition.

    Args:
        condition: as for `Dataset.where`.
        pack: the open pack.
        columns: columns of all samples, one shard at a time.
        count: samples in all.

    Raises:
        OptionError: the condition is neither bools nor a text nor a function that returns bools.
    """
    fulfils = _function_of(condition, pack, "where")
    if fulfils is None:
        return _bools(condition, "where")
    keep = np.zeros(count, bool)
    for shard_columns in columns:
        bools = np.asarray(fulfils(shard_columns))
        _check_flags(bools, len(shard_columns), "sample")
        keep[shard_columns.positions] = bools
    return keep


def mask_flags(
    condition: Any,
    pack: Pack,
    columns: Iterable[Columns],
    offsets: Callable[[], np.ndarray],
) -> dict[int, np.ndarray]:
    """Number of a shard → bool (m,), one per stored mask: those that fulfil a condition.

    Args:
        condition: as for `Dataset.where_masks`.
        pack: the open pack.
        columns: columns of all samples of the dataset, one shard at a time.
        offsets: called for bools: int64 (n + 1,), where the masks of each sample begin in them.

    Raises:
        OptionError: as `flags`; or bools that differ for one mask of a repeated sample.
        IndexError: bools of another length.
    """
    fulfils = _function_of(condition, pack, "where_masks")
    bools_of_all = np.empty(0, np.bool_)
    starts = np.empty(0, np.int64)
    if fulfils is None:
        bools_of_all = _bools(condition, "where_masks")
        starts = offsets()
        if bools_of_all.shape != (int(starts[-1]),):
            raise IndexError(
                f"where_masks has bools of the shape {bools_of_all.shape}, but the dataset has "
                f"{counted(int(starts[-1]), 'mask')}"
            )
    flags_by_shard = {}
    for shard_columns in columns:
        if fulfils is None:
            first = starts[:-1][shard_columns.positions]
            bools = bools_of_all[expanded(first, shard_columns["mask_offset"])]
        else:
            bools = np.asarray(fulfils(shard_columns))
            _check_flags(bools, int(shard_columns["mask_offset"][-1]), "mask")
        number = shard_columns.shard_number
        of_shard = np.zeros(pack.manifest.shards[number].masks, np.bool_)
        of_shard[shard_columns.mask_rows[bools]] = True
        if not np.array_equal(of_shard[shard_columns.mask_rows], bools):
            raise OptionError(
                "where_masks has True and False for one mask of a sample that the dataset has more "
                "than once: a mask is kept or not wherever its sample is"
            )
        flags_by_shard[number] = of_shard
    return flags_by_shard


def _function_of(condition: Any, pack: Pack, option: str) -> Callable[[Columns], np.ndarray] | None:
    """The function of columns that a condition is, or None for anything else."""
    if isinstance(condition, str):
        if option == "where":
            table = values_of_samples(pack)
            parsed = checked_condition(condition, option, table, "sample")
        else:
            table = values_of_masks(pack)
            parsed = checked_condition(condition, option, table, "mask")
        return lambda columns: evaluated(parsed, columns, table)
    if callable(condition):
        return partial(_of_user, condition, option)
    return None


def _bools(condition: Any, option: str) -> np.ndarray:
    bools = np.asarray(condition)
    if bools.dtype != np.bool_:
        raise OptionError(f"{option}() takes bools, a function or a text, not {bools.dtype}")
    return bools


def _check_flags(bools: np.ndarray, count: int, axis: str) -> None:
    if bools.dtype != np.bool_ or bools.shape != (count,):
        raise OptionError(
            f"the condition returned {bools.dtype} {bools.shape}: it must return one bool per "
            f"{axis}, here ({count},)"
        )


def _of_user(
    condition: Callable[[Columns], np.ndarray], option: str, columns: Columns
) -> np.ndarray:
    """What a function of the user's returns for the columns of a shard."""
    subject = f"the samples of shard {columns.shard_name}"
    bools: np.ndarray = call_user(condition, columns, role=option, subject=subject)
    return bools


def below(image_ids: np.ndarray, fraction: float, seed: int, use: int) -> np.ndarray:
    """bool (n,): whether the number u of each of int64 (n,) image ids is below a fraction.

    Raises OptionError for a seed that is not a whole number from 0 to 2**64 - 1.
    """
    drawn = words(seed, 0, image_ids, use, 1)[:, 0]
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction


def save_rows(pack: Pack, rows: Rows, path: Path, kept: KeptMasks | None) -> None:
    """Write the rows of a pack as a selection, with the masks that are kept; None: all.

    Raises OutputRefused for a path that exists and is not a selection, OptionError for one inside a
    pack, and for a sample that its id does not name, because another one has the same id.
    """
    refuse_in_pack("path", path)
    if exists(path) and not is_selection(path):
        raise OutputRefused(f"{path}: exists, and is not a selection; choose another name")
    ids = np.asarray(pack.image_ids(rows))
    base = pack.first_rows  # all that opening the file yields, before it selects from them
    rows_by_id = rows_at(base, IdLookup(pack.image_ids(base)).positions(ids))
    others = np.flatnonzero(rows_by_id != row_array(rows))
    if len(others):
        raise OptionError(
            f"{pack.name}: several samples have the image_id {ids[others[0]]}, and the selection "
            "is not of the first: open it with duplicates='first', and select again"
        )
    roots: list[Path | str] = []
    for folder in pack.folders:
        roots.append(folder.root if folder.source is None else folder.source.url)
    # By id, only the first is found.
    duplicates: Literal["error", "first"] = "error" if pack.duplicates == "error" else "first"
    masks = None
    if kept is not None:
        counts = np.diff(pack.mask_offsets(rows))
        bits = np.concatenate([np.empty(0, np.uint8), *pack.kept_bits(rows, kept)])
        masks = SelectedMasks(int(counts.sum()), bits, kept.text)
    fingerprint = pack.fingerprint(rows, MaskFilter.of(None, kept))
    write_selection(path, ids, fingerprint, roots, duplicates, masks)


def selected_rows(
    pack: Pack, rows: Rows, ids: IdLookup, path: Path, before: KeptMasks | None
) -> tuple[Rows, KeptMasks | None]:
    """The rows that a saved selection names, in its order, and the masks that are kept; None: all.

    Args:
        pack: the open pack.
        ids: image ids of the rows.
        path: file of the saved selection.
        before: the masks that are kept without the selection; None: all.

    Raises:
        OptionError: a sample of the selection is missing, or has other masks, or as for
            `read_selection`.
    """
    head, image_ids, masks = read_selection(path)
    positions = ids.positions(image_ids)
    missing = image_ids[positions < 0]
    if len(missing):
        raise OptionError(
            f"{path}: {len(missing):,} of its {counted(head.samples, 'image id')} are not in "
            f"{pack.name}, such as {missing[0]}: the selection is of another pack, or of one that "
            f"had more. It was saved from {counted(len(head.packs), 'pack')}: "
            f"{head.packs[0].absolute}"
        )
    selected = as_rows(rows_at(rows, positions))
    kept = None
    if masks is not None:
        kept = _kept_of(pack, selected, masks, path)
    fingerprint = pack.fingerprint(selected, MaskFilter.of(None, kept))
    if fingerprint != head.fingerprint:
        _log.warning(
            "%s: the selection has the same images as when it was saved, but not the same bytes: "
            "states of it do not resume (its fingerprint was %s, and is %s)",
            path,
            head.fingerprint,
            fingerprint,
        )
    if masks is None:
        return selected, before
    if before is not None:
        kept = _kept_of(pack, selected, masks, path, before)
    return selected, kept


def _kept_of(
    pack: Pack, rows: Rows, masks: SelectedMasks, path: Path, before: KeptMasks | None = None
) -> KeptMasks:
    """The masks that a selection keeps of these rows, of those that were kept before; None: all.

    Raises OptionError if the rows have others.
    """
    counts = np.diff(pack.mask_offsets(rows))
    if int(counts.sum()) != masks.count or len(masks.bits) != int(((counts + 7) // 8).sum()):
        raise OptionError(
            f"{path}: the selection keeps some of {counted(masks.count, 'mask')}, but its samples "
            f"have {int(counts.sum()):,} in {pack.name}, which were packed otherwise: select there "
            "again"
        )
    places = pack.locate_many(row_array(rows))
    flags = flags_of_bits(masks.bits, counts)
    text = masks.text
    if before is not None:
        flags &= before.flags(places["shard"], places["first_mask"], places["stop_mask"])
        text = f"{before.text}; {text}"
    offsets = offsets_of(counts)
    order = np.argsort(places["shard"], kind="stable")
    changes = np.flatnonzero(np.diff(places["shard"][order])) + 1
    flags_by_shard = {}
    for samples in np.split(order, changes):
        if not len(samples):
            continue
        number = int(places["shard"][samples[0]])
        of_shard = np.zeros(pack.manifest.shards[number].masks, np.bool_)
        edges = offsets_of(counts[samples])
        of_shard[expanded(places["first_mask"][samples], edges)] = flags[
            expanded(offsets[samples], edges)
        ]
        flags_by_shard[number] = of_shard
    return KeptMasks(flags_by_shard, len(pack), text)
