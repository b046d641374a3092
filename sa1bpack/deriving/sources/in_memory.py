"""Rows of iterators, and of tables of pandas and polars, neither of which is imported."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from sa1bpack.deriving.sources.blocks import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    BlockBuilder,
    Columns,
    OtherFiles,
    RowBlock,
    listed_names,
)
from sa1bpack.errors import OptionError
from sa1bpack.user_code import call_user
from sa1bpack.wording import brief

_END = object()


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
    library = type(rows).__module__.partition(".")[0]
    return library in ("pandas", "polars") and type(rows).__name__ in ("DataFrame", "Series")


class Frame:
    """The rows of a DataFrame, or of a Series of pandas, whose index has the ids."""

    unit = "row"

    def __init__(self, table: Any, columns: Columns):
        self.other_files = OtherFiles()
        self.finished = 0
        self.total = len(table)
        self._name = type(table).__module__.partition(".")[0]
        self._ids: Any
        self._values: Any
        self._of_lists = False  # of polars
        self.names: Sequence[str] = ()
        if type(table).__name__ == "Series":
            if self._name != "pandas":
                raise OptionError("rows are a Series of polars, which has no ids: give a DataFrame")
            self._ids = table.index
            self._values = table
            return
        names = [str(name) for name in table.columns]
        self.names = names
        value = columns.required_value("the DataFrame", names)
        for option, name in (("key", columns.key), ("value", value)):
            in_index = option == "key" and getattr(table, "index", None) is not None
            in_index = in_index and table.index.name == name
            if names.count(name) != 1 and not in_index:
                raise OptionError(
                    f"{option} is {name!r}, but the DataFrame has it {names.count(name)} times: it "
                    f"has {listed_names(names)}"
                )
        self._ids = table[columns.key] if columns.key in names else table.index
        self._values = table[value]
        self._of_lists = type(self._values.dtype).__name__ == "List"

    def place(self, record: int) -> str:
        """The number of a row, from 0."""
        return f"the table, row {record:,}"

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        step = self._rows_per_block()
        for first in range(0, self.total, step):
            stop = min(first + step, self.total)
            ids = self._ids[first:stop]
            # As Python's, with which those of the column are compared.
            ids = ids.to_list() if self._name == "polars" else ids.tolist()
            values = self._slice(first, stop)
            yield RowBlock(ids, values, range(first, stop), variable=self._of_lists)
            self.finished = stop

    def _rows_per_block(self) -> int:
        """Fewer where a row is large."""
        if not self.total:
            return BLOCK_ROWS
        [first] = self._slice(0, 1)
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES // max(1, _nbytes(first))))

    def _slice(self, first: int, stop: int) -> Sequence[Any]:
        """The values of some rows; None where there is none."""
        if self._name == "polars":
            return _polars_values(self._values[first:stop])
        values = self._values.iloc[first:stop]
        absent = values.isna().to_numpy()
        if not absent.any() or values.dtype.kind == "f":  # NaN is a number there
            if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iufb":
                return values.to_numpy()  # type: ignore[no-any-return] # nor is pandas
            return values.tolist()  # type: ignore[no-any-return]
        return [None if gone else value for value, gone in zip(values, absent, strict=True)]


def _polars_values(values: Any) -> Sequence[Any]:
    """The values of a Series of polars: numbers and arrays in their type, text, lists."""
    kind = type(values.dtype).__name__
    if values.null_count() or kind in ("String", "Utf8", "Categorical", "Object", "Struct"):
        return values.to_list()  # type: ignore[no-any-return] # polars is not imported
    if kind == "List":
        return [item.to_list() if item.dtype.is_nested() else item.to_numpy() for item in values]
    return values.to_numpy()  # type: ignore[no-any-return]
