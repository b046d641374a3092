"""The rows of a Parquet file, each as the two members of a pair: an image and its record.

So hubs hold data sets: a row has the bytes of an image, as `{bytes, path}` or plain bytes, and its
record, as a text of JSON, as a nested value, or as a list of annotations beside the columns that
SA-1B's `image` object has. docs/from-your-dataset.md has the rules.

Rows are read in the order of the file, a few at a time. What pyarrow holds in memory is a page of
each column, at most those of a row group. It reads them from anywhere in the file, so its bytes are
also read once in their order, about as far as the rows have come, for the digests and for progress;
the page cache has them then.
"""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from sa1bpack.errors import SourceCorrupt, SourceError
from sa1bpack.parquet_files import open_parquet
from sa1bpack.signatures import BMP, GIF, HEAD_BYTES, PNG, TIFF, WEBP, format_of
from sa1bpack.source.inflate import ByteStream
from sa1bpack.source.tar import IMAGE_ENDINGS, Member, decode_name, is_image
from sa1bpack.wording import brief

# Names of columns, the first that is there counts: of the image where several columns have bytes,
# and of the record.
IMAGE_COLUMNS = ("image", *IMAGE_ENDINGS, "img")
RECORD_COLUMNS = ("json", "record", "annotations", "annotation")
NAME_COLUMN = "file_name"
KEY_COLUMN = "__key__"  # of WebDataset, a path without an ending
# Columns of SA-1B's `image` object, beside a column that has the list of annotations alone.
_IMAGE_OBJECT = ("image_id", "width", "height")
_ENDINGS = {PNG: "png", WEBP: "webp", TIFF: "tif", BMP: "bmp", GIF: "gif"}
_BATCH_BYTES = 16 << 20  # of rows that are in memory at once
_MOST_ROWS = 64
_READ_BYTES = 1 << 20  # that pyarrow reads at once of a column


class _ImageObject(msgspec.Struct):
    file_name: str = ""


class _Record(msgspec.Struct):
    """What is read of the text of a record here."""

    image: _ImageObject = msgspec.field(default_factory=_ImageObject)


_NAME_OF_RECORD = msgspec.json.Decoder(_Record)


class ParquetStream:
    """The members of a Parquet file; `read` returns the data of the current one.

    Iterating raises SourceError if the file or its columns cannot be read, SourceCorrupt if it is
    damaged or changes meanwhile, and MissingPackage without pyarrow.

    Attributes:
        stream: the bytes of the file in their order, for digests and progress. The caller closes
            it.
    """

    def __init__(self, path: Path, *, md5: bool = False):
        """Raises SourceError if the file cannot be opened."""
        self.path = path
        self.stream = ByteStream(path, md5=md5)
        self._before = self.stream.status
        self._data = b""

    def read(self) -> bytes:
        """All data of the current member."""
        return self._data

    def __iter__(self) -> Iterator[Member]:
        arrow, file = open_parquet(self.path, pre_buffer=False, buffer_size=_READ_BYTES)
        self._check_unchanged(self.path.stat())  # pyarrow has opened the same file
        try:
            columns = _Columns(self.path, arrow, file.schema_arrow)
        except (arrow.ArrowException, ValueError) as error:  # also names that are not UTF-8
            raise SourceCorrupt(f"{self.path}: damaged: {error}; copy it again") from None
        nbytes = self.stream.nbytes
        all_rows = max(1, file.metadata.num_rows)
        row = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            rows = min(_MOST_ROWS, max(1, _BATCH_BYTES * group.num_rows // _size_of(group)))
            batches = file.iter_batches(
                rows, row_groups=[number], columns=columns.names, use_threads=False
            )
            while (values_of_rows := self._next_rows(batches, arrow)) is not None:
                for values in values_of_rows:
                    for name, data in columns.members_of(values, row):
                        self._data = data
                        text, problem = decode_name(name.encode("utf-8", "surrogateescape"))
                        yield Member(text, len(data), "file", problem)
                    row += 1
                self._read_to(nbytes * row // all_rows)
        self._read_to(nbytes)
        self._check_unchanged(self.stream.status)

    def _check_unchanged(self, now: os.stat_result) -> None:
        """Raise SourceCorrupt unless rows and digests are of the same bytes."""
        before = self._before
        is_same = os.path.samestat(now, before)
        if not is_same or (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise SourceCorrupt(f"{self.path}: it changed while it was read; repeat the command")

    def _next_rows(self, batches: Any, arrow: Any) -> list[dict[str, Any]] | None:
        """The values of the next rows, None at the end. Raises SourceCorrupt."""
        try:
            batch = next(batches, None)
            if batch is None:
                return None
            rows: list[dict[str, Any]] = batch.to_pylist()
        except (arrow.ArrowException, OSError, ValueError) as error:  # also text that is not UTF-8
            raise SourceCorrupt(f"{self.path}: damaged: {error}; copy it again") from None
        return rows

    def _read_to(self, position: int) -> None:
        """Read on to a byte of the file."""
        self.stream.skip(max(0, position - self.stream.position))


def _size_of(group: Any) -> int:
    """Bytes of the values of a row group, at least 1."""
    return max(1, int(group.total_byte_size))


class _Columns:
    """Which columns of a file are read, and what a row of them has.

    Attributes:
        names: of the columns.
    """

    def __init__(self, path: Path, arrow: Any, schema: Any):
        """Raises SourceError if no column, or more than one, can be that of the image."""
        self._path = path
        known = {field.name: field.type for field in schema}
        self._image = self._find_image(known, arrow)
        self._record = next((name for name in RECORD_COLUMNS if name in known), None)
        others = (self._record, NAME_COLUMN, KEY_COLUMN, *_IMAGE_OBJECT)
        self.names = [self._image, *(name for name in others if name in known)]

    def _find_image(self, known: dict[str, Any], arrow: Any) -> str:
        """The name of the column with images."""
        candidates = []
        for name, kind in known.items():
            has_bytes = arrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
            is_binary = arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)
            if (has_bytes or is_binary) and name not in RECORD_COLUMNS:
                candidates.append(name)
        if len(candidates) == 1:
            return candidates[0]
        for name in IMAGE_COLUMNS:
            if name in candidates:
                return name
        what = "no column has bytes"
        if candidates:
            what = f"several columns have bytes, and none of them is called image: {candidates}"
        raise SourceError(
            f"{self._path}: {what}; it has {brief(list(known))}. Write a column `image` of encoded "
            "images, {bytes, path} or bytes, and `json` of records (docs/from-your-dataset.md)"
        )

    def members_of(self, row: dict[str, Any], number: int) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of the image of a row and of its record, where it has them.

        Args:
            row: column → value, as Arrow makes them for Python.
            number: of the row in the file, from 0, for a row that has no name.
        """
        image = row[self._image]
        path = ""
        if isinstance(image, dict):
            path = image.get("path") or ""
            image = image["bytes"]
        name = row.get(NAME_COLUMN) or path or row.get(KEY_COLUMN) or f"{number:09}"
        name = _image_name(str(name), image)
        record = None
        if self._record is not None:
            record = self._text_of(row[self._record], row, name)
        if record is not None and (name_in_record := _name_in(record)):
            name = _image_name(name_in_record, image)
        if image is not None:
            yield name, image
        if record is not None:
            yield str(PurePosixPath(name).with_suffix(".json")), record

    def _text_of(self, value: Any, row: dict[str, Any], name: str) -> bytes | None:
        """The JSON of a record, from the value of its column; None where there is none."""
        if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
            value = value["bytes"]
        if value is None:
            return None
        if isinstance(value, str):
            text = value.encode("utf-8", "surrogatepass")
        elif isinstance(value, bytes):
            text = value
        else:
            text = msgspec.json.encode(_without_nulls(value))
        numbers = {key: row.get(key) for key in _IMAGE_OBJECT}
        if not text.lstrip().startswith(b"[") or None in numbers.values():
            return text
        head = msgspec.json.encode({**numbers, NAME_COLUMN: name})
        return b'{"image": ' + head + b', "annotations": ' + text + b"}"


def _image_name(path: str, image: bytes | None) -> str:
    """The last part of a path, with the ending of the image's format if it has none."""
    name = path.replace("\\", "/").rpartition("/")[2]
    if is_image(name):
        return name
    ending = "jpg"
    known = format_of((image or b"")[:HEAD_BYTES])
    if known is not None:
        ending = _ENDINGS.get(known, ending)
    return f"{name}.{ending}"


def _name_in(record: bytes) -> str:
    """The name of the image in a record of SA-1B's form; "" for another record."""
    try:
        return _NAME_OF_RECORD.decode(record).image.file_name
    except (msgspec.DecodeError, UnicodeDecodeError):  # said when the record is read
        return ""


def _without_nulls(value: Any) -> Any:
    """A nested value without the keys that only other rows have, and bytes as text."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict | list | bytes):
        return [_without_nulls(item) for item in value]
    if isinstance(value, bytes):  # of counts
        return value.decode("ascii", "backslashreplace")
    return value
