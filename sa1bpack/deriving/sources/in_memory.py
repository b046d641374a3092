"""Rows of iterators, and of tables of pandas and polars, neither of which is imported."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sa1bpack.deriving.returned_rows import check_dense
from sa1bpack.deriving.sources.blocks import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    BlockBuilder,
    OtherFiles,
    RowBlock,
    TableColumns,
    listed_names,
    with_gaps,
)
from sa1bpack.errors import OptionError
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief

_END = object()
# Types of polars whose values numpy has not, or only as objects.
_AS_PYTHON = {"String", "Utf8", "Categorical", "Object", "Struct", "Null", "Int128", "UInt128"}


class Pairs:
    """The pairs (id, row) of an iterator, which is advanced once, from its beginning to its end."""

    unit = "row"
    names: Sequence[str] = ()

    def __init__(self, pairs: Any):
        self.total = len(pairs) if hasattr(pairs, "__len__") else 0
        self.other_files = OtherFiles()
        self.finished = 0
        self._pairs = pairs

    def place(self, record: int) -> str:
        """The number of a row, from 0."""
        return f"rows, number {record:,}"

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`. Raises UserCodeError if the iterator fails."""
        builder = BlockBuilder()
        iterator = call_user(iter, self._pairs, role="rows", subject="its beginning")
        while True:
            number = self.finished
            pair = call_user(next, iterator, _END, role="rows", subject=f"row {number:,}")
            if pair is _END:
                break
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise OptionError(
                    f"{self.place(number)}: {brief(pair)}; give pairs (id, row), such as "
                    "(223750, 'a cat on a sofa')"
                )
            try:
                check_dense(pair[1])
            except OptionError as error:
                raise OptionError(
                    f"{self.place(number)}: the row of {brief(pair[0])} is {error}"
                ) from None
            self.finished += 1
            value = _copied(pair[1])
            if builder.add(pair[0], value, number, _nbytes(value)):
                yield builder.take()
        if builder:
            yield builder.take()


def _copied(value: Any) -> Any:
    """A value that does not change when the iterator fills its array again."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return value


def _nbytes(value: Any) -> int:
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    return len(value) if isinstance(value, str | list | tuple) else 8


# ------------------------------------------------------------------------------------------ tables


def is_table(rows: Any) -> bool:
    """True for a DataFrame or a Series of pandas or polars."""
    is_of_library = _library_of(rows) in ("pandas", "polars")
    return is_of_library and type(rows).__name__ in ("DataFrame", "Series")


def _library_of(rows: Any) -> str:
    """The library that the class of an object is of."""
    return type(rows).__module__.partition(".")[0]


class TableRows:
    """The rows of a DataFrame, or of a Series of pandas, whose index has the ids."""

    unit = "row"

    def __init__(self, table: Any, columns: TableColumns):
        self.other_files = OtherFiles()
        self.finished = 0
        self.total = len(table)
        self.names: Sequence[str] = ()
        self._is_polars = _library_of(table) == "polars"
        if type(table).__name__ == "Series":
            if self._is_polars:
                raise OptionError("rows are a Series of polars, which has no ids: give a DataFrame")
            self._ids = table.index
            self._values = table
        else:
            self.names = [str(name) for name in table.columns]
            self._ids = self._ids_of(table, columns.key)
            value = columns.required_value("the DataFrame", self.names)
            self._values = self._column(table, "value", value)
        self._of_lists = type(self._values.dtype).__name__ == "List"  # of polars

    def _ids_of(self, table: Any, key: str) -> Any:
        """The column, or the index, that has the ids."""
        index = getattr(table, "index", None)
        if key not in self.names and index is not None and index.name == key:
            return index
        return self._column(table, "key", key)

    def _column(self, table: Any, option: str, name: str) -> Any:
        """The column of a name, which pandas may have as a number.

        Raises OptionError unless there is one of this name.
        """
        count = self.names.count(name)
        if count != 1:
            raise OptionError(
                f"{option} is {name!r}, but the DataFrame has it {count} times: it has "
                f"{listed_names(self.names)}"
            )
        return table[table.columns[self.names.index(name)]]

    def place(self, record: int) -> str:
        """The number of a row, from 0."""
        return f"the table, row {record:,}"

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        step = self._rows_per_block()
        for first in range(0, self.total, step):
            stop = min(first + step, self.total)
            ids = getattr(self._ids, "iloc", self._ids)[first:stop]
            values = self._slice(first, stop)
            # Ids as Python's: to_list is what all of these have.
            yield RowBlock(ids.to_list(), values, range(first, stop), variable=self._of_lists)
            self.finished = stop

    def _rows_per_block(self) -> int:
        """Fewer where a row is large."""
        if not self.total:
            return BLOCK_ROWS
        [first] = self._slice(0, 1)
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, _nbytes(first))))

    def _slice(self, first: int, stop: int) -> Sequence[Any]:
        """The values of some rows; None where there is none."""
        if self._is_polars:
            return _polars_values(self._values[first:stop])
        return _pandas_values(self._values.iloc[first:stop])


def _pandas_values(values: Any) -> Sequence[Any]:
    """The values of a Series of pandas; None where there is none, but NaN of floats is a number."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iufb":
        return values.to_numpy()  # type: ignore[no-any-return] # pandas is not imported
    rows = []
    for value, is_absent in zip(values, values.isna(), strict=True):
        rows.append(None if is_absent else value)
    return rows


def _polars_values(values: Any) -> Sequence[Any]:
    """The values of a Series of polars, in their types; None where there is none."""
    if values.null_count():
        return with_gaps(_polars_values(values.drop_nulls()), values.is_null().to_list())
    kind = type(values.dtype).__name__
    if kind in _AS_PYTHON or (kind == "List" and values.dtype.inner.is_nested()):
        return values.to_list()  # type: ignore[no-any-return] # polars is not imported
    if kind == "List":
        return [item.to_numpy() for item in values]
    return values.to_numpy()  # type: ignore[no-any-return]
