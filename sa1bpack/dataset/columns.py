"""Metadata of samples as arrays, one shard at a time."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.conditions import REDUCTIONS
from sa1bpack.dataset.feature_values import column_values, empty_values
from sa1bpack.dataset.fields import (
    SAMPLE_COLUMNS,
    SIZE_COLUMNS,
    FeatureKeys,
    column_names,
    number_fields,
)
from sa1bpack.dataset.kept_masks import MaskFilter
from sa1bpack.dataset.mask_relations import RELATION_NUMBERS, numbers_together, relation_numbers
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import row_array
from sa1bpack.dataset.sample_spec import SampleOptions
from sa1bpack.dataset.shard_cache import CACHE
from sa1bpack.dataset.shards import Location
from sa1bpack.errors import FormatError, MaskError, OptionError, UnknownName
from sa1bpack.format.layout import FILE_NAME_BYTES
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.format.shard_reader import Shard, read_array_rows
from sa1bpack.format.side.rows import FeatureRows, joined
from sa1bpack.format.side.shard import FeatureShard
from sa1bpack.mask_numbers import OPTIONAL_NUMBERS, lacks_text
from sa1bpack.wording import brief

_F = TypeVar("_F")  # a feature, or the part of it for one shard


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

        Rows of a feature that are missing, and masks without an optional number, are left out. A
        sample without masks, or without any that is left, has 0. Sums are int64 or float64, of
        whatever type the masks' numbers are. Raises UnknownName for a name that is not a column of
        masks, OptionError for another `how`.
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
            keys = FeatureKeys.of(feature.spec)
            if name == keys.rows and feature.spec.dtype == "bfloat16":
                raise OptionError(
                    f"the rows of {name} are bfloat16, which numpy lacks: columns have their bits, "
                    f"which have no {how}; reduce columns[NAME] by a function of your own"
                )
            if name in (keys.rows, keys.lengths) and feature.present is not None:
                present = self._present(feature)
                values = values[present]
                edges = offsets_of(present)[edges]
        if name in OPTIONAL_NUMBERS:
            present = ~np.isnan(values)
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
