"""Rows of a file per image, .npy, .npz or .txt, whose name says which image; in folders, tars."""

import os
import stat
import tarfile
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from io import BytesIO
from itertools import islice
from math import prod
from pathlib import Path, PurePosixPath
from tarfile import HeaderError, ReadError
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy_format

from sa1bpack.deriving.sources.blocks import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    OtherFiles,
    RowBlock,
    listed_names,
)
from sa1bpack.errors import OptionError, SourceError
from sa1bpack.format import working_names
from sa1bpack.format.side.spec import MAX_SIDE_ROW_BYTES
from sa1bpack.paths import naming
from sa1bpack.threads import ThreadPool
from sa1bpack.wording import brief

ARRAY_SUFFIXES = (".npy", ".npz")
TEXT_SUFFIX = ".txt"
IMAGE_FILE_SUFFIXES = (*ARRAY_SUFFIXES, TEXT_SUFFIX)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_END_MARKER = bytes(tarfile.BLOCKSIZE)
# Threads that read files, and how many small ones each reads at once.
_READERS = 8
_AT_ONCE = 16
_AT_ONCE_BYTES = 1 << 20
# A header of .npy beside the largest row.
_MAX_FILE_BYTES = MAX_SIDE_ROW_BYTES + (1 << 20)


def is_image_file(name: str) -> bool:
    """True for the name of a file that has the row of one image."""
    return name.lower().endswith(IMAGE_FILE_SUFFIXES)


class ImageFiles:
    """Files of rows, a row per image. Those of ids that the dataset lacks are not opened."""

    unit = "file"
    names: Sequence[str] = ()

    def __init__(
        self,
        list_paths: Callable[[], Iterator[Path]],
        value: str | None,
        other_files: OtherFiles,
    ):
        """
        Args:
            list_paths: lists the files, each time in the same order.
            value: name of the array in .npz files; None: they have one each.
            other_files: the account of files that are not of rows.
        """
        self.total = 0
        self.finished = 0
        self.other_files = other_files
        self._list_paths = list_paths
        self._value = value
        self._first = 0  # record of the first file of the block in progress
        self._paths: list[Path] = []  # its files

    def place(self, record: int) -> str:
        """The path of the file."""
        if 0 <= record - self._first < len(self._paths):
            return str(self._paths[record - self._first])
        path = next(islice(self._list_paths(), record, None), None)
        return str(path or f"file {record:,} of those that were listed")

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        listed = self._list_paths()
        while paths := list(islice(listed, BLOCK_ROWS)):
            self._first = self.finished
            self._paths = paths
            self.finished += len(paths)
            names = [_id_in(path.name) for path in paths]
            records = range(self._first, self.finished)
            read = partial(_read_ahead, paths, self._value)
            yield RowBlock(names, (), records, read=read, of_files=True)


def _read_ahead(
    paths: Sequence[Path], value: str | None, positions: Sequence[int]
) -> Iterator[Any]:
    """The rows in files, of which the next few are read meanwhile: a file system may be far away.

    Args:
        paths: the files.
        value: as in `row_of_file`.
        positions: those that are to be read, in order.
    """
    chosen = [paths[position] for position in positions]
    if not chosen:
        return
    with naming(chosen[0]):
        at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // (chosen[0].stat().st_size + 1)))
    waiting: deque[Future[list[bytes]]] = deque()
    with ThreadPool(_READERS, "sa1bpack-rows") as pool:
        finished = 0
        for first in range(0, len(chosen), at_once):
            waiting.append(pool.submit(_contents, chosen[first : first + at_once]))
            last = first + at_once >= len(chosen)
            while waiting and (last or len(waiting) > _READERS):
                for content in waiting.popleft().result():
                    yield row_of_file(chosen[finished], content, value)
                    finished += 1


def _contents(paths: Sequence[Path]) -> list[bytes]:
    """The bytes of files.

    Raises SourceError if one is no file, or has more than a row can have, OSError.
    """
    contents = []
    for path in paths:
        with naming(path):
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would hang
                raise SourceError(
                    f"{path}: a folder, a pipe or a device, where a file of a row must be; leave "
                    "it out"
                )
            _check_size(path, status.st_size)
            contents.append(path.read_bytes())
    return contents


class _CheckedHeader(tarfile.TarInfo):
    """The header of a member of a tar, which must have its end marker after the last one.

    tarfile takes a damaged header, and the end of the file, for the end of the tar.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """The header in these bytes; raises HeaderError at the end marker, ReadError for none."""
        try:
            return super().frombuf(buf, encoding, errors)
        except HeaderError as error:
            if buf == _END_MARKER:
                raise
            raise ReadError(f"{error} where a header or the end marker must be") from None


class TarOfFiles:
    """The files of rows in a tar, plain or gzip, read as a stream."""

    unit = "byte"
    names: Sequence[str] = ()

    def __init__(self, path: Path, value: str | None):
        self.path = path
        self.other_files = OtherFiles()
        with naming(path):
            self.total = path.stat().st_size
        self.finished = 0
        self._value = value
        self._first = 0  # record of the first file of the block in progress
        self._names: list[str] = []  # its files

    def place(self, record: int) -> str:
        """The name of the member."""
        if 0 <= record - self._first < len(self._names):
            return f"{self.path}: {self._names[record - self._first]}"
        with self.path.open("rb") as raw:
            member = next(islice(self._members(raw, OtherFiles()), record, None), None)
        return f"{self.path}: {member[0] if member else f'file {record:,}'}"

    def blocks(self) -> Iterator[RowBlock]:
        """See `RowReader`."""
        values: list[Any] = []
        waiting = 0
        with naming(self.path), self.path.open("rb") as raw:
            for name, data in self._members(raw, self.other_files):
                self._names.append(name)
                values.append(row_of_file(f"{self.path}: {name}", data, self._value))
                waiting += len(data)
                self.finished = raw.tell()
                if waiting >= BLOCK_BYTES or len(values) >= BLOCK_ROWS:
                    yield self._block(values)
                    self._first += len(self._names)
                    self._names = []
                    values = []
                    waiting = 0
            if values:
                yield self._block(values)

    def _members(self, raw: Any, other_files: OtherFiles) -> Iterator[tuple[str, bytes]]:
        """Name and content of each file of a row."""
        try:
            with tarfile.open(fileobj=raw, mode="r|*", tarinfo=_CheckedHeader) as tar:
                for member in tar:
                    if not member.isfile():
                        continue
                    if not is_image_file(member.name):
                        other_files.add(f"{self.path}: {member.name}")
                        continue
                    _check_size(f"{self.path}: {member.name}", member.size)
                    content = tar.extractfile(member)
                    assert content is not None  # it is a file
                    yield member.name, content.read()
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise SourceError(f"{self.path}: not a whole tar: {error}; copy it again") from None

    def _block(self, values: list[Any]) -> RowBlock:
        names = [_id_in(PurePosixPath(name).name) for name in self._names]
        records = range(self._first, self._first + len(names))
        return RowBlock(names, values, records, of_files=True)


# ---------------------------------------------------------------------------------- files of a row


def _id_in(name: str) -> str:
    """The id in the name of a file: its digits, if they are all but the suffix."""
    stem = name.partition(".")[0]
    return stem if stem.isdecimal() else name


def row_of_file(path: Path | str, data: bytes, value: str | None) -> Any:
    """The row that a file has: an array, or text without its last line break.

    Raises SourceError for what is not such a file, OptionError if an .npz has not the array that
    `value` names.
    """
    suffix = PurePosixPath(str(path)).suffix.lower()
    if suffix == TEXT_SUFFIX:
        try:
            return data.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: not text in UTF-8: {error}") from None
    try:
        if suffix == ".npy":
            return _array_of_npy(data)
        return _array_of_npz(path, data, value)
    except OptionError:
        raise
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise SourceError(
            f"{path}: not a whole {suffix} file of numbers: {error}; write it again"
        ) from None


def _array_of_npy(data: bytes) -> np.ndarray:
    """The array of an .npy file, read-only. Raises ValueError for what is not one of numbers."""
    is_first = data[6:7] == b"\x01"  # version 1 has two bytes of length
    start = int.from_bytes(data[8:10], "little") + 10
    if not is_first:
        start = int.from_bytes(data[8:12], "little") + 12
    shape, in_columns, dtype = _header(data[:start])
    if dtype.kind not in "biuf":
        raise ValueError(f"it has {dtype}")
    count = prod(shape)
    if start + count * dtype.itemsize != len(data):
        raise ValueError(f"it has {len(data) - start:,} bytes, but must have {dtype} {shape}")
    flat = np.frombuffer(data, dtype, count, start)
    return flat.reshape(shape, order="F" if in_columns else "C")


@lru_cache(64)
def _header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type in the header of an .npy file, of which a folder has few.

    Raises ValueError for what is none.
    """
    stream = BytesIO(header)
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        return npy_format.read_array_header_1_0(stream)
    if version == (2, 0):
        return npy_format.read_array_header_2_0(stream)
    raise ValueError(f"its version is {version}")


def _array_of_npz(path: Path | str, data: bytes, value: str | None) -> np.ndarray:
    """The array of an .npz file. Raises OptionError, ValueError, BadZipFile."""
    with zipfile.ZipFile(BytesIO(data)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        member = archive.getinfo(f"{_array_name(path, names, value)}.npy")
        _check_size(path, member.file_size)
        return _array_of_npy(archive.read(member))


def _array_name(path: Path | str, names: list[str], value: str | None) -> str:
    """The name of the array in an .npz that has the row."""
    if value is None and len(names) == 1:
        return names[0]
    if value is None:
        raise OptionError(
            f"{path} has {listed_names(names)}: say by value which of them has the rows"
        )
    if value not in names:
        raise OptionError(
            f"value is {brief(value)}, but {path} has {listed_names(names)}: choose one of them"
        )
    return value


def _check_size(path: Path | str, nbytes: int) -> None:
    if nbytes > _MAX_FILE_BYTES:
        raise SourceError(
            f"{path}: it has {nbytes:,} bytes; the limit is {MAX_SIDE_ROW_BYTES:,} per row"
        )


def files_of_folder(
    folder: Path, is_row_file: Callable[[str], bool], other_files: OtherFiles
) -> Iterator[Path]:
    """The files of rows in a folder and the folders in it, sorted by name, a folder at a time."""
    with naming(folder):
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    for entry in entries:
        if working_names.is_passed_over(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from files_of_folder(Path(entry.path), is_row_file, other_files)
        elif is_row_file(entry.name):
            yield Path(entry.path)
        else:
            other_files.add(entry.path)
