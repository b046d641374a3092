"""The relations of the masks of one image; each is computed when it is first asked for.

::

    found = sa1bpack.masks.relate(ds[i])
    found.ious[3, 5], found.parents[3], np.flatnonzero(found.children[3])

They come from the exact runs, in pixels of the source image, or from bits, in cells of their grid.
On the grid of the source the two agree.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.arguments import checks_options, is_number
from sa1bpack.errors import OptionError
from sa1bpack.masks._arrays import check_array, check_image_runs
from sa1bpack.masks.raster import check_image
from sa1bpack.masks.stretches import (
    foreground,
    intersect_runs,
    runs_of_bits,
    sum_runs,
    touch_runs,
)

SHARE, NEIGHBORS = 0.9, 8  # the defaults
LEVELS = ("large", "medium", "small")
_NONE = 2**63 - 1


class Relation(NamedTuple):
    """What one relation is: its dtype, whether it is one of pairs, values per mask, and what it is
    for a mask without pixels, and in the padding of a batch."""

    dtype: np.dtype
    pairs: bool
    columns: int = 1
    none: int = 0


_INT64, _FLOAT64, _BOOL = np.dtype("i8"), np.dtype("f8"), np.dtype("?")

# Name of each relation, in `Relations` and as the key of a batch.
RELATIONS = {
    "intersections": Relation(_INT64, True),
    "ious": Relation(_FLOAT64, True),
    "containments": Relation(_FLOAT64, True),
    "touching": Relation(_BOOL, True),
    "distances": Relation(_FLOAT64, True),
    "children": Relation(_BOOL, True),
    "centroids": Relation(_FLOAT64, False, 2),
    "mask_boxes": Relation(_INT64, False, 4),
    "parents": Relation(_INT64, False, none=-1),
    "depths": Relation(_INT64, False),
    "levels": Relation(_INT64, False, none=-1),
}


class Relations:
    """Relations of the m masks of one image. Units are pixels of the source or cells of a grid.

    =============  =======  ======  ============================================================
    intersections  int64    (m, m)  pixels that both masks have; their areas on the diagonal
    ious           float64  (m, m)  intersection over union; 0 if neither has pixels
    containments   float64  (m, m)  [i, j]: how much of i is in j, intersection over the area of
                                    i; 0 if i has no pixels
    touching       bool     (m, m)  no pixel in common, but pixels that are neighbours
    distances      float64  (m, m)  between centroids; 0 if one of them has no pixels
    children       bool     (m, m)  [i, j]: the parent of j is i
    centroids      float64  (m, 2)  x, y of the mean of the pixels' centres, with pixel edges at
                                    whole numbers; 0, 0 without pixels
    mask_boxes     int64    (m, 4)  x0, y0, x1, y1: edges of the smallest box; zeros without pixels
    parents        int64    (m,)    the smallest mask that contains at least `share` of the mask's
                                    area; -1 for none. A parent is larger than its children; of
                                    masks with the same area, the lower index is the larger one
    depths         int64    (m,)    how many parents, their parents, ... the mask has
    levels         int64    (m,)    the third of the image's masks that it is in by area: 0 large,
                                    1 medium, 2 small; -1 without pixels
    =============  =======  ======  ============================================================

    IoU and containment are those of pycocotools (`iou` without and with `iscrowd`). Touching is the
    relation of Simple Features (OGC 06-103r4, "touches") on pixels: with `neighbors=8`, pixels that
    share an edge or a corner are neighbours, with 4 those that share an edge (Rosenfeld and Pfaltz,
    "Sequential Operations in Digital Picture Processing", 1966). For masks that overlap or touch,
    use `(found.intersections > 0) | found.touching`.

    Examples:
        >>> left = np.array([[True, True, False, False]])
        >>> found = sa1bpack.masks.relate_bits(np.stack([left, left[:, ::-1]]))
        >>> found.touching.tolist()
        [[False, True], [True, False]]
    """

    def __init__(
        self,
        run_ends: np.ndarray,
        run_offset: np.ndarray,
        length: int,
        *,
        by_rows: bool,
        share: float,
        neighbors: int,
    ):
        """Made by `relate`, `relate_runs` and `relate_bits`.

        Args:
            run_ends, run_offset: of `check_image_runs`, along columns or, `by_rows`, along rows.
            length: pixels of such a line.
            share, neighbors: of `check_rule`.
        """
        masks = len(run_offset) - 1
        self._length, self._by_rows = np.int64(length), by_rows
        self._share, self._corners = share, neighbors == 8
        self._stretches = np.empty(((int(run_offset[-1] - run_offset[0]) + 1) // 2, 2), np.int64)
        self._offset, self._boxes = np.empty(masks + 1, np.int64), np.empty((masks, 4), np.int64)
        foreground(run_ends, run_offset, self._length, self._stretches, self._offset, self._boxes)

    @cached_property
    def intersections(self) -> np.ndarray:
        """int64 (m, m): pixels or cells that both masks have."""
        out = np.empty((len(self._boxes),) * 2, np.int64)
        intersect_runs(self._stretches, self._offset, self._boxes, out)
        return out

    @property
    def areas(self) -> np.ndarray:
        """int64 (m,): pixels or cells of each mask."""
        return self.intersections.diagonal()

    @cached_property
    def ious(self) -> np.ndarray:
        """float64 (m, m): intersection over union."""
        union = self.areas[:, None] + self.areas - self.intersections
        return self.intersections / np.maximum(union, 1)

    @cached_property
    def containments(self) -> np.ndarray:
        """float64 (m, m): how much of mask i is in mask j."""
        return self.intersections / np.maximum(self.areas, 1)[:, None]

    @cached_property
    def touching(self) -> np.ndarray:
        """bool (m, m): neighbours without a common pixel."""
        out, shapes = np.empty(self.intersections.shape, np.bool_), (self._stretches, self._offset)
        touch_runs(*shapes, self._boxes, self.intersections, self._length, self._corners, out)
        return out

    @property
    def mask_boxes(self) -> np.ndarray:
        """int64 (m, 4): x0, y0, x1, y1 of the smallest boxes."""
        return self._boxes[:, [1, 0, 3, 2]] if self._by_rows else self._boxes

    @cached_property
    def centroids(self) -> np.ndarray:
        """float64 (m, 2): x, y of the mean of the pixels' centres."""
        sums = np.empty((len(self._boxes), 2), np.int64)
        sum_runs(self._stretches, self._offset, self._length, sums)
        means = sums / (2 * np.maximum(self.areas, 1))[:, None]
        return means[:, ::-1] if self._by_rows else means

    @cached_property
    def distances(self) -> np.ndarray:
        """float64 (m, m): between centroids."""
        steps = self.centroids[:, None] - self.centroids
        some = self.areas > 0
        return np.sqrt(np.square(steps).sum(2)) * (some[:, None] & some)

    @cached_property
    def parents(self) -> np.ndarray:
        """int64 (m,): the smallest mask that contains each; -1 for none."""
        common, area, masks = self.intersections, self.areas, len(self._boxes)
        # One number per mask that sorts them from small to large: no two are equal, so that a copy
        # of a mask lies in the first of them, and there are no circles.
        key = area * masks + (masks - 1 - np.arange(masks))
        inside = common >= self._share * area[:, None]
        inside &= (key > key[:, None]) & (area > 0)[:, None]
        least = np.where(inside, key, _NONE).min(axis=1, initial=_NONE)
        return np.where(least < _NONE, masks - 1 - least % max(masks, 1), -1)

    @cached_property
    def depths(self) -> np.ndarray:
        """int64 (m,): how many masks are above each in the hierarchy."""
        above, depth = self.parents, (self.parents >= 0).astype(np.int64)
        # Each round doubles how far up the counts reach.
        while (above >= 0).any():
            depth = depth + np.where(above >= 0, depth[above], 0)
            above = np.where(above >= 0, above[above], -1)
        return depth

    @cached_property
    def children(self) -> np.ndarray:
        """bool (m, m): the parent of j is i."""
        return self.parents == np.arange(len(self.parents))[:, None]

    @cached_property
    def levels(self) -> np.ndarray:
        """int64 (m,): the third by area; 0 large, 1 medium, 2 small, -1 empty."""
        some, level = self.areas > 0, np.full(len(self.areas), -1)
        level[some] = thirds_of(self.areas[some])
        return level


def check_rule(share: Any, neighbors: Any) -> tuple[float, int]:
    """The share that makes a parent, and the number of neighbours.

    Raises OptionError unless the share is above 0 and at most 1, and there are 4 or 8 neighbours.
    """
    if not is_number(share) or not 0 < share <= 1:
        raise OptionError(
            f"share is {share!r}: choose a share of a mask's area, above 0 and at most 1"
        )
    if isinstance(neighbors, bool) or neighbors not in (4, 8):
        raise OptionError(f"neighbors is {neighbors!r}: choose 4 or 8")
    return float(share), int(neighbors)


@checks_options
def relate_runs(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    width: int,
    *,
    share: float = SHARE,
    neighbors: int = NEIGHBORS,
) -> Relations:
    """The relations of an image's masks, from their exact runs, in pixels of the source.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (m + 1,).
        height, width: of the source image, in pixels.
        share: of its area, by which a mask lies in its parent; above 0, at most 1.
        neighbors: 8 or 4, which pixels touch.

    Raises:
        MaskError: the image is too large, or a mask's run ends decrease or do not end with its
            pixels.
        OptionError: an array has the wrong dtype, the offsets do not fit the runs, or `share` or
            `neighbors` cannot be used.

    Examples:
        >>> run_ends = np.array([0, 6, 12, 0, 3, 12], np.int32)
        >>> run_offset = np.array([0, 3, 6], np.int64)
        >>> found = sa1bpack.masks.relate_runs(run_ends, run_offset, height=3, width=4)
        >>> found.intersections, found.parents
        (array([[6, 3],
               [3, 3]]), array([-1,  0]))
    """
    share, neighbors = check_rule(share, neighbors)
    height, width = check_image(height, width)
    run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
    return Relations(run_ends, run_offset, height, by_rows=False, share=share, neighbors=neighbors)


@checks_options
def relate_bits(
    masks: np.ndarray, *, share: float = SHARE, neighbors: int = NEIGHBORS
) -> Relations:
    """The relations of an image's masks, from a grid, in cells.

    Args:
        masks: uint8 (m, h, w / 8), packed bits, or bool (m, h, w).
        share, neighbors: as in `relate_runs`.

    Raises:
        OptionError: an argument cannot be used.

    Examples:
        >>> masks = np.zeros((2, 8, 8), bool)
        >>> masks[0, :4], masks[1, :2] = True, True
        >>> found = sa1bpack.masks.relate_bits(masks)
        >>> float(found.ious[0, 1]), found.parents
        (0.5, array([-1,  0]))
    """
    share, neighbors = check_rule(share, neighbors)
    if not isinstance(masks, np.ndarray) or masks.dtype != np.bool_:
        check_array("masks", masks, "uint8", ("m", "h", "w / 8"), ", or bool (m, h, w)")
    elif masks.ndim != 3:
        check_array("masks", masks, "bool", ("m", "h", "w"))
    return Relations(*runs_of_bits(masks), by_rows=True, share=share, neighbors=neighbors)


@checks_options
def relate(
    sample: Mapping[str, Any], *, share: float = SHARE, neighbors: int = NEIGHBORS
) -> Relations:
    """The relations of the masks of a sample, as a dataset yields it.

    From the exact runs if the sample has them (`sa1bpack.open(pack, mask_format="runs")`),
    otherwise from its masks, bits or bool.

    Args:
        sample: a dict with `run_ends`, `run_offset` and `size`, or with `masks`.
        share, neighbors: as in `relate_runs`.

    Raises:
        MaskError, OptionError: as `relate_runs` and `relate_bits`; or there are no masks.

    Examples:
        >>> sample = sa1bpack.open("packed", mask_format="runs")[0]
        >>> found = sa1bpack.masks.relate(sample)
        >>> found.ious.shape, found.ious.dtype, found.parents[:8]
        ((35, 35), dtype('float64'), array([-1, -1, 19, -1, 19, -1, -1, -1]))
    """
    if "run_ends" in sample:
        height, width = (int(side) for side in sample["size"][:2])
        runs = sample["run_ends"], sample["run_offset"]
        return relate_runs(*runs, height, width, share=share, neighbors=neighbors)
    if "masks" not in sample:
        raise OptionError("the sample has neither `masks` nor `run_ends`")
    return relate_bits(sample["masks"], share=share, neighbors=neighbors)


def thirds_of(size: np.ndarray) -> np.ndarray:
    """int64 (m,): the third of an image's masks that each is in, by size; see LEVELS.

    The masks are ranked from large to small, the lower index first among equals. With m not
    divisible by 3, the thirds of larger masks have one more.
    """
    size = np.asarray(size)
    # Reversed twice: negating would overflow at the lowest integer.
    order = len(size) - 1 - np.argsort(size[::-1], kind="stable")[::-1]
    level = np.empty(len(size), np.int64)
    level[order] = 3 * np.arange(len(size)) // max(len(size), 1)
    return level
