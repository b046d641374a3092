"""The shapes of masks that are not all COCO's text, as records have them."""

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np

# Forms of a shape, as numbers in `MaskShapes.forms`.
TEXT = 0
COUNTS = 1
POLYGONS = 2
DRAWN = 3

# Compressed counts; their lists; polygons, a list of x, y, x, y, ... for each; an image; or none.
Segmentation = str | list[int] | list[list[float]] | bytes | None


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


def _is_counts(value: Segmentation) -> bool:
    """True for a list of counts; an empty list has no polygon."""
    return isinstance(value, list) and bool(value) and not isinstance(value[0], list)


def shapes_of(values: Sequence[Segmentation]) -> MaskShapes:
    """The shapes of masks, from their values in a record; a text is of ASCII characters.

    Raises OverflowError for a count beyond int64.
    """
    texts = [value if isinstance(value, str) else "" for value in values]
    counts: list[list[int]] = []
    polygons: list[list[float]] = []
    polygons_of = [0]
    forms = []
    for value in values:
        of_mask: list[int] = []
        form = POLYGONS
        if isinstance(value, str):
            form = TEXT
        elif isinstance(value, bytes):
            form = DRAWN
        elif _is_counts(value):
            form = COUNTS
            of_mask = value  # type: ignore[assignment]  # as checked
        elif value is not None:
            polygons += value  # type: ignore[arg-type]
        forms.append(form)
        counts.append(of_mask)
        polygons_of.append(len(polygons))
    return MaskShapes(
        forms=np.array(forms, np.uint8),
        text=np.frombuffer(bytearray("".join(texts), "ascii"), np.uint8),
        text_offset=offsets_of_lengths(texts),
        counts=np.array([*chain.from_iterable(counts)], np.int64),
        counts_offset=offsets_of_lengths(counts),
        coordinates=np.array([*chain.from_iterable(polygons)], np.float64),
        polygon_offset=offsets_of_lengths(polygons),
        polygons_of=np.array(polygons_of, np.int64),
        drawn=tuple(value if isinstance(value, bytes) else None for value in values),
    )


def offsets_of_lengths(pieces: Iterable[Sized]) -> np.ndarray:
    """int64 (n + 1,): where each of n pieces begins and ends in all of them together."""
    return np.array([*accumulate(map(len, pieces), initial=0)], np.int64)
