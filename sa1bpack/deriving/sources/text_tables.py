"""Rows of text files: JSON Lines, JSON, CSV and TSV, also compressed with gzip."""

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any

import msgspec

from sa1bpack.deriving.sources.blocks import (
    ABSENT,
    MAX_TEXT_BYTES,
    BlockBuilder,
    OtherFiles,
    RowBlock,
    TableColumns,
    getter,
    listed_names,
    rows_of_record,
)
from sa1bpack.errors import OptionError, SourceError
from sa1bpack.paths import naming

LINES_SUFFIXES = (".jsonl", ".ndjson")
JSON_SUFFIX = ".json"
DELIMITERS = {".csv": ",", ".tsv": "\t"}
GZIP_SUFFIX = ".gz"
# A whole JSON file is decoded at once.
MAX_JSON_BYTES = 2 << 30

Get = Callable[[Any], Any]
Row = tuple[Any, Any]  # its id and its value

_BOM = b"\xef\xbb\xbf"
_decode = msgspec.json.Decoder().decode


class _TextFile:
    """What the readers of text files have in common: a file, its size, and how much was read."""

    unit = "byte"
    noun = "line"

    def __init__(self, path: Path, columns: TableColumns):
        self.path = path
        self.columns = columns
        self.names: Sequence[str] = ()
        self.other_files = OtherFiles()
        with naming(path):
            self.total = path.stat().st_size
        self._raw: BufferedReader | None = None
        self._finished = 0

    @property
    def finished(self) -> int:
        """Bytes of the file that have been read, compressed if they are."""
        raw = self._raw
        if raw is not None and not raw.closed and raw.seekable():  # not of a pipe
            self._finished = raw.tell()
        return self._finished

    def place(self, record: int) -> str:
        """The line, or entry, of a row."""
        return f"{self.path}, {self.noun} {record:,}"

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The bytes of the file, decompressed. Raises SourceError if they are not whole."""
        with naming(self.path), self.path.open("rb") as raw:
            self._raw = raw
            stream: Any = raw
            if self.path.name.endswith(GZIP_SUFFIX):
                stream = gzip.GzipFile(fileobj=raw)
            try:
                yield stream
            except EOFError:
                raise SourceError(
                    f"{self.path}: it ends before the end of its gzip stream: copy it again"
                ) from None
            except (gzip.BadGzipFile, zlib.error) as error:
                raise SourceError(
                    f"{self.path}: not a gzip stream: {error}; copy it again"
                ) from None
            self._finished = self.total

    def rows_of(self, record: Any, number: int, get_id: Get, get_value: Get) -> list[Row]:
        """The rows of a record. Raises OptionError if it has no id."""
        try:
            return list(rows_of_record(get_id(record), get_value(record)))
        except ValueError as error:
            names = listed_names(list(record)) if isinstance(record, dict) else "no keys"
            raise OptionError(
                f"{self.place(number)}: `key` is {self.columns.key!r}, but {error}; it has {names}"
            ) from None


class JsonLines(_TextFile):
    """A JSON object per line; empty lines are passed over."""

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        builder = BlockBuilder()
        get_id = getter(self.columns.key)
        get_value: Get | None = None
        full = False
        for number, line in self._lines():
            record = self._record(line, number)
            if get_value is None:
                self.names = list(record)
                get_value = getter(self.columns.required_value(self.path, self.names))
            row_id = get_id(record)
            if type(row_id) in (int, str):  # the usual case, quickly
                full = builder.add(row_id, get_value(record), number, len(line))
            else:
                for row_id, value in self.rows_of(record, number, get_id, get_value):
                    full = builder.add(row_id, value, number, len(line))
            if full:
                yield builder.take()
        if builder:
            yield builder.take()

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not empty, with their numbers, from 1."""
        with self.opened() as stream:
            number = 0
            while line := stream.readline(MAX_TEXT_BYTES):
                number += 1
                if len(line) >= MAX_TEXT_BYTES:
                    raise SourceError(
                        f"{self.place(number)}: it has more than {MAX_TEXT_BYTES:,} bytes; a file "
                        "of JSON Lines has one object per line"
                    )
                if number == 1:
                    line = line.removeprefix(_BOM)
                if not line.isspace() and line:
                    yield number, line

    def _record(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            record = self._lenient(line, number)
        if not isinstance(record, dict):
            raise SourceError(
                f"{self.place(number)}: a {type(record).__name__}, but an object is expected, such "
                'as {"image_id": 123, "text": "a cat"}'
            )
        return record

    def _lenient(self, line: bytes, number: int) -> Any:
        """JSON as Python writes it, which has NaN and Infinity."""
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{self.place(number)}: not JSON in UTF-8: {error}; correct the line, or remove it"
            ) from None


class JsonFile(_TextFile):
    """A file of one JSON value, which is read at once.

    A list has a record per item; an object is a record itself if it has the id, otherwise it has a
    row or a record per key, which is its id.
    """

    noun = "entry"

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        builder = BlockBuilder()
        whole = self._whole()
        get_id = getter(self.columns.key)
        get_value: Get | None = None
        records: Any = whole
        if isinstance(whole, dict):
            if get_id(whole) is ABSENT:
                yield from self._by_id(whole)
                return
            records = [whole]
        for number, record in enumerate(records, 1):
            if get_value is None:
                self.names = list(record) if isinstance(record, dict) else []
                get_value = getter(self.columns.required_value(self.path, self.names))
            full = False
            for row_id, value in self.rows_of(record, number, get_id, get_value):
                full = builder.add(row_id, value, number, 1)
            if full:
                yield builder.take()
        if builder:
            yield builder.take()

    def _by_id(self, whole: dict[str, Any]) -> Iterator[RowBlock]:
        """The rows of an object whose keys are ids."""
        builder = BlockBuilder()
        get_value = None if self.columns.value is None else getter(self.columns.value)
        for number, (row_id, entry) in enumerate(whole.items(), 1):
            value = entry if get_value is None else get_value(entry)
            if builder.add(row_id, value, number, 1):
                yield builder.take()
        if builder:
            yield builder.take()

    def _whole(self) -> Any:
        with self.opened() as stream:
            data = stream.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise SourceError(
                f"{self.path}: it has more than {MAX_JSON_BYTES:,} bytes, and would be read at "
                f"once: make JSON Lines of it (jq -c '.[]' {self.path.name} > rows.jsonl)"
            )
        try:
            whole = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f"{self.path}: not JSON in UTF-8: {error}; of a file with an object per line, the "
                "name ends in .jsonl"
            ) from None
        if not isinstance(whole, list | dict):
            raise SourceError(f"{self.path}: a list or an object is expected")
        return whole


class CsvFile(_TextFile):
    """A table with a header; its values are text, or with `dtype`, what it says.

    An empty cell is a row without a value.
    """

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        builder = BlockBuilder()
        with self.opened() as stream, _long_fields():
            text = TextIOWrapper(stream, "utf-8-sig", newline="")
            rows = csv.reader(text, delimiter=self._delimiter, strict=True)
            header = self._next(rows) or []
            self.names = header
            id_column, value_column = self._positions(header)
            while (row := self._next(rows)) is not None:
                if not row:
                    continue
                number = rows.line_num
                if len(row) != len(header):
                    raise SourceError(
                        f"{self.place(number)}: it has {len(row)} values, but the header "
                        f"{len(header)}; a value with a delimiter or a line break is written in "
                        'quotes, "..."'
                    )
                value = row[value_column]
                if not row[id_column]:
                    raise OptionError(
                        f"{self.place(number)}: `key` is {self.columns.key!r}, which is empty there"
                    )
                if builder.add(row[id_column], value or None, number, len(value)):
                    yield builder.take()
            if builder:
                yield builder.take()

    @property
    def _delimiter(self) -> str:
        return DELIMITERS[Path(self.path.name.removesuffix(GZIP_SUFFIX)).suffix.lower()]

    def _next(self, rows: Any) -> list[str] | None:
        """The next row, or None. Raises SourceError if it is not of a table."""
        try:
            row: list[str] | None = next(rows, None)
        except csv.Error as error:
            raise self._not_a_table(rows.line_num + 1, error) from None
        except UnicodeDecodeError:  # of a block of many lines
            with self.opened() as stream:
                for number, line in enumerate(stream, start=1):
                    try:
                        line.decode()
                    except UnicodeDecodeError as error:
                        raise self._not_a_table(number, error) from None
            raise
        return row

    def _not_a_table(self, number: int, error: Exception) -> SourceError:
        """The error for a line that is not of a table."""
        return SourceError(
            f"{self.place(number)}: not a table in UTF-8: {error}; correct it, or write the file "
            "again with a library for tables"
        )

    def _positions(self, header: list[str]) -> tuple[int, int]:
        """The columns of ids and of rows."""
        value_name = self.columns.required_value(self.path, header)
        positions = []
        for option, name in (("key", self.columns.key), ("value", value_name)):
            if header.count(name) != 1:
                raise OptionError(
                    f"{option} is {name!r}, but the header of {self.path} has it "
                    f"{header.count(name)} times: it has {listed_names(header)}"
                )
            positions.append(header.index(name))
        return positions[0], positions[1]


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let the csv module read long values: it has one limit for the process."""
    before = csv.field_size_limit((1 << 31) - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)
