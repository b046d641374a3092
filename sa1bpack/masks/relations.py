"""The relations of the masks of one image; each is computed when it is first asked for.

::

    relations = sa1bpack.masks.relate(ds[i])
    relations.ious[3, 5], relations.parents[3], np.flatnonzero(relations.children[3])

They come from the exact runs, in pixels of the source image, or from bits, in cells of their grid.
On the grid of the source the two agree.

A mask is a sorted list of stretches of positions, line by line: its foreground runs. Lines are the
columns of the source for masks from exact runs, and the rows of the grid for masks from bits. The
common pixels of two masks are found in one pass over the stretches of both; passes begin and end
where both masks have stretches, and there is none for boxes that are apart. No full-size mask is
made.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sa1bpack.arguments import is_number
from sa1bpack.errors import OptionError
from sa1bpack.kernels import njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import check_array, check_image_runs, frozen
from sa1bpack.masks.raster import check_image
from sa1bpack.masks.rle import bounds
from sa1bpack.masks.select import ranked
from sa1bpack.wording import brief

# Defaults of `relate`.
SHARE = 0.9
NEIGHBORS = 8
LEVELS = ("large", "medium", "small")
_NONE = 2**63 - 1


class Relation(NamedTuple):
    """The kind of a relation.

    Attributes:
        dtype: name of its dtype.
        pairs: it has a value per pair of masks; otherwise per mask.
        columns: numbers per mask.
        none: the value of a mask without pixels, and in the padding of a batch.
    """

    dtype: str
    pairs: bool
    columns: int = 1
    none: int = 0


# Name of each relation, in `Relations` and as the key of a batch.
RELATIONS = {
    "intersections": Relation("int64", True),
    "ious": Relation("float64", True),
    "containments": Relation("float64", True),
    "touching": Relation("bool", True),
    "distances": Relation("float64", True),
    "children": Relation("bool", True),
    "centroids": Relation("float64", False, 2),
    "mask_boxes": Relation("int64", False, 4),
    "parents": Relation("int64", False, none=-1),
    "depths": Relation("int64", False),
    "levels": Relation("int64", False, none=-1),
}


class Derived:
    """The relations that follow from common pixels and centroids, of an image or of a batch.

    Arrays are those of numpy, or of torch on any device, and nothing waits for the device. "..." is
    nothing for an image, and (B,) for a batch. Subclasses define the attributes below, and what
    numpy and torch call by different names.
    """

    _arrays: Any = np  # or torch
    _share: float
    _numbers: Any  # int64 (m,): 0, 1, ...
    intersections: Any
    centroids: Any

    @staticmethod
    def _taken(values: Any, index: Any) -> Any:
        """The values (..., m) at an index (..., m)."""
        return values[index]

    @staticmethod
    def _as_float64(numbers: Any) -> Any:
        """Whole numbers as float64, where they are."""
        return numbers.astype(np.float64)

    @property
    def areas(self) -> Any:
        """int64 (m,): pixels or cells of each mask."""
        return self.intersections.diagonal(0, -2, -1)

    @cached_property
    def _exact(self) -> Any:
        return self._as_float64(self.intersections)

    @cached_property
    def ious(self) -> Any:
        """float64 (m, m): intersection over union."""
        union = self.areas[..., :, None] + self.areas[..., None, :] - self.intersections
        return self._exact / union.clip(1)

    @cached_property
    def containments(self) -> Any:
        """float64 (m, m): how much of mask i is in mask j."""
        return self._exact / self.areas.clip(1)[..., :, None]

    @cached_property
    def distances(self) -> Any:
        """float64 (m, m): between centroids."""
        offsets = self.centroids[..., :, None, :] - self.centroids[..., None, :, :]
        has_pixels = self.areas > 0
        lengths = self._arrays.sqrt((offsets * offsets).sum(-1))
        return lengths * (has_pixels[..., :, None] & has_pixels[..., None, :])

    @cached_property
    def _keys(self) -> Any:
        """int64 (..., m): one number per mask that sorts those of an image from small to large.

        No two are equal, so that a copy of a mask lies in the first of them, and there are no
        circles.
        """
        masks = len(self._numbers)
        return self.areas * masks + (masks - 1 - self._numbers)

    @cached_property
    def parents(self) -> Any:
        """int64 (m,): the smallest mask that contains each; -1 for none."""
        keys = self._keys
        masks = len(self._numbers)
        if masks == 0:
            return keys
        inside = self._exact >= self._share * self._exact.diagonal(0, -2, -1)[..., :, None]
        inside &= (keys[..., None, :] > keys[..., :, None]) & (self.areas > 0)[..., :, None]
        least = self._arrays.amin(self._arrays.where(inside, keys[..., None, :], _NONE), -1)
        return self._arrays.where(least < _NONE, masks - 1 - least % masks, -1)

    @cached_property
    def depths(self) -> Any:
        """int64 (m,): how many masks are above each in the hierarchy."""
        above = self.parents
        depth = (self.parents >= 0) * 1
        # Each round doubles how far up the counts reach; the longest chain has m masks.
        for _ in range(len(self._numbers).bit_length()):
            depth = depth + self._taken(depth, above.clip(0)) * (above >= 0)
            above = self._arrays.where(above >= 0, self._taken(above, above.clip(0)), -1)
        return depth

    @cached_property
    def children(self) -> Any:
        """bool (m, m): the parent of j is i."""
        return self.parents[..., None, :] == self._numbers[:, None]

    @cached_property
    def levels(self) -> Any:
        """int64 (m,): the third by area; 0 large, 1 medium, 2 small, -1 empty."""
        has_pixels = self.areas > 0
        keys = self._keys
        rank = ((keys[..., None, :] > keys[..., :, None]) & has_pixels[..., None, :]).sum(-1)
        return self._arrays.where(has_pixels, 3 * rank // has_pixels.sum(-1)[..., None].clip(1), -1)


class Relations(Derived):
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
    depths         int64    (m,)    how many masks it lies in: its parent, the parent of that, ...
    levels         int64    (m,)    the third of the image's masks that it is in by area: 0 large,
                                    1 medium, 2 small; -1 without pixels
    =============  =======  ======  ============================================================

    IoU and containment are those of pycocotools (`iou` without and with `iscrowd`). Touching is the
    relation of Simple Features (OGC 06-103r4, "touches") on pixels: with `neighbors=8`, pixels that
    share an edge or a corner are neighbours, with 4 those that share an edge (Rosenfeld and Pfaltz,
    "Sequential Operations in Digital Picture Processing", 1966). For masks that overlap or touch,
    use `(relations.intersections > 0) | relations.touching`.

    Examples:
        >>> left = np.array([[True, True, False, False]])
        >>> relations = sa1bpack.masks.relate_bits(np.stack([left, left[:, ::-1]]))
        >>> relations.touching.tolist()
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
            run_ends, run_offset: runs that `check_image_runs` returned, along columns or, with
                `by_rows`, along rows.
            length: pixels of such a column or row.
            share, neighbors: values that `check_rule` returned.
        """
        masks = len(run_offset) - 1
        self._length = length
        self._by_rows = by_rows
        self._share = share
        self._corners = neighbors == 8
        self._numbers = np.arange(masks)
        self._stretches = np.empty(((int(run_offset[-1] - run_offset[0]) + 1) // 2, 2), np.int64)
        self._offset = np.empty(masks + 1, np.int64)
        self._boxes = np.empty((masks, 4), np.int64)
        _foreground(run_ends, run_offset, self._length, self._stretches, self._offset, self._boxes)

    @cached_property
    def intersections(self) -> np.ndarray:
        """int64 (m, m): pixels or cells that both masks have."""
        out = np.empty((len(self._boxes),) * 2, np.int64)
        _intersect_runs(self._stretches, self._offset, self._boxes, out)
        return out

    @cached_property
    def touching(self) -> np.ndarray:
        """bool (m, m): neighbours without a common pixel."""
        out = np.empty(self.intersections.shape, np.bool_)
        _touch_runs(
            self._stretches,
            self._offset,
            self._boxes,
            self.intersections,
            self._length,
            self._corners,
            out,
        )
        return out

    @property
    def mask_boxes(self) -> np.ndarray:
        """int64 (m, 4): x0, y0, x1, y1 of the smallest boxes."""
        if self._by_rows:
            return self._boxes[:, [1, 0, 3, 2]]
        return self._boxes

    @cached_property
    def centroids(self) -> np.ndarray:
        """float64 (m, 2): x, y of the mean of the pixels' centres."""
        sums = np.empty((len(self._boxes), 2), np.int64)
        _sum_runs(self._stretches, self._offset, self._length, sums)
        means: np.ndarray = sums / (2 * np.maximum(self.areas, 1))[:, None]
        if self._by_rows:
            return means[:, ::-1]
        return means


def check_rule(share: Any, neighbors: Any) -> tuple[float, int]:
    """The share that makes a parent, and the number of neighbours.

    Raises OptionError unless the share is above 0 and at most 1, and there are 4 or 8 neighbours.
    """
    if not is_number(share) or not 0 < share <= 1:
        raise OptionError(
            f"share is {brief(share)}: choose a share of a mask's area, above 0 and at most 1"
        )
    if isinstance(neighbors, bool) or neighbors not in (4, 8):
        raise OptionError(f"neighbors is {brief(neighbors)}: choose 4 or 8")
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
        height, width: size of the source image in pixels.
        share: fraction of its area by which a mask lies in its parent; above 0, at most 1.
        neighbors: 8 or 4, number of neighbours of a pixel, which decides what touches.

    Raises:
        MaskError: the image is too large, or a mask's run ends decrease or do not end with its
            pixels.
        OptionError: an array has the wrong dtype, the offsets do not fit the runs, or `share` or
            `neighbors` cannot be used.

    Examples:
        >>> run_ends = np.array([0, 6, 12, 0, 3, 12], np.int32)
        >>> run_offset = np.array([0, 3, 6], np.int64)
        >>> relations = sa1bpack.masks.relate_runs(run_ends, run_offset, height=3, width=4)
        >>> relations.intersections, relations.parents
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
        >>> relations = sa1bpack.masks.relate_bits(masks)
        >>> float(relations.ious[0, 1]), relations.parents
        (0.5, array([-1,  0]))
    """
    share, neighbors = check_rule(share, neighbors)
    check_array("masks", masks, "uint8 or bool", ("m", "h", "w"), ", w / 8 in uint8")
    return Relations(*_runs_of_bits(masks), by_rows=True, share=share, neighbors=neighbors)


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
        >>> relations = sa1bpack.masks.relate(sample)
        >>> relations.ious.shape, relations.ious.dtype, relations.parents[:8]
        ((90, 90), dtype('float64'), array([12, 11, 64, -1, -1, 69, -1, 58]))
    """
    if "run_ends" in sample:
        height, width = (int(side) for side in sample["size"][:2])
        return relate_runs(
            sample["run_ends"],
            sample["run_offset"],
            height,
            width,
            share=share,
            neighbors=neighbors,
        )
    if "masks" not in sample:
        raise OptionError("the sample has neither `masks` nor `run_ends`")
    return relate_bits(sample["masks"], share=share, neighbors=neighbors)


def thirds_of(size: np.ndarray) -> np.ndarray:
    """int64 (m,): the third of an image's masks that each is in, by size; see LEVELS.

    The masks are ranked from large to small, the lower index first among equals. With m not
    divisible by 3, the thirds of larger masks have one more.
    """
    level = np.empty(len(size), np.int64)
    level[ranked(np.asarray(size))] = 3 * np.arange(len(size)) // max(len(size), 1)
    return level


# ---------------------------------------------------------------------------------------- kernels


@njit
def _find_changes(words: np.ndarray, run_ends: np.ndarray, run_offset: np.ndarray) -> int:
    """Write the cells at which masks, uint64 (m, n) with the lowest bit first, change.

    Returns how many there are; `run_ends` has as many of them as fit.
    """
    count = 0
    for m in range(len(words)):
        run_offset[m] = count
        before = np.uint64(0)  # the last cell of the word before
        for w in range(words.shape[1] + 1):
            word = np.uint64(0)
            if w < words.shape[1]:
                word = words[m, w]
            changes = word ^ (word << np.uint64(1) | before)
            before = word >> np.uint64(63)
            cell = np.int64(64 * w)
            while changes:
                step = np.uint64(1 if changes & np.uint64(0xFF) else 8)
                if changes & np.uint64(1):
                    if count < len(run_ends):
                        run_ends[count] = cell
                    count += 1
                changes >>= step
                cell += np.int64(step)
    run_offset[len(words)] = count
    return count


def _runs_of_bits(masks: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The run ends of masks along their rows, from bits uint8 (m, h, b) or bool (m, h, w).

    Returns int32 (r,) run ends, without background after the last foreground; int64 (m + 1,) their
    offsets; and the cells of a row, with those that fill the last byte.
    """
    bits = masks
    if masks.dtype == np.bool_:
        bits = np.packbits(masks, axis=-1, bitorder="little")
    count, height, width = bits.shape
    lines = np.ascontiguousarray(bits).reshape(count, height * width)
    if height * width % 8:
        lines = np.pad(lines, ((0, 0), (0, -height * width % 8)))
    words = frozen(lines.view("<u8").astype(np.uint64, copy=False))
    run_ends = np.empty(2 * count * height, np.int32)
    run_offset = np.empty(count + 1, np.int64)
    ends_count = _find_changes(words, run_ends, run_offset)
    if ends_count > len(run_ends):
        run_ends = np.empty(ends_count, np.int32)
        _find_changes(words, run_ends, run_offset)
    return frozen(run_ends), frozen(run_offset), 8 * width


@njit
def _foreground(
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    height: int,
    stretches: np.ndarray,
    offset: np.ndarray,
    boxes: np.ndarray,
) -> None:
    """Write the foreground stretches of every mask, without empty ones, and the box around each.

    Args:
        run_ends, run_offset: runs that `check_image_runs` has checked.
        height: height of the image in pixels.
        stretches: int64 (s, 2), out: first position, and one past the last; s is large enough.
        offset: int64 (m + 1,), out: where the stretches of each mask begin.
        boxes: int64 (m, 4), out: x0, y0, x1, y1, ends exclusive; zeros for an empty mask.
    """
    stretch = 0
    for m in range(len(run_offset) - 1):
        offset[m] = stretch
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        for k in range(1, len(ends), 2):
            if ends[k] > ends[k - 1]:
                stretches[stretch, 0] = ends[k - 1]
                stretches[stretch, 1] = ends[k]
                stretch += 1
        boxes[m, 0], boxes[m, 1], boxes[m, 2], boxes[m, 3] = bounds(ends, height)
    offset[len(run_offset) - 1] = stretch


@njit
def _common(
    stretches: np.ndarray,
    i: int,
    i_end: int,
    others: np.ndarray,
    j: int,
    j_end: int,
    shift: int,
) -> np.int64:
    """Count the common positions of stretches i..i_end and of others j..j_end, moved by `shift`."""
    total = np.int64(0)
    if i == i_end or j == j_end:
        return total
    first = max(stretches[i, 0], others[j, 0] + shift)
    i += np.searchsorted(stretches[i:i_end, 1], first, "right")
    j += np.searchsorted(others[j:j_end, 1], first - shift, "right")
    while i < i_end and j < j_end:
        a = stretches[i, 1]
        b = others[j, 1] + shift
        total += max(min(a, b) - max(stretches[i, 0], others[j, 0] + shift), 0)
        i += a <= b  # no branch: which of them ends first cannot be predicted
        j += b <= a
    return total


@njit
def _gap(a: np.ndarray, b: np.ndarray) -> np.int64:
    """The distance of two boxes, along the axis where they are farther; below 0: they overlap."""
    across = max(a[0], b[0]) - min(a[2], b[2])
    down = max(a[1], b[1]) - min(a[3], b[3])
    return np.int64(max(across, down))


@njit
def _intersect_runs(
    stretches: np.ndarray, offset: np.ndarray, boxes: np.ndarray, out: np.ndarray
) -> None:
    """Count the common pixels of all pairs of masks: int64 (m, m); areas on the diagonal."""
    for m in range(len(offset) - 1):
        area = np.int64(0)
        for k in range(offset[m], offset[m + 1]):
            area += stretches[k, 1] - stretches[k, 0]
        out[m, m] = area
        for n in range(m):
            total = np.int64(0)
            if _gap(boxes[m], boxes[n]) < 0:
                i = offset[m]
                i_end = offset[m + 1]
                j = offset[n]
                j_end = offset[n + 1]
                total = _common(stretches, i, i_end, stretches, j, j_end, 0)
            out[m, n] = out[n, m] = total


@njit
def _touch_runs(
    stretches: np.ndarray,
    offset: np.ndarray,
    boxes: np.ndarray,
    common: np.ndarray,
    height: int,
    corners: bool,
    out: np.ndarray,
) -> None:
    """Write which masks without a common pixel have pixels that are neighbours.

    Args:
        stretches, offset, boxes: as `_foreground` writes them.
        common: int64 (m, m), as `_intersect_runs` writes it.
        height: height of the image in pixels.
        corners: pixels that share only a corner are neighbours (8), or not (4).
        out: bool (m, m).
    """
    # Stretches and the pixels above and below them: at an edge of the image there are none, and
    # within a stretch that continues in the next column they are in the stretch.
    grown = np.empty_like(stretches)
    for k in range(offset[-1]):
        first = stretches[k, 0]
        end = stretches[k, 1]
        grown[k, 0] = first - (first % height != 0)
        grown[k, 1] = end + (end % height != 0)
    masks = len(offset) - 1
    for m in range(masks):
        out[m, m] = False
        for n in range(m):
            touching = False
            if common[m, n] == 0 and _gap(boxes[m], boxes[n]) <= 0:
                i = offset[m]
                i_end = offset[m + 1]
                j = offset[n]
                j_end = offset[n + 1]
                aside = stretches
                if corners:
                    aside = grown
                touching = bool(
                    _common(stretches, i, i_end, grown, j, j_end, 0) > 0
                    or _common(stretches, i, i_end, aside, j, j_end, height) > 0
                    or _common(stretches, i, i_end, aside, j, j_end, -height) > 0
                )
            out[m, n] = out[n, m] = touching


@njit
def _sum_runs(stretches: np.ndarray, offset: np.ndarray, height: int, sums: np.ndarray) -> None:
    """Write twice the sums of x and of y of the centres of every mask's pixels: int64 (m, 2).

    Pixel (x, y) has its centre at (x + 1/2, y + 1/2), so that twice a sum is a whole number, below
    2**49 for the largest image.
    """
    for m in range(len(offset) - 1):
        across = down = np.int64(0)
        for k in range(offset[m], offset[m + 1]):
            first = stretches[k, 0]
            end = stretches[k, 1]
            left = first // height
            right = (end - 1) // height
            if left == right:
                count = end - first
                top = first - left * height
                across += count * (2 * left + 1)
                down += count * (2 * top + count)
                continue
            top = first - left * height
            bottom = end - right * height
            across += (height - top) * (2 * left + 1) + bottom * (2 * right + 1)
            down += height * height - top * top + bottom * bottom
            # The columns between are complete: their 2x + 1 sum to a difference of squares.
            across += height * (right * right - (left + 1) * (left + 1))
            down += (right - left - 1) * height * height
        sums[m, 0] = across
        sums[m, 1] = down
