"""Metadata of samples as arrays, one shard at a time; and selections of samples.

Samples are selected by shards, a condition, ids, a hash of the image id, or a file.

A condition as text, "mask_count >= 10" or "max(area) > 100000", compares a number of each sample
with a constant. Nothing in it is evaluated as code: names and signs are looked up in tables.

A sample is in a random part of the size f if u < f, where u in [0, 1) is a pure function of (seed,
use, image id), which docs/training.md states: the numbers of `random_words` with epoch 0. So more
tars, another order, a merge or a repair move no sample from one part to another, a larger part
contains every smaller one of the same seed, and packs on different machines agree.
"""

import logging
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.feature_values import column_values, empty_values, present_of
from sa1bpack.dataset.fields import (
    NUMBER_FIELDS,
    SAMPLE_COLUMNS,
    SIZE_COLUMNS,
    FeatureKeys,
    number_fields,
)
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import IdLookup, Rows, as_rows, row_array, rows_at
from sa1bpack.dataset.sample import SampleOptions
from sa1bpack.dataset.shards import CACHE, Location
from sa1bpack.errors import OptionError, OutputRefused, UnknownName
from sa1bpack.format.layout import FILE_NAME_BYTES
from sa1bpack.format.manifest import refuse_in_pack
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.format.selection import is_selection, read_selection, write_selection
from sa1bpack.format.shard_reader import Shard, read_array_rows
from sa1bpack.format.side.rows import FeatureRows, joined
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.masks.select import passes
from sa1bpack.paths import listed
from sa1bpack.random_words import words
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief, counted, span_text

_log = logging.getLogger("sa1bpack")

# How the values of a sample's masks become one value; a sample without masks has 0.
REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


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
    columns.reduced("area", "max")          (k, ...): one value per sample

    Masks that the dataset's rule leaves out are not among the m.

    Args:
        pack: the open pack.
        positions: indices of the samples in the dataset: a slice, or int64 (k,).
        options: options of the dataset.
    """

    def __init__(
        self,
        pack: Pack,
        positions: slice | np.ndarray,
        rows: range | np.ndarray,
        options: SampleOptions,
    ):
        self.positions = positions
        self._pack = pack
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
        self._passing: slice | np.ndarray = slice(None)  # of the masks that are stored
        if options.rule is not None:
            size = self["size"].astype(np.int64)
            pixels = np.repeat(size[:, 0] * size[:, 1], np.diff(offsets))
            scores = {name: self[name] for name in ("area", "predicted_iou", "stability_score")}
            passing = np.flatnonzero(passes(options.rule, **scores, pixels=pixels))
            self._passing = passing
            self._masks = expanded(first, offsets)[passing]
            self._columns |= {name: scores[name][passing] for name in scores}
            self._columns["mask_offset"] = np.searchsorted(passing, offsets)

    def __len__(self) -> int:
        return len(self["mask_offset"]) - 1

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
            return self._pack.image_ids(self._rows)
        if name in SIZE_COLUMNS:
            return self["size"][:, SIZE_COLUMNS[name]]
        if name == "file_name":
            return self._array(name).view(f"S{FILE_NAME_BYTES}")[self._shard_rows, 0]
        for feature in self._opened.features:
            if name == feature.spec.name:
                return column_values(feature, self._feature_rows(feature))
            if name == FeatureKeys.of(feature.spec).present:
                return present_of(feature.spec, self._feature_rows(feature))
        if name in SAMPLE_COLUMNS:
            return self._array(name)[self._shard_rows]
        check_column(name, "mask", self._pack)
        return self._array(name)[self._masks]

    def present(self, name: str) -> np.ndarray:
        """bool (k,) or (m,): which rows of a feature are there. Raises UnknownName."""
        for feature in self._opened.features:
            if feature.spec.name == name:
                return present_of(feature.spec, self._feature_rows(feature))
        raise UnknownName(f"no feature {brief(name)}: add it with ds.with_options(features=...)")

    def _feature_rows(self, feature: FeatureShard) -> FeatureRows:
        """The stored rows of a feature, compared with their checksums if that is asked."""
        of_samples = feature.spec.axis == "sample"
        if not self._verified:
            rows = self._shard_rows if of_samples else self._masks
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

    def reduced(self, name: str, how: str) -> np.ndarray:
        """A column of masks as one value per sample: (k, ...). `how` is "sum", "max" or "min".

        A sample without masks has 0. Raises UnknownName for a name that is not a column of masks,
        OptionError for another `how`.
        """
        check_column(name, "mask", self._pack)
        choice("reduce", how, REDUCTIONS)
        values = self[name]
        if values.dtype == object:
            raise OptionError(
                f"the rows of {name} are texts, or of any length: they have no {how}; reduce "
                "columns[NAME] by a function of your own"
            )
        if values.dtype == bool:  # which rows of a feature are there: "sum" counts them
            values = values.astype(np.int64)
        counts = self["mask_count"]
        out = np.zeros((len(self), *values.shape[1:]), values.dtype)
        filled = counts > 0
        if filled.any():
            with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
                out[filled] = REDUCTIONS[how].reduceat(values, self["mask_offset"][:-1][filled])
        return out


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
        columns[feature.spec.axis] += filter(None, (keys.rows, keys.present))
    if name not in columns[axis]:
        raise UnknownName(
            f"no column {brief(name)} has one value per {axis}: those with one per sample, of "
            f"column(), are {', '.join(columns['sample'])}; those with one per mask, of "
            f"mask_column(), or of column() with reduce={'|'.join(REDUCTIONS)}, are "
            f"{', '.join(columns['mask'])}"
        )


def empty_column(pack: Pack, name: str, count: int) -> np.ndarray:
    """An array for `count` values of a stored array, a column of `size` or a feature."""
    if name == "file_name":
        return np.empty(count, f"S{FILE_NAME_BYTES}")
    for feature in pack.features:
        if feature.spec.name == name:
            return empty_values(feature.spec, count)
        if FeatureKeys.of(feature.spec).present == name:
            return np.empty(count, bool)
    if name in SIZE_COLUMNS:
        return np.empty(count, pack.layout.array("size").dtype)
    spec = pack.layout.array(name)
    return np.empty((count, *spec.row_shape), spec.dtype)


# -------------------------------------------------------------------------------------- selections

# Numbers of a sample: columns with one value each. Sizes are source pixels.
NUMBERS = ("mask_count", "annotation_count", "image_id", *SIZE_COLUMNS)
# Numbers of a mask, of which a sample has the sum, max or min.
MASK_NUMBERS = tuple(field.array for field in NUMBER_FIELDS if field.columns == 1)
SIGNS = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}

_CONDITION = re.compile(
    rf"\s*(?:(?P<reduce>{'|'.join(REDUCTIONS)})\s*\(\s*(?P<mask>\w+)\s*\)|(?P<name>\w+))"
    rf"\s*(?P<sign>{'|'.join(SIGNS)})\s*(?P<number>[-+]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*"
)

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


def flags(
    condition: Any, columns: Iterable[Columns], count: int, features: Sequence[SideSpec]
) -> np.ndarray:
    """bool (count,): which samples fulfil a condition.

    Args:
        condition: as for `Dataset.where`.
        columns: columns of all samples, one shard at a time.
        count: samples in all.
        features: the features of the dataset, of which a text may name one.

    Raises:
        OptionError: the condition is neither bools nor a function that returns them.
    """
    fulfils: Callable[[Columns], np.ndarray]
    if isinstance(condition, str):
        fulfils = _has_row(condition, features) or parse_condition(condition)
    elif callable(condition):
        fulfils = partial(_of_user, condition)
    else:
        bools = np.asarray(condition)
        if bools.dtype != np.bool_:
            raise OptionError(f"where() takes bools, a function or a text, not {bools.dtype}")
        return bools
    keep = np.zeros(count, bool)
    for shard_columns in columns:
        bools = np.asarray(fulfils(shard_columns))
        if bools.dtype != np.bool_ or bools.shape != (len(shard_columns),):
            raise OptionError(
                f"the condition returned {bools.dtype} {bools.shape}: it must return one bool per "
                f"sample, here ({len(shard_columns)},)"
            )
        keep[shard_columns.positions] = bools
    return keep


def _has_row(text: str, features: Sequence[SideSpec]) -> Callable[[Columns], np.ndarray] | None:
    """The condition that a sample has a row of the feature that a text names; None: it names none.

    Raises OptionError for a feature with a row per mask.
    """
    name = text.strip().removesuffix(".present")
    for spec in features:
        if spec.name != name:
            continue
        if spec.axis == "mask":
            raise OptionError(
                f"where is {brief(text)}, a feature with a row per mask: choose a function of "
                f'columns, such as lambda c: c.reduced("{name}_present", "max") > 0'
            )
        return lambda columns: columns.present(name)
    return None


def _of_user(condition: Callable[[Columns], np.ndarray], columns: Columns) -> np.ndarray:
    """What a function of the user's returns for the columns of a shard."""
    subject = f"the samples of shard {columns.shard_name}"
    bools: np.ndarray = call_user(condition, columns, role="where", subject=subject)
    return bools


@dataclass(frozen=True)
class Condition:
    """A condition as text: a number of each sample, compared with a constant.

    Attributes:
        name: one of NUMBERS; of masks, one of MASK_NUMBERS.
        reduce: how the number of masks becomes one of a sample, a key of REDUCTIONS; None: it is
            one of the sample itself.
        sign: a key of SIGNS.
        number: the constant.
    """

    name: str
    reduce: str | None
    sign: str
    number: int | float

    def __call__(self, columns: Columns) -> np.ndarray:
        """bool (k,): which of the k samples of the columns fulfil it."""
        if self.reduce is None:
            return self.holds(columns[self.name])
        return self.holds(columns.reduced(self.name, self.reduce))

    def holds(self, values: np.ndarray) -> np.ndarray:
        """bool (k,): which of k values of the number fulfil it."""
        fulfilled: np.ndarray = SIGNS[self.sign](values, self.number)
        return fulfilled


def parse_condition(text: str) -> Condition:
    """The condition of `Dataset.where` that a text says.

    Raises OptionError, naming what there is, for a text that is not a condition.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise OptionError(
            f"where is {brief(text)}: write NAME SIGN NUMBER, such as 'mask_count >= 10' or "
            f"'max(area) > 100000'; a sign is one of {' '.join(SIGNS)}"
        )
    digits = match["number"].replace("_", "")
    number = int(digits) if digits.lstrip("+-").isdigit() else float(digits)
    name = match["name"]
    mask = match["mask"]
    if name in NUMBERS:
        return Condition(name, None, match["sign"], number)
    if mask in MASK_NUMBERS:
        return Condition(mask, match["reduce"], match["sign"], number)
    raise OptionError(
        f"where is {brief(text)}: {brief(mask or name)} is not a number of a sample: it has "
        f"{', '.join(NUMBERS)}, and {', '.join(REDUCTIONS)} of {', '.join(MASK_NUMBERS)}"
    )


def below(image_ids: np.ndarray, fraction: float, seed: int, use: int) -> np.ndarray:
    """bool (n,): whether the number u of each of int64 (n,) image ids is below a fraction.

    Raises OptionError for a seed that is not a whole number from 0 to 2**64 - 1.
    """
    drawn = words(seed, 0, image_ids, use, 1)[:, 0]
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction


def save_rows(pack: Pack, rows: Rows, path: Path) -> None:
    """Write the rows of a pack as a selection.

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
    write_selection(path, ids, pack.fingerprint(rows), roots, duplicates)


def selected_rows(pack: Pack, rows: Rows, ids: IdLookup, path: Path) -> Rows:
    """The rows that a saved selection names, in its order.

    Args:
        pack: the open pack.
        ids: image ids of the rows.
        path: file of the saved selection.

    Raises:
        OptionError: a sample of the selection is missing, or as for `read_selection`.
    """
    head, image_ids = read_selection(path)
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
    fingerprint = pack.fingerprint(selected)
    if fingerprint != head.fingerprint:
        _log.warning(
            "%s: the selection has the same images as when it was saved, but not the same bytes: "
            "states of it do not resume (its fingerprint was %s, and is %s)",
            path,
            head.fingerprint,
            fingerprint,
        )
    return selected
