"""Metadata of many samples as arrays, read one shard at a time."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.dataset.fields import MASK_COLUMNS, SAMPLE_COLUMNS, SIZE_COLUMNS
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import Rows, expanded, offsets_of, row_array, shard_bounds
from sa1bpack.dataset.sample import SampleOptions
from sa1bpack.dataset.shards import CACHE
from sa1bpack.errors import UnknownName
from sa1bpack.format.layout import FILE_NAME_BYTES
from sa1bpack.format.shard_reader import Shard, read_array_rows
from sa1bpack.masks import passes

# How the values of a sample's masks become one value; a sample without masks has 0.
REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}

# Names of columns with one value per sample.
_OF_SAMPLES = (*SAMPLE_COLUMNS, *SIZE_COLUMNS)


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
    columns["NAME"]              (k, ...) or (m, ...): a feature of the dataset
    columns.reduced("area", "max")          (k, ...): one value per sample

    Masks that the dataset's rule leaves out are not among the m.

    positions  indices of the samples in the dataset: slice, or int64 (k,)
    """

    def __init__(
        self,
        pack: Pack,
        positions: slice | np.ndarray,
        rows: range | np.ndarray,
        options: SampleOptions,
    ):
        self.positions = positions
        self._pack, self._rows, self._verified = pack, rows, options.verify_checksums
        number, local, first, _ = pack.locate(int(rows[0]))
        self._kept: slice | np.ndarray = slice(None)  # of the masks that are stored
        self._opened = pack.open(number)  # checks the offsets that are used below
        if isinstance(rows, range) and rows.step == 1:
            self._local = slice(local, local + len(rows))
            offsets = self._opened.arrays["mask_offset"][local : local + len(rows) + 1]
            offsets = offsets - offsets[0]
            self._masks: slice | np.ndarray = slice(first, first + int(offsets[-1]))
        else:
            _, self._local, first, stop = pack.locate_many(row_array(rows))
            offsets = offsets_of(stop - first)
            self._masks = expanded(first, offsets)
        self._columns = {"mask_offset": offsets}
        if options.rule is not None:  # leave out the masks that do not pass it
            size = self["size"].astype(np.int64)
            pixels = np.repeat(size[:, 0] * size[:, 1], np.diff(offsets))
            scores = {name: self[name] for name in ("area", "predicted_iou", "stability_score")}
            self._kept = kept = np.flatnonzero(passes(options.rule, *scores.values(), pixels))
            masks = self._masks
            self._masks = masks[kept] if isinstance(masks, np.ndarray) else masks.start + kept
            self._columns |= {name: scores[name][kept] for name in scores}
            self._columns["mask_offset"] = np.searchsorted(kept, offsets)

    def __len__(self) -> int:
        return len(self["mask_offset"]) - 1

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
        if name == "file_name":
            return self._array(name).view(f"S{FILE_NAME_BYTES}")[self._local, 0]
        if name in feature_names(self._pack):
            return self._feature(name)
        if name in SIZE_COLUMNS:
            return self["size"][:, SIZE_COLUMNS[name]]
        if name in SAMPLE_COLUMNS:
            return self._array(name)[self._local]
        check_column(name, "mask", self._pack)
        return self._array(name)[self._masks]

    def _feature(self, name: str) -> np.ndarray:
        """The rows of a feature, each sample's compared with its checksum if that is asked."""
        part = next(part for part in self._opened.features if part.spec.name == name)
        of_samples = part.spec.axis == "sample"
        if not self._verified:
            return part.spec.read(part.values[self._local if of_samples else self._masks])
        found = np.concatenate(
            [self._pack.read_feature(part, row) for row in row_array(self._rows).tolist()]
        )
        return part.spec.read(found if of_samples else found[self._kept])

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
        values, counts = self[name], self["mask_count"]
        out = np.zeros((len(self), *values.shape[1:]), values.dtype)
        filled = counts > 0
        if filled.any():
            with np.errstate(all="ignore"):  # of what the arrays hold, infinities included
                out[filled] = REDUCTIONS[how].reduceat(values, self["mask_offset"][:-1][filled])
        return out


def feature_names(pack: Pack, axis: str | None = None) -> tuple[str, ...]:
    """The features of a dataset's pack, all or those with a row per "sample" or "mask"."""
    return tuple(
        feature.spec.name for feature in pack.features if axis in (None, feature.spec.axis)
    )


def check_column(name: str, axis: str, pack: Pack) -> None:
    """Raise UnknownName, naming the remedy, unless it is a column with one value per "sample" or
    "mask", which `axis` says."""
    columns = {
        "sample": _OF_SAMPLES + feature_names(pack, "sample"),
        "mask": MASK_COLUMNS + feature_names(pack, "mask"),
    }
    if name in columns[axis]:
        return
    if name in columns["mask"]:
        raise UnknownName(
            f"{name!r} has one value per mask: use mask_column({name!r}), or "
            f"column({name!r}, reduce=...) with one of {', '.join(REDUCTIONS)}"
        )
    if name in columns["sample"]:
        raise UnknownName(f"{name!r} has one value per sample: use column({name!r})")
    named = ", ".join(columns["sample"] + columns["mask"])
    raise UnknownName(f"no column {name!r}; the columns are {named}")


def iterate_columns(pack: Pack, rows: Rows, options: SampleOptions) -> Iterator[Columns]:
    """Columns of each shard that has samples of the dataset; every sample is in exactly one."""
    if isinstance(rows, range):
        edges = shard_bounds(pack.first_row, rows).tolist()
        parts = [slice(first, stop) for first, stop in pairwise(edges)]
    else:
        numbers = pack.shard_numbers(rows)
        order = np.argsort(numbers, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    for positions in parts:
        yield Columns(pack, positions, rows[positions], options)


def empty_column(pack: Pack, name: str, count: int) -> np.ndarray:
    """An array for so many values of a stored array, a column of `size` or a feature."""
    if name == "file_name":
        return np.empty(count, f"S{FILE_NAME_BYTES}")
    for feature in pack.features:
        if feature.spec.name == name:
            return np.empty((count, *feature.spec.row_shape), feature.spec.row_dtype)
    if name in SIZE_COLUMNS:
        return np.empty(count, pack.layout.array("size").dtype)
    spec = pack.layout.array(name)
    return np.empty((count, *spec.row_shape), spec.dtype)
