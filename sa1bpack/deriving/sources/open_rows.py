"""What holds rows: a file, a folder, several of them, a table or an iterator -> its reader."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sa1bpack.deriving.sources import image_files, text_tables
from sa1bpack.deriving.sources.blocks import OtherFiles, RowBlock, RowReader, TableColumns
from sa1bpack.deriving.sources.image_files import ImageFiles, TarOfFiles, files_of_folder
from sa1bpack.deriving.sources.in_memory import Pairs, TableRows, is_table
from sa1bpack.deriving.sources.parquet import PARQUET_SUFFIX, ParquetFile
from sa1bpack.deriving.sources.text_tables import CsvFile, JsonFile, JsonLines
from sa1bpack.errors import OptionError
from sa1bpack.paths import exists, is_file, is_folder, paths_of

_KINDS = (
    ".jsonl, .ndjson, .json, .csv or .tsv (also with .gz), .parquet, .tar, or a folder of these or "
    "of .npy, .npz or .txt files with a row per image"
)
# A record of one of several sources: the number of the source, and the record there.
_SOURCE = 1 << 44


def is_streamed(rows: Any) -> bool:
    """True for rows that bring their ids, and are read once.

    These are files, tables, iterables of pairs (id, row), and dicts of numbers or lists.
    """
    if isinstance(rows, str | Path) or is_table(rows):
        return True
    if isinstance(rows, Mapping):  # of text or arrays: rows in memory
        first = next((row for row in rows.values() if row is not None), None)
        return isinstance(first, int | float | list | tuple)
    if hasattr(rows, "dtype") or not isinstance(rows, Iterable):
        return False
    if not isinstance(rows, list | tuple):
        return True
    pairs = all(isinstance(row, tuple) and len(row) == 2 for row in rows[:10])
    return bool(rows) and (pairs or _are_paths(rows))


def open_rows(rows: Any, columns: TableColumns) -> RowReader:
    """The reader of rows.

    Args:
        rows: path of a file or folder, a glob pattern, or a list of paths; a table of pandas or
            polars; a mapping of id and row; or an iterable of pairs (id, row).
        columns: where ids and rows are, in what has names.

    Raises:
        OptionError: it is none of these, or has other columns.
        SourceError: it is damaged.
        MissingPackage: pyarrow is needed.
        OSError: it cannot be read.
    """
    if is_table(rows):
        return TableRows(rows, columns)
    if isinstance(rows, Mapping):
        return Pairs(rows.items())
    if not isinstance(rows, str | Path) and not _are_paths(rows):
        return Pairs(rows)
    paths = paths_of("rows", rows)
    for path in paths:
        if not exists(path):
            raise OptionError(
                f"rows are {str(path)!r}, and ids are None: there is no such file or folder; a "
                "list of texts needs ids"
            )
    if len(paths) == 1:
        return _reader_of(paths[0], columns)
    if all(is_file(path) and image_files.is_image_file(path.name) for path in paths):
        return ImageFiles(lambda: iter(paths), columns.value, OtherFiles())
    nbytes = sum(path.stat().st_size for path in paths if is_file(path))
    return SeveralFiles(lambda: iter(paths), columns, nbytes, OtherFiles())


def _are_paths(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(r, str | Path) for r in rows)


def _reader_of(path: Path, columns: TableColumns) -> RowReader:
    """The reader of one file or folder."""
    if is_folder(path):
        return _reader_of_folder(path, columns)
    if image_files.is_image_file(path.name):
        return ImageFiles(lambda: iter([path]), columns.value, OtherFiles())
    reader = _table_reader(path.name)
    if reader is None:
        raise OptionError(f"rows are {str(path)!r}: give a file of rows, {_KINDS}")
    return reader(path, columns)


def _table_reader(name: str) -> Callable[[Path, TableColumns], RowReader] | None:
    """What reads a table of this name; None for another file."""
    lower = name.lower()
    if lower.endswith(image_files.TAR_SUFFIXES):
        return lambda path, columns: TarOfFiles(path, columns.value)
    if lower.endswith(PARQUET_SUFFIX):
        return ParquetFile
    lower = lower.removesuffix(text_tables.GZIP_SUFFIX)
    if lower.endswith(text_tables.LINES_SUFFIXES):
        return JsonLines
    if lower.endswith(text_tables.JSON_SUFFIX):
        return JsonFile
    if lower.endswith(tuple(text_tables.DELIMITERS)):
        return CsvFile
    return None


def _is_table(name: str) -> bool:
    return _table_reader(name) is not None


def _is_row_file(name: str) -> bool:
    return image_files.is_image_file(name) or _is_table(name)


def _reader_of_folder(folder: Path, columns: TableColumns) -> RowReader:
    """The files of a folder: a row per image, or tables; the first file decides."""
    first = next(files_of_folder(folder, _is_row_file, OtherFiles()), None)
    if first is None:
        raise OptionError(f"rows are {str(folder)!r}: this folder has no file of rows, {_KINDS}")
    other_files = OtherFiles()
    if image_files.is_image_file(first.name):

        def list_files() -> Iterator[Path]:
            return files_of_folder(folder, image_files.is_image_file, other_files)

        return ImageFiles(list_files, columns.value, other_files)

    def list_tables() -> Iterator[Path]:
        return files_of_folder(folder, _is_table, other_files)

    return SeveralFiles(list_tables, columns, 0, other_files)


class SeveralFiles:
    """The rows of several files or folders, one after the other."""

    unit = "byte"

    def __init__(
        self,
        list_paths: Callable[[], Iterator[Path]],
        columns: TableColumns,
        nbytes: int,
        other_files: OtherFiles,
    ):
        """
        Args:
            list_paths: lists them, each time in the same order.
            columns: where ids and rows are.
            nbytes: bytes of all files; 0 if that is not known.
            other_files: the account of files that are not of rows.
        """
        self.total = nbytes
        self.finished = 0
        self.names: Sequence[str] = ()
        self.other_files = other_files
        self._list_paths = list_paths
        self._columns = columns

    def place(self, record: int) -> str:
        """The file of a row, and its place there."""
        number = record // _SOURCE
        path = next(islice(self._list_paths(), number, None), None)
        if path is None:
            return f"file {number:,} of those that were listed"
        return _reader_of(path, self._columns).place(record % _SOURCE)

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        finished = 0  # bytes of the files before
        for number, path in enumerate(self._list_paths()):
            reader = _reader_of(path, self._columns)
            size = path.stat().st_size if is_file(path) else 0
            for block in reader.blocks():
                records = [number * _SOURCE + record for record in block.records]
                self.names = self.names or reader.names
                yield replace(block, records=records)
                self.finished = finished + size * reader.finished // max(1, reader.total)
            finished += size
            self.finished = finished
            self.other_files.add_all(reader.other_files)
