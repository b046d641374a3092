"""The reader `amg`: what SAM's and SAM 2's automatic mask generators write, a record per image.

`scripts/amg.py` of segment-anything writes for each image X.jpg of a folder, into another folder,
X.json with `--convert-to-rle`, a list of masks as `SamAutomaticMaskGenerator.generate` returns
them; without, a folder X of 0.png, 1.png, ... and metadata.csv, whose rows are the numbers of the
masks. The lists of SAM 2's generator have the same form. In a tar, X.json lies beside X.jpg.
"""

import base64
import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from sa1bpack.errors import SourceError
from sa1bpack.paths import exists, is_file, is_folder
from sa1bpack.source.find import Source
from sa1bpack.source.folder_files import files_below
from sa1bpack.source.pairs import MAX_JSON_BYTES, FolderStream, Pair, PairReader
from sa1bpack.source.records.folders import FolderNames, common_end
from sa1bpack.source.records.images import ImageReader, PairOptions, joined
from sa1bpack.source.tar import Member
from sa1bpack.wording import brief

TABLE_NAME = "metadata.csv"
# Columns of metadata.csv → key of a mask, those of points in a list of their own.
_COLUMNS = {
    "area": ("area",),
    "bbox": ("bbox_x0", "bbox_y0", "bbox_w", "bbox_h"),
    "point_coords": ("point_input_x", "point_input_y"),
    "predicted_iou": ("predicted_iou",),
    "stability_score": ("stability_score",),
    "crop_box": ("crop_box_x0", "crop_box_y0", "crop_box_w", "crop_box_h"),
}

_NONE = (0, False)  # the agreement of the path of an image with the record of another one


def has_tables(folder: Path) -> bool:
    """True if the masks of an image, with their table, lie in a folder below this one."""
    return any(below and name == TABLE_NAME for below, name in files_below(folder))


class _MaskRecord(NamedTuple):
    """The record of an image.

    Attributes:
        file: list of masks, or table of the folder of their drawings.
        parts: the path that its image should have: the folder of masks and those in it, and the
            name of the image without its ending.
    """

    file: Path
    parts: tuple[str, ...]


class AmgReader(ImageReader):
    """The images of a source, with the masks that lie in its folder or in another one."""

    def __init__(self, source: Source, options: PairOptions):
        super().__init__(source, options)
        self._folder: Path | None = None  # of images; None: they are in an archive
        if source.kind == "folder" and isinstance(source.path, Path):
            self._folder = source.path
        masks = options.annotations or self._folder
        assert masks is not None, "records of an archive lie beside its images"
        if not is_folder(masks):
            super().__exit__()
            raise SourceError(
                f"{masks}: no folder, and the masks of amg lie in one, X.json or X/{TABLE_NAME} "
                "for each image X: name that, --annotations FOLDER"
            )
        self._masks = masks
        # Name of an image without ending → its records.
        self._records: dict[str, list[_MaskRecord]] = {}
        self._folders = FolderNames()
        try:
            self._find_records()
        except BaseException:
            super().__exit__()
            raise
        self._met: dict[Path, str] = {}  # file of a record → path of its image
        self._is_table_folder = cache(lambda parent: exists(Path(parent, TABLE_NAME)))

    def _find_records(self) -> None:
        """Note the records in the folder of masks. Raises SourceError if it cannot be listed."""
        for below, name in files_below(self._masks):
            path = self._masks / below / name
            if name == TABLE_NAME:
                self._add_record(path, path.parent)
            elif name.endswith(".json"):
                self._add_record(path, path.with_name(path.stem))

    def _add_record(self, file: Path, image: Path) -> None:
        """Note a record, which says by its place what its image is called."""
        parts = (self._masks.absolute().name, *image.relative_to(self._masks).parts)
        self._records.setdefault(image.name, []).append(_MaskRecord(file, parts))
        self._folders.add(parts)

    def is_image(self, member: Member) -> bool:
        """True for images, and not for drawings of masks."""
        if not super().is_image(member):
            return False
        if self._folder is None:
            return True
        return not self._is_table_folder(str(self._folder / Path(member.name).parent))

    def _parts(self, path: str) -> tuple[str, ...]:
        """The path of an image without its ending, with the name of the source before it."""
        return (self.source.name, *path.rpartition(".")[0].split("/"))

    @cached_property
    def _images(self) -> dict[str, list[tuple[str, ...]]]:
        """Name of an image without ending → the paths of it in a folder; empty for an archive."""
        images: dict[str, list[tuple[str, ...]]] = {}
        if isinstance(self._members, FolderStream):
            for file in self._members.listed:
                parent = str(Path(file.path).parent)
                if file.half == "jpeg" and not self._is_table_folder(parent):
                    parts = self._parts(file.name)
                    images.setdefault(parts[-1], []).append(parts)
        return images

    def _agreement(self, parts: Sequence[str], record: _MaskRecord) -> tuple[int, bool]:
        """How well the paths of an image and a record agree: parts at their ends; as a whole."""
        if self._folders.tell_apart(parts, record.parts):
            return _NONE
        return common_end(parts, record.parts), parts[1:] == record.parts[1:]

    def _records_of(self, parts: tuple[str, ...]) -> list[_MaskRecord]:
        """The records that may be that of an image: those that agree best, and with no other image.

        The folders of both decide, from the last one on upwards.
        """
        others = [other for other in self._images.get(parts[-1], []) if other != parts]
        by_agreement: dict[tuple[int, bool], list[_MaskRecord]] = {}
        for record in self._records.get(parts[-1], []):
            agreement = self._agreement(parts, record)
            nearest = max((self._agreement(other, record) for other in others), default=_NONE)
            if agreement > nearest:
                by_agreement.setdefault(agreement, []).append(record)
        return by_agreement[max(by_agreement)] if by_agreement else []

    def record_of(self, member: Member, path: str) -> bytes | None:
        """The list of masks of an image, as JSON."""
        parts = self._parts(path)
        name = parts[-1]
        records = self._records_of(parts)
        if not records and name in self._records:
            other = brief(str(self._records[name][0].file))
            detail = f"reader amg: {other} is in another folder than the image: move one of them"
            self.reject(member, "missing-json", detail)
        elif not records:
            detail = f"reader amg: {self._masks} has no {name}.json and no {name}/{TABLE_NAME}"
            self.reject(member, "missing-json", detail)
        elif len(records) > 1:
            named = ", ".join(str(record.file) for record in records[:2])
            self.reject(member, "bad-name", f"reader amg: it may have several records: {named}")
        elif self._is_first_of(records[0], member, path):
            return self._read_record(member, records[0].file)
        return None

    def _is_first_of(self, record: _MaskRecord, member: Member, path: str) -> bool:
        """True for the first image of an archive that may be that of a record; others are rejected.

        Raises SourceError if the first one is not, because this one agrees better.
        """
        first = self._met.setdefault(record.file, path)
        if first == path:
            return True
        if self._agreement(self._parts(path), record) > self._agreement(self._parts(first), record):
            raise SourceError(
                f"{self.source.path}: {brief(first)} had the record {record.file}, but "
                f"{brief(path)} is its image: leave out images without a record, or unpack the "
                "source and pack the folder"
            )
        detail = f"reader amg: {record.file} is the record of {brief(first)}, which came before"
        self.reject(member, "missing-json", detail)
        return False

    def _read_record(self, member: Member, file: Path) -> bytes | None:
        if file.name != TABLE_NAME:
            return _read(file, MAX_JSON_BYTES)
        try:
            return _record_of_table(file)
        except ValueError as error:
            self.reject(member, "missing-json", f"reader amg: {file}: {error}")
        return None


class AmgPairReader(PairReader):
    """The pairs of a tar of images and lists of masks."""

    def __iter__(self) -> Iterator[Pair]:
        for pair in super().__iter__():
            yield replace(pair, json=joined(pair.file_name, pair.json))


def _read(path: Path, limit: int) -> bytes:
    """The bytes of a file, one more than the limit at most. Raises SourceError."""
    try:
        with path.open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _record_of_table(table: Path) -> bytes:
    """The list of masks of a folder of drawings and their table, as JSON.

    Raises ValueError for a table that is not that of the generator, or lacks a drawing.
    """
    text = _read(table, MAX_JSON_BYTES).decode("utf-8-sig")
    rows = csv.DictReader(text.splitlines(), strict=True)
    masks = []
    nbytes = 0
    try:
        for number, row in enumerate(rows):
            drawing = table.parent / f"{row.get('id') or number}.png"
            if not is_file(drawing):
                raise ValueError(f"row {number + 1}: {drawing.name} is missing")
            data = _read(drawing, MAX_JSON_BYTES)
            nbytes += len(data)
            if nbytes > MAX_JSON_BYTES:
                raise ValueError(f"its drawings have more than {MAX_JSON_BYTES} bytes")
            png = base64.b64encode(data).decode()
            mask: dict[str, object] = {"segmentation": {"png": png}}
            for key, columns in _COLUMNS.items():
                numbers = [_number(row.get(column), column, number) for column in columns]
                mask[key] = numbers[0] if len(columns) == 1 else numbers
                if key == "point_coords":
                    mask[key] = [numbers]
            masks.append(mask)
    except csv.Error as error:
        raise ValueError(f"no table of numbers: {error}") from None
    return msgspec.json.encode(masks)


def _number(text: str | None, column: str, number: int) -> int | float:
    """A number of a table, an integer if it is written as one. Raises ValueError."""
    try:
        return int(text or "")
    except ValueError:
        pass
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(f"row {number + 1}: {column} is {brief(text)}, no number") from None
