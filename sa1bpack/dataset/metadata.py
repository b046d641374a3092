"""The metadata of a dataset's samples and masks as arrays, read shard by shard."""

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import numpy as np

from sa1bpack.dataset.columns import Columns, check_column, empty_column, reduced_type
from sa1bpack.dataset.kept_masks import KeptMasks, MaskFilter
from sa1bpack.dataset.pack import Pack
from sa1bpack.dataset.rows import Rows, shard_bounds
from sa1bpack.dataset.sample_spec import SampleOptions
from sa1bpack.errors import FormatError
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.wording import counted

_log = logging.getLogger("sa1bpack")


class Metadata:
    """Columns of the n samples of a dataset, and of their masks. See the methods of `Dataset`.

    Args:
        pack: the open pack.
        rows: the rows of the samples in it.
        options: options of the dataset.
        mask_filter: which of the stored masks it has; None: all.
        kept: the masks that conditions keep; None: all.
    """

    def __init__(
        self,
        pack: Pack,
        rows: Rows,
        options: SampleOptions,
        mask_filter: MaskFilter | None,
        kept: KeptMasks | None,
    ):
        self.pack = pack
        self.options = options
        self._rows = rows
        self._mask_filter = mask_filter
        self._kept = kept

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str, reduce: str | None, missing: float | None) -> np.ndarray:
        """One value per sample: (n, ...)."""
        if name == "mask_count" and reduce is None:
            return self._mask_counts(missing)
        check_column(name, "sample" if reduce is None else "mask", self.pack)
        if name == "image_id":
            return self.pack.image_ids(self._rows)
        out = empty_column(self.pack, name, len(self))
        if reduce is not None:
            out = out.astype(reduced_type(out.dtype, reduce), copy=False)
        for positions in self._positions_by_shard():
            with self._filling(out, positions, missing, name):
                columns = self._columns_of(positions)
                values = columns[name] if reduce is None else columns.reduced(name, reduce)
                out[positions] = values
        return out

    def _mask_counts(self, missing: float | None) -> np.ndarray:
        """int64 (n,): the column mask_count; see `column`."""
        if self.options.rule is None or missing is None:  # else no shard is read
            return np.diff(self.mask_offsets)
        with suppress(FormatError):  # of a damaged shard
            return np.diff(self.mask_offsets)
        counts = np.empty(len(self), np.int64)
        for positions in self._positions_by_shard():
            with self._filling(counts, positions, missing, "mask_count"):
                counts[positions] = self._columns_of(positions)["mask_count"]
        return counts

    @contextmanager
    def _filling(
        self, out: np.ndarray, positions: slice | np.ndarray, missing: float | None, name: str
    ) -> Iterator[None]:
        """Fill in a value for samples of a column whose shard is damaged, unless it is None."""
        try:
            yield
        except FormatError as error:
            if missing is None:
                text = f"{error}. Pass missing=VALUE for the samples of damaged shards"
                raise FormatError(text) from error
            out[positions] = missing
            count = np.size(np.arange(len(self))[positions])
            _log.warning(
                "column %s: %s of a damaged shard have the value %s: %s",
                name,
                counted(count, "sample"),
                missing,
                error,
            )

    def mask_column(self, name: str) -> np.ndarray:
        """One value per mask: (T, ...)."""
        check_column(name, "mask", self.pack)
        offsets = self.mask_offsets
        out = empty_column(self.pack, name, int(offsets[-1]))
        for columns in self.columns():
            rows = expanded(offsets[:-1][columns.positions], columns["mask_offset"])
            out[rows] = columns[name]
        return out

    @functools.cached_property
    def mask_offsets(self) -> np.ndarray:
        """int64 (n + 1,): where the masks of each sample begin."""
        if self.options.rule is None and self._kept is not None:
            return offsets_of(self.pack.kept_counts(self._rows, self._kept))
        if self.options.rule is None:
            return self.pack.mask_offsets(self._rows)
        counts = np.empty(len(self), np.int64)
        for columns in self.columns():
            counts[columns.positions] = columns["mask_count"]
        return offsets_of(counts)

    @property
    def has_mask_offsets(self) -> bool:
        """True if `mask_offsets` has been asked for: it is there without reading shards."""
        return "mask_offsets" in vars(self)

    def columns(self) -> Iterator[Columns]:
        """Metadata of all samples, one shard at a time."""
        for positions in self._positions_by_shard():
            yield self._columns_of(positions)

    def _positions_by_shard(self) -> list[slice] | list[np.ndarray]:
        """The positions of the samples of each shard, of those that have any."""
        rows = self._rows
        if isinstance(rows, range):
            edges = shard_bounds(self.pack.first_row, rows).tolist()
            return [slice(first, stop) for first, stop in pairwise(edges)]
        numbers = self.pack.shard_numbers(rows)
        order = np.argsort(numbers, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)

    def _columns_of(self, positions: slice | np.ndarray) -> Columns:
        """The columns of samples of one shard. Raises FormatError if it is damaged."""
        rows: Any = self._rows[positions]
        return Columns(self.pack, positions, rows, self.options, self._mask_filter)
