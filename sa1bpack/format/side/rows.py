"""Rows of a feature as they are stored, of any kind: fixed, ragged or text, some missing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.files import byte_view
from sa1bpack.format.offsets import expanded, offsets_of
from sa1bpack.format.side.spec import SideSpec

_SHORT_BYTES = 4096  # see `FeatureRows.checksums`


@dataclass(frozen=True)
class FeatureRows:
    """k rows of a feature, as they are stored.

    Attributes:
        values: fixed rows, (k, *stored_shape); or the items of ragged rows, one row after the
            other, (t, *row_shape). C-contiguous.
        lengths: int64 (k,), items of each ragged row; None: rows are fixed.
        present: uint8 (k,), 1 for a row that is there, 0 for one that is missing; None: all are.
    """

    values: np.ndarray
    lengths: np.ndarray | None = None
    present: np.ndarray | None = None

    def __len__(self) -> int:
        if self.lengths is None:
            return len(self.values)
        return len(self.lengths)

    def take(self, positions: np.ndarray) -> "FeatureRows":
        """The rows at int64 (j,) positions, as new arrays."""
        present = None
        if self.present is not None:
            present = self.present[positions]
        if self.lengths is None:
            return FeatureRows(self.values[positions], None, present)
        first = offsets_of(self.lengths)[positions]
        lengths = self.lengths[positions]
        items = expanded(first, offsets_of(lengths))
        return FeatureRows(self.values[items], lengths, present)

    def per_row(self) -> list[np.ndarray]:
        """The values of each row: views of `values`."""
        if self.lengths is None:
            return list(self.values)
        edges = offsets_of(self.lengths).tolist()
        rows = []
        for first, stop in pairwise(edges):
            rows.append(self.values[first:stop])
        return rows

    def texts(self, path: object) -> list[str]:
        """The rows of text as strings.

        Raises FormatError, which names `path`, for one that is not UTF-8.
        """
        texts = []
        for number, row in enumerate(self.per_row()):
            try:
                texts.append(row.tobytes().decode())
            except UnicodeDecodeError as error:
                raise FormatError(
                    f"{path}: text {number + 1} of {len(self)} is not UTF-8 ({error})"
                ) from None
        return texts

    def checksums(self, counts: Sequence[int] | np.ndarray) -> np.ndarray:
        """uint64 (s,): the XXH3-64 of the rows of each of s samples.

        It is of what there is of `present`, of the lengths as little-endian int64, and of the
        values, in this order.

        Args:
            counts: whole numbers (s,), the rows of each sample; together all rows.
        """
        row_edges = offsets_of(np.asarray(counts, np.int64))
        edges = row_edges
        present = b""
        lengths = b""
        if self.present is not None:
            present = self.present.tobytes()
        if self.lengths is not None:
            edges = offsets_of(self.lengths)[row_edges]
            lengths = self.lengths.astype("<i8", copy=False).tobytes()
        item_bytes = self.values.itemsize * prod(self.values.shape[1:])
        data = byte_view(self.values).data
        checksums = []
        for (row, end), (byte, stop) in zip(
            pairwise(row_edges.tolist()), pairwise((edges * item_bytes).tolist()), strict=True
        ):
            header = present[row:end] + lengths[8 * row : 8 * end]
            if stop - byte < _SHORT_BYTES:  # one call takes less time than three
                checksums.append(xxhash.xxh3_64_intdigest(header + data[byte:stop]))
                continue
            digest = xxhash.xxh3_64(header)
            digest.update(data[byte:stop])
            checksums.append(digest.intdigest())
        return np.array(checksums, np.uint64)

    def read_only(self) -> "FeatureRows":
        """Itself, whose arrays can no longer be written to."""
        parts: list[Any] = [self.values, self.lengths, self.present]
        for part in parts:
            if part is not None:
                part.flags.writeable = False
        return self


def no_rows(spec: SideSpec) -> FeatureRows:
    """Rows of a feature, none of them."""
    values = np.empty((0, *spec.stored_shape), spec.stored)
    lengths = np.empty(0, np.int64) if spec.ragged else None
    present = np.empty(0, np.uint8) if spec.missing else None
    return FeatureRows(values, lengths, present)


def joined(rows: Sequence[FeatureRows]) -> FeatureRows:
    """Rows of one feature, one after another, as one: at least one of them."""
    values = np.concatenate([some.values for some in rows])
    lengths = [some.lengths for some in rows if some.lengths is not None]
    present = [some.present for some in rows if some.present is not None]
    return FeatureRows(
        values,
        np.concatenate(lengths) if lengths else None,
        np.concatenate(present) if present else None,
    )


def marked_missing(rows: Iterable[Any], present: Iterable[Any], missing: Any = None) -> list[Any]:
    """The rows, with `missing` in place of those that are not there.

    Args:
        rows: rows of any form.
        present: for each row, true if it is there.
        missing: what stands for a row that is not.
    """
    marked = []
    for row, is_there in zip(rows, present, strict=True):
        marked.append(row if is_there else missing)
    return marked
