"""Which mask lies in which: parents, depths and levels, from intersections and areas alone."""

import numpy as np

LEVELS = ("large", "medium", "small")
_NONE = 2**63 - 1


def parents_of(common: np.ndarray, share: float) -> np.ndarray:
    """int64 (m,): the smallest mask that contains each mask by `share` of its area; -1 for none.

    common  int64 (m, m): intersections, areas on the diagonal

    A mask lies only in a larger one; of masks with the same area, the one with the lower index
    counts as the larger. So a copy of a mask lies in the first of them, and there are no circles. A
    mask without pixels lies in none.
    """
    area, masks = common.diagonal(), len(common)
    # One number per mask that sorts them from small to large.
    key = area * masks + (masks - 1 - np.arange(masks))
    inside = (common >= share * area[:, None]) & (key > key[:, None]) & (area > 0)[:, None]
    least = np.where(inside, key, _NONE).min(axis=1, initial=_NONE)
    return np.where(least < _NONE, masks - 1 - least % max(masks, 1), -1)


def depths_of(parents: np.ndarray) -> np.ndarray:
    """int64 (m,): how many masks each mask lies in, counted along its parents; 0 without parent."""
    above, depth = parents, (parents >= 0).astype(np.int64)
    # Each round doubles how far up the counts reach.
    while (above >= 0).any():
        depth = depth + np.where(above >= 0, depth[above], 0)
        above = np.where(above >= 0, above[above], -1)
    return depth


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


def levels_of(area: np.ndarray) -> np.ndarray:
    """int64 (m,): `thirds_of` the masks that have pixels; -1 for those that have none."""
    level = np.full(len(area), -1)
    level[area > 0] = thirds_of(area[area > 0])
    return level
