"""Which image or mask a row belongs to: ids as SA-1B has them, and names of image files."""

import os
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.errors import OptionError
from sa1bpack.mask_numbers import lacks_text
from sa1bpack.wording import brief

_DIGITS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
# At the end of a file name without its suffixes: sa_223750, sa_000020_sa_223750.
_SA_NAME = re.compile(r"(?:.*[^A-Za-z0-9])?sa_([0-9]{1,18})", re.ASCII)
_SMALLEST = -(1 << 63)
_LARGEST = (1 << 63) - 1


class UnusableId(Exception):
    """An id is neither a whole number nor text.

    Attributes:
        position: its position among those that were to be matched.
    """

    def __init__(self, position: int):
        super().__init__(position)
        self.position = position


def check_ids(ds: Dataset, axis: str) -> None:
    """Raise OptionError for rows of masks, if the pack lacks the ids by which they are found."""
    if axis == "mask" and "annotation_id" in ds.layout.absent:
        raise OptionError(
            f"axis is 'mask', but {lacks_text('annotation_id', ds.layout.mask_numbers)}, so rows "
            "cannot be told apart; sa1bpack.derive computes rows of masks, in their order"
        )


class RowIds:
    """The ids of the images, or masks, of a dataset, and what rows may call them.

    Ids are integers or text of digits; images have names, too: `sa_123.jpg`, `sa_123`, paths that
    end in these, and the names that other collections give to their files.
    """

    def __init__(self, ds: Dataset, axis: str):
        self._ds = ds
        self.axis = axis
        ids = ds.mask_column("annotation_id") if axis == "mask" else ds.column("image_id")
        self._sorted = np.sort(ids)
        self._by_name: dict[str, int] | None = None
        self._by_digits: dict[str, int] | None = None

    def match(self, values: Sequence[Any], of_files: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The ids of rows, and which of them the dataset has.

        Args:
            values: an id or name per row.
            of_files: they are names of files, or their digits, which may be those of the file of an
                image whose id is another one.

        Returns:
            int64 (n,), where it is known; bool (n,).

        Raises:
            UnusableId: a value is neither a whole number nor text.
            OptionError: a name is that of several images, or digits mean two.
        """
        if of_files and self.axis == "sample":
            values = [self._id_of_digits(value) for value in values]
        ids = self._whole_numbers(values)
        if ids is not None:
            return ids, self._has(ids)
        ids = np.zeros(len(values), np.int64)
        means_one = np.zeros(len(values), bool)
        for position, value in enumerate(values):
            number = self._number_of(value, position)
            if number is not None:
                ids[position] = number
                means_one[position] = True
        return ids, means_one & self._has(ids)

    @staticmethod
    def _whole_numbers(values: Sequence[Any]) -> np.ndarray | None:
        """int64 (n,) if all are whole numbers within it."""
        if isinstance(values, np.ndarray):
            if values.dtype.kind not in "iu" or (values > _LARGEST).any():
                return None
            return values.astype(np.int64)
        if not all(type(value) is int for value in values):
            return None
        try:
            return np.array(values, np.int64)
        except OverflowError:
            return None

    def _has(self, ids: np.ndarray) -> np.ndarray:
        """bool (n,): the dataset has an image, or mask, of this id."""
        if not len(self._sorted):
            return np.zeros(len(ids), bool)
        positions = np.searchsorted(self._sorted, ids)
        positions = np.minimum(positions, len(self._sorted) - 1)
        matches: np.ndarray = self._sorted[positions] == ids
        return matches

    def _number_of(self, value: Any, position: int) -> int | None:
        """The id that a value means; None if no image has that name."""
        if getattr(value, "ndim", None) == 0:  # a number of numpy or torch
            value = value.item()
        if isinstance(value, PurePath):
            value = str(value)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UnusableId(position)
        if isinstance(value, int):
            return value if _SMALLEST <= value <= _LARGEST else None
        if _DIGITS.fullmatch(value):
            number = int(value)
            return number if _SMALLEST <= number <= _LARGEST else None
        if self.axis == "mask":
            return None
        name = value.replace("\\", "/").rpartition("/")[2]
        match = _SA_NAME.fullmatch(name.partition(".")[0])
        if match is not None:
            return int(match[1])
        return self._id_by_name(name)

    def _id_of_digits(self, name: str) -> int | str:
        """The id of the image whose file has a name of digits, if it is not these; else the name.

        Raises OptionError if they are also the id of another image.
        """
        if self._by_digits is None:
            self._by_digits = _ids_by_digits(self._ds)
        image_id = self._by_digits.get(name)
        if image_id is None:
            return name
        _refuse_ambiguous(name, image_id)
        number = int(name)
        if number <= _LARGEST and self._has(np.array([number]))[0]:
            raise OptionError(
                f"ids has {name!r}, the name of the file of image {image_id}, and the id of "
                f"another image: name the file sa_{image_id} or sa_{number}, whichever it is for, "
                "and others alike"
            )
        return image_id

    def _id_by_name(self, name: str) -> int | None:
        """The id of the image whose file has this name, with or without its suffix.

        Raises OptionError if several have it.
        """
        if self._by_name is None:
            self._by_name = _ids_by_name(self._ds)
        image_id = self._by_name.get(name)
        if image_id is None:
            image_id = self._by_name.get(name.rpartition(".")[0] or name)
        _refuse_ambiguous(name, image_id)
        return image_id


def _refuse_ambiguous(name: str, image_id: int | None) -> None:
    """Raise OptionError for a name that several images have, as _SMALLEST says."""
    if image_id == _SMALLEST:
        raise OptionError(
            f"ids has {brief(name)}, a name that several images of the dataset have: give their "
            "image ids, as those beside ds.column('image_name') (docs/beside.md#ids)"
        )


def _ids_by_name(ds: Dataset) -> dict[str, int]:
    """Name of an image file, also without its suffix -> image id; _SMALLEST for several images."""
    ids: dict[str, int] = {}
    names = ds.column("file_name").tolist()
    for name, image_id in zip(names, ds.column("image_id").tolist(), strict=True):
        text = os.fsdecode(name).rpartition("/")[2]
        for key in {text, text.rpartition(".")[0] or text}:
            ids[key] = image_id if ids.setdefault(key, image_id) == image_id else _SMALLEST
    return ids


def _ids_by_digits(ds: Dataset) -> dict[str, int]:
    """Name of an image file without its suffix -> image id, of names of digits that are not it.

    _SMALLEST stands for several images.
    """
    ids: dict[str, int] = {}
    for columns in ds.columns():
        names = columns["file_name"]
        first = np.ascontiguousarray(names).view(np.uint8).reshape(len(names), -1)[:, 0]
        digits = np.flatnonzero((first >= ord("0")) & (first <= ord("9")))
        image_ids = columns["image_id"][digits].tolist()
        for name, image_id in zip(names[digits].tolist(), image_ids, strict=True):
            stem = os.fsdecode(name).rpartition(".")[0]
            if _DIGITS.fullmatch(stem) and int(stem) != image_id:
                ids[stem] = image_id if ids.setdefault(stem, image_id) == image_id else _SMALLEST
    return ids
