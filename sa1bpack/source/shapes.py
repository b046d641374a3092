"""The shapes of masks that are not all COCO's text, as records have them."""

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, chain

import msgspec
import numpy as np

from sa1bpack.source.number_lists import number_lists

# Forms of a shape, as numbers in `MaskShapes.forms`.
TEXT = 0
COUNTS = 1
POLYGONS = 2
DRAWN = 3

# Compressed counts; their lists; polygons, each the JSON of a list of x, y, x, y, ...; an image; or
# none.
Segmentation = str | list[int] | list[msgspec.Raw] | bytes | None


@dataclass(frozen=True, slots=True, eq=False)
class MaskShapes:
    """The shapes of n masks, each in one of several forms.

    ===================  ===========  =======================================================
    forms                (n,) u8      TEXT, COUNTS, POLYGONS or DRAWN
    text                 (t,) u8      COCO's run-length strings of those of the form TEXT
    text_offset          (n+1,) i64   mask i's is text[text_offset[i]:text_offset[i+1]], as all
                                      offsets here: empty for masks of other forms
    counts               (c,) i64     lists of counts
    counts_offset        (n+1,) i64
    coordinates          (p,) f64     x and y of corners of polygons, in source pixels
    polygon_offset       (q+1,) i64   polygon j is coordinates[polygon_offset[j]:...[j+1]]
    polygons_of          (n+1,) i64   mask i has the polygons polygons_of[i]:polygons_of[i+1];
                                      one of the form POLYGONS without any has no pixel
    drawn                tuple        the image file of each mask of the form DRAWN, else None
    ===================  ===========  =======================================================
    """

    forms: np.ndarray
    text: np.ndarray
    text_offset: np.ndarray
    counts: np.ndarray
    counts_offset: np.ndarray
    coordinates: np.ndarray
    polygon_offset: np.ndarray
    polygons_of: np.ndarray
    drawn: tuple[bytes | None, ...]


def shapes_of(values: Sequence[Segmentation]) -> MaskShapes:
    """The shapes of masks, from their values in a record; a text is of ASCII characters.

    Raises OverflowError for a count beyond int64, and what `number_lists` raises for a polygon.
    """
    forms = np.full(len(values), POLYGONS, np.uint8)
    polygons: list[msgspec.Raw] = []
    polygons_of = [0]
    # Of the masks in other forms, which are few or all.
    texts = [""] * len(values)
    counts: list[list[int]] = [[]] * len(values)
    drawn: list[bytes | None] = [None] * len(values)
    for index, value in enumerate(values):
        if isinstance(value, list):
            if value and isinstance(value[0], int):
                forms[index] = COUNTS
                counts[index] = value
            else:
                polygons += value  # type: ignore[arg-type]
        elif isinstance(value, str):
            forms[index] = TEXT
            texts[index] = value
        elif value is not None:
            forms[index] = DRAWN
            drawn[index] = value
        polygons_of.append(len(polygons))
    coordinates, polygon_offset = number_lists(polygons)
    return MaskShapes(
        forms=forms,
        text=np.frombuffer(bytearray("".join(texts), "ascii"), np.uint8),
        text_offset=offsets_of_lengths(texts),
        counts=np.array([*chain.from_iterable(counts)], np.int64),
        counts_offset=offsets_of_lengths(counts),
        coordinates=coordinates,
        polygon_offset=polygon_offset,
        polygons_of=np.array(polygons_of, np.int64),
        drawn=tuple(drawn),
    )


def offsets_of_lengths(pieces: Iterable[Sized]) -> np.ndarray:
    """int64 (n + 1,): where each of n pieces begins and ends in all of them together."""
    return np.array([*accumulate(map(len, pieces), initial=0)], np.int64)
