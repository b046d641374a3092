"""Metadata of samples as arrays, one shard at a time; and selections of samples.

Samples are selected by shards, a condition, ids, a hash of the image id, or a file; masks by a
condition. `conditions.py` has the language of conditions as text, `condition_values.py` what they
may compare.

A sample is in a random part of the size f if u < f, where u in [0, 1) is a pure function of (seed,
use, image id), which docs/training.md states: the numbers of `random_words` with epoch 0. So more
tars, another order, a merge or a repair move no sample from one part to another, a larger part
contains every smaller one of the same seed, and packs on different machines agree.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.condition_values import (
    checked_condition,
    evaluated,
    values_of_masks,
    values_of_samples,
)
from sa1bpack.dataset.conditions import REDUCTIONS
from sa1bpack.dataset.feature_values import column_values, empty_values
from sa1bpack.dataset.fields import (
    SAMPLE_COLUMNS,
    SIZE_COLUMNS,
    FeatureKeys,
    column_names,
    number_fields,
)
from sa1bpack.dataset.kept_masks import KeptMasks, MaskFilter, flags_of_bits
from sa1bpack.dataset.mask_relations import RELATION_NUMBERS, numbers_together, relation_numbers
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import IdLookup, Rows, as_rows, row_array, rows_at
from sa1bpack.dataset.sample import SampleOptions
from sa1bpack.dataset.shard_cache import CACHE
from sa1bpack.dataset.shards import Location
from sa1bpack.errors import FormatError, MaskError, OptionError, OutputRefused, UnknownName
from sa1bpack.format.layout import FILE_NAME_BYTES
from sa1bpack.format.manifest import refuse_in_pack
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.format.selection import (
    SelectedMasks,
    is_selection,
    read_selection,
    write_selection,
)
from sa1bpack.format.shard_reader import Shard, read_array_rows
from sa1bpack.format.side.rows import FeatureRows, joined
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.mask_numbers import lacks_text
from sa1bpack.paths import listed
from sa1bpack.random_words import words
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief, counted, span_text

_F = TypeVar("_F")  # a feature, or the part of it for one shard
_log = logging.getLogger("sa1bpack")


class Columns:
    """Columns of those samples of a dataset that are in one shard: k samples with m masks.

    columns["image_id"]     (k,) int64
    columns["mask_count"]   (k,) int64
    columns["mask_offset"]  (k + 1,) int64: the masks of sample i are rows [i] to [i + 1] below
    columns["size"]         (k, 4) int32: source height, width, stored height, width
    columns["height"]       (k,) int32, and "width": of the source
    columns["annotation_count"]  (k,) int32: masks in the JSON record
    columns["file_name"]    (k,) S64
    columns["checksum"]     (k,) uint64
    columns["area"], columns["bbox"], ...   (m, ...): one row per mask, types as in docs/format.md
    columns["NAME"]              (k, ...) or (m, ...): a feature of the dataset; of text, or of
                                 ragged rows, (k,) or (m,) objects: strings, or arrays (n, ...)
    columns["NAME_present"]      (k,) or (m,) bool: the rows that are there, if some may be missing
    columns["NAME_lengths"]      (k,) or (m,) int64: items of each ragged row of numbers
    columns.reduced("area", "max")          (k, ...): one value per sample

    Masks that the dataset's rule leaves out are not among the m.

    Args:
        pack: the open pack.
        positions: indices of the samples in the dataset: a slice, or int64 (k,).
        options: options of the dataset.
        masks: which of the stored masks the dataset has; None: all.
    """

    def __init__(
        self,
        pack: Pack,
        positions: slice | np.ndarray,
        rows: range | np.ndarray,
        options: SampleOptions,
        masks: MaskFilter | None,
    ):
        self.positions = positions
        self.pack = pack
        self._rows = rows
        self._verified = options.verify_checksums
        self._locations = pack.locate_many(row_array(rows))
        # Opening checks the offsets that are used below.
        self._opened = pack.open(int(self._locations["shard"][0]))
        shard_rows = self._locations["shard_row"]
        first = self._locations["first_mask"]
        stop = self._locations["stop_mask"]
        offsets = offsets_of(stop - first)
        self._shard_rows: slice | np.ndarray = shard_rows
        self._masks: slice | np.ndarray = expanded(first, offsets)
        if isinstance(rows, range) and rows.step == 1:  # views
            self._shard_rows = slice(int(shard_rows[0]), int(shard_rows[-1]) + 1)
            self._masks = slice(int(first[0]), int(stop[-1]))
        self._columns = {"mask_offset": offsets}
        self._relations: dict[str, np.ndarray] = {}
        self._passing: slice | np.ndarray = slice(None)  # of the masks that are stored
        if masks is not None:
            compare = partial(self._compared, masks.compared)
            passing = np.flatnonzero(masks.flags(self._locations, compare))
            self._passing = passing
            self._masks = expanded(first, offsets)[passing]
            for name in masks.compared:
                if name in self._columns:
                    self._columns[name] = self._columns[name][passing]
            self._columns["mask_offset"] = np.searchsorted(passing, offsets)

    def _compared(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """What thresholds compare, of all stored masks of the samples."""
        size = self["size"].astype(np.int64)
        pixels = np.repeat(size[:, 0] * size[:, 1], np.diff(self["mask_offset"]))
        return {name: self[name] for name in names} | {"pixels": pixels}

    def __len__(self) -> int:
        return len(self["mask_offset"]) - 1

    @property
    def shard_number(self) -> int:
        """Number of the shard in the pack."""
        return int(self._locations["shard"][0])

    @property
    def mask_rows(self) -> np.ndarray:
        """int64 (m,): the rows of the masks in the shard."""
        if isinstance(self._masks, slice):
            return np.arange(self._masks.start, self._masks.stop)
        return self._masks

    @property
    def shard_name(self) -> str:
        """Name of the shard that has the samples."""
        return self._opened.shard.folder.name

    def __getitem__(self, name: str) -> np.ndarray:
        """The column of that name. Raises UnknownName naming the columns that exist."""
        if name not in self._columns:
            self._columns[name] = self._column(name)
        return self._columns[name]

    def _column(self, name: str) -> np.ndarray:
        if name == "mask_count":
            return np.diff(self["mask_offset"])
        if name == "image_id":
            return self.pack.image_ids(self._rows)
        if name in SIZE_COLUMNS:
            return self["size"][:, SIZE_COLUMNS[name]]
        if name == "file_name":
            return self._array(name).view(f"S{FILE_NAME_BYTES}")[self._shard_rows, 0]
        for feature in features_for(name, self._opened.features, self.pack):
            if name == feature.spec.name:
                return column_values(feature, self._feature_rows(feature))
            keys = FeatureKeys.of(feature.spec)
            if name == keys.present:
                return self._present(feature)
            if name == keys.lengths:
                return self._lengths(feature)
        if name in SAMPLE_COLUMNS:
            return self._array(name)[self._shard_rows]
        check_column(name, "mask", self.pack)
        return self._array(name)[self._masks]

    def present(self, name: str) -> np.ndarray:
        """bool (k,) or (m,): which rows of a feature are there. Raises UnknownName."""
        for feature in self._opened.features:
            if feature.spec.name == name:
                return self._present(feature)
        raise UnknownName(f"no feature {brief(name)}: add it with ds.with_options(features=...)")

    def _present(self, feature: FeatureShard) -> np.ndarray:
        """bool (k,) or (m,): which rows of a feature are there. Fetches none of them."""
        if feature.present is None:
            rows = len(self) if feature.spec.axis == "sample" else int(self["mask_offset"][-1])
            return np.ones(rows, bool)
        present: np.ndarray | None = feature.present[self._rows_of(feature)]
        if self._compares(feature):
            present = self._feature_rows(feature).present
        assert present is not None
        return present.view(bool)

    def _lengths(self, feature: FeatureShard) -> np.ndarray:
        """int64 (k,) or (m,): items of each row of a feature. Fetches none of them."""
        assert feature.offset is not None, "rows of one length have no column of lengths"
        if self._compares(feature):
            lengths = self._feature_rows(feature).lengths
            assert lengths is not None
            return lengths
        return np.diff(feature.offset)[self._rows_of(feature)]

    def _compares(self, feature: FeatureShard) -> bool:
        """True if rows are compared with their checksums, for which all of each is read.

        The small arrays of a shard that is fetched were compared with their digests when they came.
        """
        return self._verified and feature.fetched is None

    def _rows_of(self, feature: FeatureShard) -> slice | np.ndarray:
        """The rows of a feature that the samples have, in the shard."""
        return self._shard_rows if feature.spec.axis == "sample" else self._masks

    def _feature_rows(self, feature: FeatureShard) -> FeatureRows:
        """The stored rows of a feature, compared with their checksums if that is asked."""
        of_samples = feature.spec.axis == "sample"
        if not self._verified:
            rows = self._rows_of(feature)
            if isinstance(rows, slice):
                return feature.rows(rows.start, rows.stop)
            return feature.take(rows)
        read = []
        for location in self._locations.tolist():
            read.append(self._opened.copy_feature(feature, Location(*location)))
        stored = joined(read)
        if of_samples or isinstance(self._passing, slice):
            return stored
        return stored.take(self._passing)

    def _array(self, name: str) -> np.ndarray:
        read = read_array_rows if self._verified else Shard.__getitem__
        return CACHE.with_resources(lambda: read(self._opened.shard, name))

    def relation(self, name: str) -> np.ndarray:
        """int64 (m,): a number of each mask among the masks of its image, computed once.

        "parent": index among the image's masks of the smallest mask that contains it, -1 for none.
        "depth": how many masks are above it. "children": how many have it as their parent.
        "level": its third of the image's masks by area, 0 large, 1 medium, 2 small. "touching":
        how many masks it touches. As in `sa1bpack.masks.Relations`, from the exact runs if the pack
        has them, otherwise from its bits; the image's masks are those that the dataset has.

        Raises UnknownName for another name, FormatError for damaged runs.
        """
        if name not in RELATION_NUMBERS:
            raise UnknownName(
                f"no relation {brief(name)} is a number of each mask: there are "
                f"{', '.join(RELATION_NUMBERS)}"
            )
        if name not in self._relations:
            self._relations |= self._related(name)
        return self._relations[name]

    def _related(self, name: str) -> dict[str, np.ndarray]:
        """The relations that are computed together with this one."""
        names = numbers_together(name)
        parts: dict[str, list[np.ndarray]] = {key: [np.empty(0, np.int64)] for key in names}
        stored = ("run_ends", "run_offset") if self.pack.layout.runs else ("mask_bits",)
        arrays = {key: self._array(key) for key in stored}
        edges = self["mask_offset"].tolist()
        mask_rows = self.mask_rows
        for sample, (begin, end) in enumerate(pairwise(edges)):
            size = self["size"][sample, :2].tolist()
            try:
                numbers = relation_numbers(arrays, mask_rows[begin:end], size, names)
            except MaskError as error:
                row = int(self._locations["shard_row"][sample])
                raise FormatError(f"{self._opened.folder}: sample {row}: {error}") from None
            for key in names:
                parts[key].append(numbers[key])
        return {key: np.concatenate(parts[key]) for key in names}

    def reduced(self, name: str, how: str) -> np.ndarray:
        """A column of masks as one value per sample: (k, ...). `how` is "sum", "max" or "min".

        Rows of a feature that are missing are left out. A sample without masks, or without a row,
        has 0. Sums are int64 or float64, of whatever type the masks' numbers are. Raises
        UnknownName for a name that is not a column of masks, OptionError for another `how`.
        """
        check_column(name, "mask", self.pack)
        choice("reduce", how, REDUCTIONS)
        values = self[name]
        if values.dtype == object:
            raise OptionError(
                f"the rows of {name} are texts, or of any length: they have no {how}; reduce "
                "columns[NAME] by a function of your own"
            )
        values = values.astype(reduced_type(values.dtype, how), copy=False)
        edges = self["mask_offset"]
        for feature in features_for(name, self._opened.features, self.pack):
            if feature.spec.name == name and feature.present is not None:
                present = self._present(feature)
                values = values[present]
                edges = offsets_of(present)[edges]
        out = np.zeros((len(self), *values.shape[1:]), values.dtype)
        filled = np.diff(edges) > 0
        if filled.any():
            with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
                out[filled] = REDUCTIONS[how].reduceat(values, edges[:-1][filled])
        return out


def reduced_type(dtype: np.dtype[Any], how: str) -> np.dtype[Any]:
    """The type of what numbers of masks become by `how`: one of REDUCTIONS.

    A sum needs more room than its numbers. Of bools, which rows of a feature are there, it counts.
    """
    if dtype.kind == "b" or (dtype.kind in "ui" and how == "sum"):
        return np.dtype(np.int64)
    if dtype.kind == "f" and how == "sum":
        return np.dtype(np.float64)
    return dtype


def features_for(name: str, features: Sequence[_F], pack: Pack) -> Sequence[_F]:
    """The features that may have a column: none if all datasets have one of that name."""
    return () if name in column_names(pack.layout) else features


def check_column(name: str, axis: str, pack: Pack) -> None:
    """Raise UnknownName, naming the remedy, unless it is a column of this axis.

    The axis is "sample" or "mask": what has one value.
    """
    columns = {
        "sample": [*SAMPLE_COLUMNS, *SIZE_COLUMNS],
        "mask": [*(field.array for field in number_fields(pack.layout)), "number_types"],
    }
    for feature in pack.features:
        keys = FeatureKeys.of(feature.spec)
        columns[feature.spec.axis] += filter(None, (keys.rows, keys.present, keys.lengths))
    if name not in columns[axis]:
        lacks = ""
        if name in pack.layout.absent:
            lacks = f"{lacks_text(name, pack.layout.mask_numbers)}; "
        raise UnknownName(
            f"{lacks}no column {brief(name)} has one value per {axis}: those with one per sample, "
            f"of column(), are {', '.join(columns['sample'])}; those with one per mask, of "
            f"mask_column(), or of column() with reduce={'|'.join(REDUCTIONS)}, are "
            f"{', '.join(columns['mask'])}"
        )


def empty_column(pack: Pack, name: str, count: int) -> np.ndarray:
    """An array for `count` values of a stored array, a column of `size` or a feature."""
    if name == "file_name":
        return np.empty(count, f"S{FILE_NAME_BYTES}")
    for feature in features_for(name, pack.features, pack):
        if feature.spec.name == name:
            return empty_values(feature.spec, count)
        keys = FeatureKeys.of(feature.spec)
        if name == keys.present:
            return np.empty(count, bool)
        if name == keys.lengths:
            return np.empty(count, np.int64)
    if name in SIZE_COLUMNS:
        return np.empty(count, pack.layout.array("size").dtype)
    spec = pack.layout.array(name)
    return np.empty((count, *spec.row_shape), spec.dtype)


# -------------------------------------------------------------------------------------- selections

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
    if path.exists() and not is_selection(path):
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
