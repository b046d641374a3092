"""A feature in a batch: its arrays in the buffer, of rows of any kind, and what they are made of.

Fixed rows are one array. Ragged rows are found by a record of each (`tables.SPAN`): where its items
begin and end in the file, and where they go. Bytes of text are put into the buffer like items of
numbers, one row after another, and leave it as strings: they are never sent to a device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.fields import FeatureKeys
from sa1bpack.dataset.shards import ArrayRef
from sa1bpack.disk.direct import BLOCK
from sa1bpack.format.offsets import offsets_of
from sa1bpack.format.side.spec import SideSpec
from sa1bpack.loading.batch.regions import Entry, LargeArray
from sa1bpack.loading.batch.tables import AS_IT_IS, LISTED_SPANS, ROW_SPANS, SampleTables

# Bytes of a row from which on an array is not copied out of the buffer on a CPU.
_LARGE_ROW = 1024

_INT64 = np.dtype("i8")
_BOOL = np.dtype("?")


class RowLayout(NamedTuple):
    """How a batch has rows per sample or per mask.

    Attributes:
        samples: number of samples.
        capacity: masks per sample in padded arrays.
        total: number of masks.
        padded: arrays with a row per mask are padded.
    """

    samples: int
    capacity: int
    total: int
    padded: bool

    def shape(self, per_mask: bool) -> tuple[int, ...]:
        """The leading shape of an array with a row per sample, or per mask."""
        if not per_mask:
            return (self.samples,)
        if self.padded:
            return (self.samples, self.capacity)
        return (self.total,)


@dataclass(frozen=True)
class BatchFeature:
    """A feature in batches.

    Attributes:
        spec: spec of its rows.
        number: its number among the features of an open shard.
        padded: the layout of the batch is padded, of masks and of ragged rows.
        spans_at: number of its spans among those of its axis in `SampleTables`; -1: fixed rows.
        present_at: number of its flags among those of its axis there; -1: no row may be missing.
    """

    spec: SideSpec
    number: int
    padded: bool
    spans_at: int = -1
    present_at: int = -1

    @property
    def per_mask(self) -> bool:
        """True if it has a row per mask."""
        return self.spec.axis == "mask"

    @property
    def pads_items(self) -> bool:
        """True if every ragged row has as many items in the batch, with zeros after its own."""
        return self.spec.ragged and self.padded and not self.spec.text

    @property
    def has_small_arrays(self) -> bool:
        """True if the batch has offsets or lengths of its rows, or says which are present."""
        return self.spec.ragged or self.spec.missing

    @property
    def joins(self) -> bool:
        """True if its array has one row per sample, of one size, or leaves the host as strings."""
        if self.per_mask:
            return False
        return self.spec.text or not self.spec.ragged

    @cached_property
    def stored(self) -> np.dtype:
        """The dtype of its elements."""
        return self.spec.stored

    @cached_property
    def keys(self) -> FeatureKeys:
        """Its keys in a batch."""
        return FeatureKeys.of(self.spec)

    def array(self) -> LargeArray:
        """What is read of it piece by piece."""
        return LargeArray(
            key=self.spec.name,
            ref=ArrayRef("", feature=self.number),
            row_bytes=self.spec.row_bytes,
            out_bytes=self.spec.row_bytes,
            kind=AS_IT_IS,
            span=LISTED_SPANS if self.spec.ragged else ROW_SPANS,
            per_mask=self.per_mask,
            padded=self.per_mask and self.padded and not self.spec.text,
            spans_at=self.spans_at,
            pads_items=self.pads_items,
        )

    def entries(self, layout: RowLayout, items: int) -> Iterator[Entry]:
        """Its arrays in the buffer.

        Args:
            layout: rows of the batch.
            items: items of each ragged row, if they are padded; otherwise of all of them.
        """
        spec = self.spec
        keys = self.keys
        rows = layout.shape(self.per_mask)
        if spec.text:
            yield Entry(keys.rows, (items,), self.stored, stays=True)
        elif not spec.ragged:
            large = spec.row_bytes >= _LARGE_ROW
            yield Entry(keys.rows, rows + spec.stored_shape, self.stored, large)
        else:
            shape = (*rows, items) if self.padded else (items,)
            shape += spec.stored_shape
            nbytes = prod(shape) * self.stored.itemsize
            large = nbytes >= BLOCK * max(prod(rows), 1)
            yield Entry(keys.rows, shape, self.stored, large)
            if self.padded:
                yield Entry(keys.lengths, rows, _INT64)
            else:
                yield Entry(keys.offsets, (rows[0] + 1,), _INT64)
        if spec.missing:
            yield Entry(keys.present, rows, _BOOL)

    # ----------------------------------------------------------------------- of a located batch

    def spans(self, tables: SampleTables) -> np.ndarray:
        """SPAN (rows,): the spans of its ragged rows."""
        spans = tables.mask_spans if self.per_mask else tables.sample_spans
        of_feature: np.ndarray = spans[:, self.spans_at]
        return of_feature

    def lengths(self, tables: SampleTables) -> np.ndarray:
        """int64 (rows,): the items of its ragged rows."""
        spans = self.spans(tables)
        lengths: np.ndarray = spans["end"] - spans["begin"]
        return lengths

    def place(self, tables: SampleTables, lengths: np.ndarray, layout: RowLayout) -> int:
        """Set where the items of each ragged row go.

        Args:
            tables: of the samples; out: `out` of the spans.
            lengths: int64 (rows,), items of its rows.
            layout: rows of the batch.

        Returns:
            The items, as in `entries`.
        """
        spans = self.spans(tables)
        if self.pads_items:
            items = int(lengths.max(initial=0))
            spans["out"] = self.positions(tables, layout) * items
            return items
        offsets = offsets_of(lengths)
        spans["out"] = offsets[:-1]
        return int(offsets[-1])

    def positions(self, tables: SampleTables, layout: RowLayout) -> np.ndarray:
        """int64 (rows,): where its rows are among those of the batch's array."""
        if self.per_mask:
            return mask_positions(tables, layout.capacity if layout.padded else -1)
        return np.arange(layout.samples)

    def small_arrays(
        self, tables: SampleTables, lengths: np.ndarray | None, layout: RowLayout
    ) -> dict[str, np.ndarray]:
        """Its arrays with one number per row: offsets or lengths, and which rows are present.

        Args:
            tables: of the samples.
            lengths: int64 (rows,), items of its rows; None of fixed rows.
            layout: rows of the batch.
        """
        keys = self.keys
        arrays = {}
        if lengths is not None:
            if self.pads_items:
                arrays[keys.lengths] = self._spread(lengths, tables, layout)
            elif keys.offsets:
                arrays[keys.offsets] = offsets_of(lengths)
        if keys.present:
            present = tables.mask_present if self.per_mask else tables.sample_present
            flags = present[:, self.present_at] != 0
            arrays[keys.present] = self._spread(flags, tables, layout)
        return arrays

    def _spread(self, values: np.ndarray, tables: SampleTables, layout: RowLayout) -> np.ndarray:
        """The values of its rows at their positions in an array, with zeros elsewhere."""
        shape = layout.shape(self.per_mask)
        if not (self.per_mask and layout.padded):
            return values
        spread = np.zeros(prod(shape), values.dtype)
        spread[self.positions(tables, layout)] = values
        return spread.reshape(shape)


def mask_positions(tables: SampleTables, capacity: int) -> np.ndarray:
    """int64 (T,): where the masks of a batch are among the rows of an array.

    Args:
        tables: of the samples.
        capacity: rows per sample of a padded array; -1: all masks follow one another.
    """
    positions = np.arange(len(tables.masks))
    if capacity >= 0:
        first = tables.samples["kept_begin"]
        shift = np.arange(len(first)) * capacity - first
        positions += np.repeat(shift, tables.samples["kept_end"] - first)
    return positions


def batch_features(specs: tuple[SideSpec, ...], padded: bool) -> list[BatchFeature]:
    """The features of a dataset in batches; see BatchFeature for `padded`."""
    spans = {"sample": 0, "mask": 0}
    flags = {"sample": 0, "mask": 0}
    features = []
    for number, spec in enumerate(specs):
        spans_at = -1
        present_at = -1
        if spec.ragged:
            spans_at = spans[spec.axis]
            spans[spec.axis] += 1
        if spec.missing:
            present_at = flags[spec.axis]
            flags[spec.axis] += 1
        features.append(BatchFeature(spec, number, padded, spans_at, present_at))
    return features
