"""Masks without a pixel, and parts of masks that are no shape: what a run says of them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sa1bpack.masks.rle import mask_area
from sa1bpack.source.annotations import Annotations
from sa1bpack.source.shapes import MaskShapes
from sa1bpack.wording import counted

_NAMED = 3  # in a line
_LEAST_NUMBERS = 6  # of a polygon: x and y of three corners


class MaskName(NamedTuple):
    """A mask in a line; in the order of which the first ones are named.

    Attributes:
        image_id: id of its image.
        number: its annotation id; without one, its place in the record, from 0.
        text: both, in words.
    """

    image_id: int
    number: int
    text: str


@dataclass(frozen=True)
class EmptyMasks:
    """Masks of some records that have no pixel, and polygons of others that are no shape.

    Attributes:
        masks: number of masks without a pixel.
        polygons: number of polygons of fewer than three corners, in masks that have other ones.
        first_masks, first_with_polygons: the first of these masks, a few.
    """

    masks: int = 0
    polygons: int = 0
    first_masks: tuple[MaskName, ...] = ()
    first_with_polygons: tuple[MaskName, ...] = ()

    def __add__(self, other: "EmptyMasks") -> "EmptyMasks":
        return EmptyMasks(
            self.masks + other.masks,
            self.polygons + other.polygons,
            _first(self.first_masks + other.first_masks),
            _first(self.first_with_polygons + other.first_with_polygons),
        )

    def lines(self, images: str) -> list[str]:
        """Lines for the user; none if there are no such masks.

        Args:
            images: which images were looked at, in words.
        """
        lines = []
        if self.masks:
            lines.append(
                f"{images}: {counted(self.masks, 'annotation')} without a pixel, such as "
                f"{_texts(self.first_masks)}: no segmentation, a shape without area, or one "
                "outside its image (docs/from-your-dataset.md)"
            )
        if self.polygons:
            lines.append(
                f"{images}: {counted(self.polygons, 'polygon')} of fewer than three corners left "
                f"out of annotations, such as {_texts(self.first_with_polygons)}"
            )
        return lines


NONE_EMPTY = EmptyMasks()


def empty_masks_of(
    record: Annotations,
    selected: np.ndarray,
    masks_of: np.ndarray,
    run_ends: np.ndarray,
    run_offset: np.ndarray,
) -> EmptyMasks:
    """Those among the masks of records that are stored.

    Args:
        record: the records.
        selected: int64 (m,), the masks of the records that are stored.
        masks_of: int64 (k + 1,), where among these those of each image are.
        run_ends, run_offset: the runs of the masks that are stored.
    """
    is_empty = mask_area(run_ends, run_offset) == 0
    polygons = np.zeros(len(selected), np.int64)
    if record.shapes is not None:
        polygons = _short_polygons(record.shapes)[selected]
        polygons[is_empty] = 0
    if not (is_empty.any() or polygons.any()):
        return NONE_EMPTY
    firsts = []
    for is_named in (is_empty, polygons > 0):
        masks = np.flatnonzero(is_named)
        images = np.searchsorted(masks_of, masks, side="right") - 1
        names = zip(selected[masks].tolist(), images.tolist(), strict=True)
        firsts.append(_first(tuple(_name(record, mask, image) for mask, image in names)))
    return EmptyMasks(int(is_empty.sum()), int(polygons.sum()), *firsts)


def _short_polygons(shapes: MaskShapes) -> np.ndarray:
    """int64 (n,): of each mask, the number of its polygons that have fewer than three corners."""
    is_short = np.diff(shapes.polygon_offset) < _LEAST_NUMBERS
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_short)])
    of_masks: np.ndarray = np.diff(before[shapes.polygons_of])
    return of_masks


def _name(record: Annotations, mask: int, image: int) -> MaskName:
    """The name of a mask of the records, which is one of this image."""
    entry = record.images[image]
    ids = record.numbers.get("annotation_id")
    if ids is not None:
        number = int(ids[mask])
        return MaskName(entry.image_id, number, f"{number} of image {entry.image_id}")
    number = mask - int(record.masks_of[image])
    return MaskName(entry.image_id, number, f"mask {number} of {entry.file_name}")


def _first(names: tuple[MaskName, ...]) -> tuple[MaskName, ...]:
    return tuple(sorted(names)[:_NAMED])


def _texts(names: tuple[MaskName, ...]) -> str:
    return ", ".join(name.text for name in names)
