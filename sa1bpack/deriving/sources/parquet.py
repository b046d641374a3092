"""Rows of Parquet files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sa1bpack.deriving.sources.blocks import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    OtherFiles,
    RowBlock,
    TableColumns,
    getter,
    listed_names,
    rows_of_record,
    with_gaps,
)
from sa1bpack.errors import OptionError, SourceError
from sa1bpack.parquet_files import open_parquet

PARQUET_SUFFIX = ".parquet"


class ParquetFile:
    """Two columns of a Parquet file."""

    unit = "row"

    def __init__(self, path: Path, columns: TableColumns):
        """Raises MissingPackage, SourceError, OptionError, OSError."""
        self.path = path
        self.other_files = OtherFiles()
        self.finished = 0
        self._arrow, self._file = open_parquet(path)
        self.total = self._file.metadata.num_rows
        names = list(self._file.schema_arrow.names)
        self.names: Sequence[str] = names
        value = columns.required_value(path, names)
        self._key = columns.key
        self._value = value
        for option, name in (("key", columns.key), ("value", value)):
            if name not in names and name.partition(".")[0] not in names:
                raise OptionError(
                    f"{option} is {name!r}, but {path} has no such column: it has "
                    f"{listed_names(names)}"
                )
            if names.count(self._column(name)) > 1:
                raise OptionError(
                    f"{option} is {name!r}, but {path} has several columns of that name: it has "
                    f"{listed_names(names)}"
                )

    def place(self, record: int) -> str:
        """The number of a row, from 0."""
        return f"{self.path}, row {record:,}"

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        columns = {self._column(self._key), self._column(self._value)}
        batches = self._file.iter_batches(self._rows_per_batch(), columns=sorted(columns))
        while (batch := self._next(batches)) is not None:
            ids, values, of_lists = self._ids_and_values(batch)
            if isinstance(ids, np.ndarray):  # all are numbers
                records = range(self.finished, self.finished + len(ids))
                yield RowBlock(ids, values, records, variable=of_lists)
            else:
                yield self._block(ids, values, of_lists)
            self.finished += len(ids)

    def _block(self, ids: Sequence[Any], values: Sequence[Any], of_lists: bool) -> RowBlock:
        """Rows of a batch, of which some may have lists of ids. Raises OptionError."""
        row_ids: list[Any] = []
        row_values: list[Any] = []
        records: list[int] = []
        for record, pair in enumerate(zip(ids, values, strict=True), self.finished):
            try:
                rows = list(rows_of_record(*pair))
            except ValueError as error:
                raise OptionError(
                    f"{self.place(record)}: `key` is {self._key!r}, but {error}"
                ) from None
            for row_id, value in rows:
                row_ids.append(row_id)
                row_values.append(value)
                records.append(record)
        return RowBlock(row_ids, row_values, records, variable=of_lists)

    def _next(self, batches: Any) -> Any:
        try:
            return next(batches, None)
        except (self._arrow.ArrowException, OSError) as error:
            raise SourceError(f"{self.path}: damaged: {error}; copy it again") from None

    def _rows_per_batch(self) -> int:
        """Fewer where rows are large."""
        metadata = self._file.metadata
        nbytes = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
        return max(1, min(BLOCK_ROWS, BLOCK_BYTES * int(self.total) // max(1, int(nbytes))))

    def _column(self, path: str) -> str:
        """The column that a path begins in."""
        if path in self._file.schema_arrow.names:
            return path
        return path.partition(".")[0]

    def _ids_and_values(self, batch: Any) -> tuple[Sequence[Any], Sequence[Any], bool]:
        """Ids and values of a batch, and whether values are arrays that stand for lists."""
        key = batch.column(self._column(self._key))
        value = batch.column(self._column(self._value))
        # A row for each item of lists of ids: lists of Python's, as those of records in JSON.
        as_python = self._is_list(key.type)
        ids = self._values(key, self._key, as_python)
        values = self._values(value, self._value, as_python)
        return ids, values, self._is_list(value.type)

    def _is_list(self, kind: Any) -> bool:
        """True for the type of a column of lists of any length."""
        types = self._arrow.types
        return bool(types.is_list(kind) or types.is_large_list(kind))

    def _values(self, column: Any, path: str, as_python: bool) -> Sequence[Any]:
        """What a path leads to in each row of a column, numbers in their type or as Python's."""
        types = self._arrow.types
        if path != self._column(path):
            get = getter(path.partition(".")[2])
            nothing: Any = [] if self._is_list(column.type) else None
            return [get(nothing if record is None else record) for record in column.to_pylist()]
        if as_python:
            return column.to_pylist()  # type: ignore[no-any-return] # pyarrow has no types here
        if column.null_count:
            present = self._values(column.drop_null(), path, as_python)
            return with_gaps(present, column.is_null().to_pylist())
        if types.is_fixed_size_list(column.type):
            rows: Sequence[Any] = _array_of(types, column)
            return rows
        if self._is_list(column.type):
            return [_array_of(types, item.values) for item in column]
        if types.is_integer(column.type) or types.is_floating(column.type):
            return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
        return column.to_pylist()  # type: ignore[no-any-return]


def _array_of(types: Any, values: Any) -> Any:
    """Numbers, or lists of one length, as an array; of other types, or lengths, Python's lists."""
    if types.is_integer(values.type) or types.is_floating(values.type):
        if values.null_count:
            return values.to_pylist()
        return values.to_numpy(zero_copy_only=False)
    is_fixed = types.is_fixed_size_list(values.type)
    is_list = is_fixed or types.is_list(values.type) or types.is_large_list(values.type)
    if is_list and not values.null_count:
        items = _array_of(types, values.flatten())
        if not len(values):
            return items  # empty, of their type
        lengths = np.full(len(values), values.type.list_size) if is_fixed else None
        if lengths is None:
            lengths = values.value_lengths().to_numpy(zero_copy_only=False)
        if isinstance(items, np.ndarray) and (lengths == lengths[0]).all():
            return items.reshape(len(values), int(lengths[0]), *items.shape[1:])
    return values.to_pylist()
