"""Where the rows of `attach` come from: rows with ids, of any kind, that are taken by position."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Protocol

import numpy as np
import torch

from sa1bpack.deriving.returned_rows import check_dense, stored_rows
from sa1bpack.errors import OptionError
from sa1bpack.format.side.rows import FeatureRows
from sa1bpack.format.side.spec import MAX_SIDE_ROW_BYTES, TEXT
from sa1bpack.wording import brief

_LARGEST_ID = (1 << 63) - 1


class RowSource(Protocol):
    """n rows of one kind, each with an id.

    Attributes:
        ids: int64 (n,), of each row.
        dtype: type of the rows: one of SIDE_DTYPES, or TEXT.
        row_shape: shape of a row, or of an item of ragged rows; of text, ().
        lengths: int64 (n,), items of each ragged row, of text its bytes; None: rows are fixed.
    """

    ids: np.ndarray
    dtype: str
    row_shape: tuple[int, ...]
    lengths: np.ndarray | None

    def take(self, positions: np.ndarray) -> np.ndarray:
        """The rows at int64 (k,) positions, as they are stored without scales, C-contiguous.

        Fixed rows are (k, *row_shape), ragged ones are joined, (t, *row_shape). Raises OptionError
        for rows that are not as said above.
        """


class FixedRows:
    """The rows of an array, a memory map or a tensor, see `RowSource`."""

    lengths: np.ndarray | None = None

    def __init__(self, array: Any, ids: np.ndarray, chosen: np.ndarray | None = None):
        """
        Args:
            array: rows (n, ...).
            ids: int64 (k,), of the rows that are chosen.
            chosen: int64 (k,), their positions; None: all rows.
        """
        self._array = array
        self._chosen = chosen
        _, self.dtype = stored_rows(array[:0])
        self.row_shape = tuple(array.shape[1:])
        self.ids = ids

    def take(self, positions: np.ndarray) -> np.ndarray:
        """See RowSource."""
        if self._chosen is not None:
            positions = self._chosen[positions]
        rows, _ = stored_rows(self._array[positions])
        return rows


class RaggedRows:
    """The rows of a list of arrays of any length, see `RowSource`."""

    def __init__(self, rows: Sequence[Any], ids: np.ndarray):
        """The rows of a list that is not empty. Raises OptionError if they are of other kinds."""
        if not len(rows[0].shape):
            raise OptionError("rows are a list of single numbers: choose an array, np.stack(rows)")
        _, self.dtype = stored_rows(rows[0][:0])
        self.row_shape = tuple(rows[0].shape[1:])
        self.ids = ids
        lengths = []
        for number, row in enumerate(rows):
            shape = tuple(row.shape)
            if not shape or shape[1:] != self.row_shape:
                raise OptionError(
                    f"the row of id {ids[number]} is of shape {shape}, but the first is (n, "
                    f"{', '.join(map(str, self.row_shape))}): items must have one shape"
                )
            if row.dtype != rows[0].dtype:
                raise OptionError(
                    f"the row of id {ids[number]} is {row.dtype}, but the first is {rows[0].dtype}"
                )
            lengths.append(shape[0])
        self.lengths: np.ndarray | None = np.array(lengths, np.int64)
        self._rows = rows

    def take(self, positions: np.ndarray) -> np.ndarray:
        """See RowSource."""
        taken = []
        for position in positions.tolist():
            row, _ = stored_rows(self._rows[position])
            taken.append(row)
        empty, _ = stored_rows(self._rows[0][:0])
        return np.concatenate([empty, *taken])


class TextRows:
    """The rows of a list of strings, see `RowSource`."""

    dtype = TEXT
    row_shape: tuple[int, ...] = ()

    def __init__(self, texts: Sequence[str], ids: np.ndarray):
        self.ids = ids
        self._texts = texts
        lengths = [len(self._encoded(position)) for position in range(len(texts))]
        self.lengths: np.ndarray | None = np.array(lengths, np.int64)

    def take(self, positions: np.ndarray) -> np.ndarray:
        """See RowSource."""
        joined = b"".join(self._encoded(position) for position in positions.tolist())
        return np.frombuffer(joined, np.uint8)

    def _encoded(self, position: int) -> bytes:
        """The text at a position in UTF-8. Raises OptionError."""
        text = self._texts[position]
        if not isinstance(text, str):
            raise OptionError(
                f"the row of id {self.ids[position]} is a {type(text).__name__}, {brief(text)}, "
                "but the first is a string: choose strings, and None where there is none"
            )
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise OptionError(
                f"the text of id {self.ids[position]} cannot be written as UTF-8 ({error}): repair "
                "it, as with text.encode(errors='replace').decode()"
            ) from None


def rows_and_ids(rows: Any, ids: Any) -> tuple[Any, Any]:
    """Rows in memory, and the id of each: of a dict, its values and keys.

    Raises OptionError if there is no id for each row.
    """
    if isinstance(rows, Mapping):
        if ids is not None:
            raise OptionError("ids are given, but rows are a dict, whose keys are the ids")
        ids = list(rows)
        rows = list(rows.values())
    check_dense(rows)
    if getattr(getattr(rows, "dtype", None), "kind", None) in ("U", "T", "O"):
        rows = rows.tolist()
    is_array = hasattr(rows, "shape") and hasattr(rows, "dtype")
    if not is_array and not isinstance(rows, list | tuple):
        raise OptionError(
            f"rows are a {type(rows).__name__}: choose an array of rows (n, ...), a dict, or a "
            "list of strings or of arrays"
        )
    if is_array and len(rows.shape) < 1:
        raise OptionError("rows are a single number: choose an array of rows (n, ...)")
    if ids is None:
        raise OptionError("ids are None: give the id of each row, or a dict of id and row as rows")
    if isinstance(ids, np.ma.MaskedArray):
        raise OptionError("ids are a masked array: leave out rows without an id, and give the rest")
    if isinstance(ids, torch.Tensor):
        ids = ids.cpu().numpy()
    if isinstance(ids, Iterable) and not hasattr(ids, "dtype"):
        ids = list(ids)
    return rows, ids


def are_names(ids: Any) -> bool:
    """True for ids of rows of which some may be names, which only a dataset can tell."""
    if isinstance(ids, list):
        return any(isinstance(name, str | PurePath) for name in ids)
    return np.asarray(ids).dtype.kind in ("U", "T", "O")


def source_of(
    rows: Any, ids: Any, shape: Sequence[int | None] | None, chosen: np.ndarray | None = None
) -> RowSource:
    """The rows that `attach` was given, in memory.

    Args:
        rows, ids: as `rows_and_ids` returns them; or int64 (k,) ids of those that are chosen.
        shape: as in `attach`.
        chosen: int64 (k,), the positions of rows that are chosen; None: all rows.

    Raises:
        OptionError: rows or ids cannot be used.
    """
    numbers = chosen
    if numbers is None:
        numbers = np.arange(len(rows))
    row_ids = ids_of(ids, len(numbers))
    if not isinstance(rows, list | tuple) and not _any_length(shape):
        source: RowSource = FixedRows(rows, row_ids, chosen)
    else:
        rows_of_ids = [rows[number] for number in numbers.tolist()]
        if isinstance(rows, list | tuple):
            source = _source_of_list(rows_of_ids, row_ids, shape)
        else:
            source = RaggedRows(rows_of_ids, row_ids)
    _check_shape(source, shape)
    return source


def _source_of_list(
    rows: Sequence[Any], ids: np.ndarray, shape: Sequence[int | None] | None
) -> RowSource:
    """The rows of a list, of which None is no row. Raises OptionError."""
    existing = [position for position, row in enumerate(rows) if row is not None]
    if len(existing) < len(rows):
        rows = [rows[position] for position in existing]
        ids = ids[existing]
    if not rows:
        raise OptionError("rows are empty: their type is not known; choose an array")
    if isinstance(rows[0], str):
        return TextRows(rows, ids)
    for number, row in enumerate(rows):
        check_dense(row)
        if not hasattr(row, "shape"):
            raise OptionError(
                f"the row of id {ids[number]} is a {type(row).__name__}: choose an array of all "
                "rows, or a list of strings or of arrays"
            )
    if _any_length(shape) or len({tuple(row.shape) for row in rows}) > 1:
        return RaggedRows(rows, ids)
    stack = torch.stack if isinstance(rows[0], torch.Tensor) else np.stack
    return FixedRows(stack(list(rows)), ids)


def _any_length(shape: Sequence[int | None] | None) -> bool:
    """True if a shape of rows begins with None, which stands for any length."""
    return shape is not None and tuple(shape[:1]) == (None,)


def _check_shape(source: RowSource, shape: Sequence[int | None] | None) -> None:
    """Raise OptionError unless rows have the shape that was asked for."""
    if shape is None:
        return
    row_shape: tuple[int | None, ...] = source.row_shape
    if source.lengths is not None:
        row_shape = (None, *row_shape)
    if row_shape != tuple(shape):
        raise OptionError(
            f"shape is {brief(tuple(shape))}, but rows are {row_shape} (None: any length)"
        )


def ids_of(ids: Any, count: int) -> np.ndarray:
    """int64 (n,): ids of rows, of which there are `count`.

    Raises OptionError for what is no whole number, or of another number.
    """
    ids = np.asarray(ids)
    if not ids.size and ids.ndim == 1:
        ids = ids.astype(np.int64)
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        raise OptionError(
            f"ids are {ids.dtype} {ids.shape}: choose one integer for each of the {count:,} rows, "
            "or the name of its file"
        )
    beyond = ids[ids > _LARGEST_ID]
    if len(beyond):
        raise OptionError(f"ids has {beyond[0]}, beyond int64: ids are whole numbers of 64 bits")
    whole_numbers: np.ndarray = ids.astype(np.int64)
    return whole_numbers


class RowsById:
    """Rows that are looked up by their ids.

    Attributes:
        source: the rows.
    """

    def __init__(self, source: RowSource):
        """Sort the ids. Raises OptionError for an id that occurs twice, or a row too large."""
        self.source = source
        self._order = np.argsort(source.ids, kind="stable")
        self._sorted = source.ids[self._order]
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if len(again):
            raise OptionError(
                f"ids has {self._sorted[again[0]]} more than once, in rows "
                f"{self._order[again[0]]} and {self._order[again[0] + 1]}: choose one of them"
            )
        self._check_lengths()

    def _check_lengths(self) -> None:
        """Raise OptionError for a ragged row that is larger than the format allows."""
        lengths = self.source.lengths
        if lengths is None or not len(lengths):
            return
        longest = int(lengths.argmax())
        nbytes = int(lengths[longest]) * self.item_bytes
        if nbytes > MAX_SIDE_ROW_BYTES:
            raise OptionError(
                f"the row of id {self.source.ids[longest]} takes {nbytes:,} bytes: a row has at "
                f"most {MAX_SIDE_ROW_BYTES:,}; split it, or leave it out"
            )

    @property
    def item_bytes(self) -> int:
        """Bytes of a fixed row, or of an item of a ragged one."""
        empty = self.source.take(np.empty(0, np.int64))
        return empty.itemsize * int(np.prod(self.source.row_shape, dtype=np.int64))

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """int64 (k,): the positions of the rows of int64 (k,) ids; -1 for one without a row."""
        if not len(self._sorted):
            return np.full(len(ids), -1)
        nearest = np.searchsorted(self._sorted, ids).clip(max=len(self._sorted) - 1)
        has_row = self._sorted[nearest] == ids
        return np.where(has_row, self._order[nearest], -1)

    def rows(self, positions: np.ndarray, missing: bool) -> FeatureRows:
        """The rows at int64 (k,) positions, where -1 is a row that is missing.

        Args:
            missing: rows of the feature may be missing.
        """
        present = positions >= 0
        stored = self.source.take(positions[present])
        flags = present.astype(np.uint8) if missing else None
        if self.source.lengths is not None:
            lengths = np.zeros(len(positions), np.int64)
            lengths[present] = self.source.lengths[positions[present]]
            return FeatureRows(stored, lengths, flags)
        if present.all():
            return FeatureRows(stored, None, flags)
        values = np.zeros((len(positions), *stored.shape[1:]), stored.dtype)
        values[present] = stored
        return FeatureRows(values, None, flags)

    def row_bytes(self, positions: np.ndarray) -> np.ndarray:
        """int64 (k,): bytes of the rows at int64 (k,) positions, -1 for one that is missing."""
        if self.source.lengths is None:
            return np.full(len(positions), self.item_bytes)
        padded = np.append(self.source.lengths, 0)  # position -1
        nbytes: np.ndarray = padded[positions] * self.item_bytes
        return nbytes
