"""The reader `amg`: what SAM's and SAM 2's automatic mask generators write, a record per image.

`scripts/amg.py` of segment-anything writes for each image X.jpg of a folder, into another folder,
X.json with `--convert-to-rle`, a list of masks as `SamAutomaticMaskGenerator.generate` returns
them; without, a folder X of 0.png, 1.png, ... and metadata.csv, whose rows are the numbers of the
masks. The lists of SAM 2's generator have the same form. In a tar, X.json lies beside X.jpg.
"""

import base64
import csv
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from sa1bpack.errors import SourceError
from sa1bpack.source.find import Source
from sa1bpack.source.folder_files import list_folder
from sa1bpack.source.pairs import MAX_JSON_BYTES, Pair, PairReader
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


def has_tables(folder: Path) -> bool:
    """True if the masks of an image, with their table, lie in a folder below this one."""
    return next(folder.rglob(f"*/{TABLE_NAME}"), None) is not None


class AmgReader(ImageReader):
    """The images of a folder, with the masks that lie in it or in another folder."""

    def __init__(self, source: Source, options: PairOptions):
        super().__init__(source, options)
        assert isinstance(source.path, Path)
        folder = options.annotations or source.path
        if not folder.is_dir():
            super().__exit__()
            raise SourceError(
                f"{folder}: no folder, and the masks of amg lie in one, X.json or X/{TABLE_NAME} "
                "for each image X: name that, --annotations FOLDER"
            )
        self._masks = folder
        self._records: dict[str, list[Path]] = {}  # name of an image without ending → its records
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                if name == TABLE_NAME:
                    self._records.setdefault(path.parent.name, []).append(path)
                elif name.endswith(".json"):
                    self._records.setdefault(path.stem, []).append(path)
        self._folders = {
            _folder_of(path).name for paths in self._records.values() for path in paths
        }
        self._is_table_folder = cache(lambda parent: Path(parent, TABLE_NAME).exists())
        self._images = self._count_images(source.path)

    def _count_images(self, folder: Path) -> Counter[str]:
        """Name of an image without ending → how many images of the source have it."""
        images: Counter[str] = Counter()
        for file in list_folder(folder, self.all_images):
            if file.half == "jpeg" and not self._is_table_folder(str(Path(file.path).parent)):
                images[Path(file.name).stem] += 1
        return images

    def is_image(self, member: Member) -> bool:
        """True for images, and not for drawings of masks."""
        assert isinstance(self.source.path, Path)
        parent = str(self.source.path / Path(member.name).parent)
        return super().is_image(member) and not self._is_table_folder(parent)

    def _records_of(self, path: Path) -> list[Path]:
        """The records that may be that of an image; one of its name in its folder is it.

        A record in another folder is that of another image if there is one of the same name, or if
        records lie in a folder that is called like that of the image.
        """
        records = self._records.get(path.stem, [])
        folders = [Path(os.path.relpath(_folder_of(record), self._masks)) for record in records]
        same = [
            record for record, folder in zip(records, folders, strict=True) if folder == path.parent
        ]
        near = [
            record
            for record, folder in zip(records, folders, strict=True)
            if folder.name and folder.name == path.parent.name
        ]
        has_own_folder = path.parent.name in self._folders
        if same or near or self._images[path.stem] > 1 or has_own_folder:
            return same or near
        return records

    def record_of(self, member: Member, path: str) -> bytes | None:
        """The list of masks of an image, as JSON."""
        stem = Path(path).stem
        records = self._records_of(Path(path))
        if not records and self._records.get(stem):
            other = brief(str(self._records[stem][0]))
            detail = f"reader amg: {other} is in another folder than the image: move one of them"
            self.reject(member, "missing-json", detail)
        elif not records:
            detail = f"reader amg: {self._masks} has no {stem}.json and no {stem}/{TABLE_NAME}"
            self.reject(member, "missing-json", detail)
        elif len(records) > 1:
            named = ", ".join(map(str, records[:2]))
            self.reject(member, "bad-name", f"reader amg: it may have several records: {named}")
        elif records[0].name != TABLE_NAME:
            return _read(records[0], MAX_JSON_BYTES)
        else:
            try:
                return _record_of_table(records[0])
            except ValueError as error:
                self.reject(member, "missing-json", f"reader amg: {records[0]}: {error}")
        return None


class AmgPairReader(PairReader):
    """The pairs of a tar of images and lists of masks."""

    def __iter__(self) -> Iterator[Pair]:
        for pair in super().__iter__():
            yield replace(pair, json=joined(pair.file_name, pair.json))


def _folder_of(record: Path) -> Path:
    """The folder of a record: of a table, that in which the folder of its image is."""
    return record.parent.parent if record.name == TABLE_NAME else record.parent


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
            if not drawing.is_file():
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
