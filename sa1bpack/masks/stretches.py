"""The masks of an image as stretches of foreground, compared where their boxes overlap.

A mask is a sorted list of stretches of positions, line by line: its foreground runs. Lines are the
columns of the source for masks from exact runs, and the rows of the grid for masks from bits. The
common pixels of two masks are found in one pass over the stretches of both; passes begin and end
where both masks have stretches, and there is none for boxes that are apart. No full-size mask is
made.
"""

import numpy as np

from sa1bpack.kernels import njit
from sa1bpack.masks._arrays import frozen
from sa1bpack.masks.rle import bounds


@njit
def _find_changes(words, run_ends, run_offset):
    """Write the cells at which masks, uint64 (m, n) with the lowest bit first, change.

    Returns how many there are; `run_ends` has as many of them as fit.
    """
    found = 0
    for m in range(len(words)):
        run_offset[m] = found
        before = np.uint64(0)  # the last cell of the word before
        for w in range(words.shape[1] + 1):
            word = words[m, w] if w < words.shape[1] else np.uint64(0)
            changes = word ^ (word << np.uint64(1) | before)
            before = word >> np.uint64(63)
            cell = 64 * w
            while changes:
                step = np.uint64(1 if changes & np.uint64(0xFF) else 8)
                if changes & np.uint64(1):
                    if found < len(run_ends):
                        run_ends[found] = cell
                    found += 1
                changes >>= step
                cell += np.int64(step)
    run_offset[len(words)] = found
    return found


def runs_of_bits(masks: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The run ends of masks along their rows, from bits uint8 (m, h, b) or bool (m, h, w).

    Returns int32 (r,) run ends, without background after the last foreground; int64 (m + 1,) their
    offsets; and the cells of a row, with those that fill the last byte.
    """
    bits = np.packbits(masks, axis=-1, bitorder="little") if masks.dtype == np.bool_ else masks
    count, height, width = bits.shape
    lines = np.ascontiguousarray(bits).reshape(count, height * width)
    if height * width % 8:
        lines = np.pad(lines, ((0, 0), (0, -height * width % 8)))
    words = frozen(lines.view("<u8").astype(np.uint64, copy=False))
    run_ends, run_offset = np.empty(2 * count * height, np.int32), np.empty(count + 1, np.int64)
    if (found := _find_changes(words, run_ends, run_offset)) > len(run_ends):
        run_ends = np.empty(found, np.int32)
        _find_changes(words, run_ends, run_offset)
    return frozen(run_ends), frozen(run_offset), 8 * width


@njit
def foreground(run_ends, run_offset, height, stretches, offset, boxes):
    """Write the foreground stretches of every mask, without empty ones, and the box around each.

    Args:
        run_ends, run_offset: checked, as in `check_image_runs`.
        stretches: int64 (s, 2), out: first position, and one past the last; s is large enough.
        offset: int64 (m + 1,), out: where the stretches of each mask begin.
        boxes: int64 (m, 4), out: x0, y0, x1, y1, ends exclusive; zeros for an empty mask.
    """
    found = 0
    for m in range(len(run_offset) - 1):
        offset[m] = found
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        for k in range(1, len(ends), 2):
            if ends[k] > ends[k - 1]:
                stretches[found, 0], stretches[found, 1] = ends[k - 1], ends[k]
                found += 1
        boxes[m, 0], boxes[m, 1], boxes[m, 2], boxes[m, 3] = bounds(ends, height)
    offset[len(run_offset) - 1] = found


@njit
def _first_after(stretches, low, high, position):
    """The first stretch of low..high that ends after a position."""
    while low < high:
        middle = (low + high) >> 1
        if stretches[middle, 1] > position:
            high = middle
        else:
            low = middle + 1
    return low


@njit
def _common(stretches, i, i_end, j, j_end):
    """Count the common positions of stretches i..i_end and j..j_end."""
    total = np.int64(0)
    while i < i_end and j < j_end:
        a, b = stretches[i, 1], stretches[j, 1]
        total += max(min(a, b) - max(stretches[i, 0], stretches[j, 0]), 0)
        i += a <= b  # no branch: which of them ends first cannot be predicted
        j += b <= a
    return total


@njit
def intersect_runs(stretches, offset, boxes, out):
    """Count the common pixels of all pairs of masks: int64 (m, m); areas on the diagonal."""
    masks = len(offset) - 1
    for m in range(masks):
        area = np.int64(0)
        for k in range(offset[m], offset[m + 1]):
            area += stretches[k, 1] - stretches[k, 0]
        out[m, m] = area
        for n in range(m):
            total = np.int64(0)
            if max(boxes[m, 0], boxes[n, 0]) < min(boxes[m, 2], boxes[n, 2]) and max(
                boxes[m, 1], boxes[n, 1]
            ) < min(boxes[m, 3], boxes[n, 3]):
                i, i_end, j, j_end = offset[m], offset[m + 1], offset[n], offset[n + 1]
                first = max(stretches[i, 0], stretches[j, 0])
                i = _first_after(stretches, i, i_end, first)
                j = _first_after(stretches, j, j_end, first)
                total = _common(stretches, i, i_end, j, j_end)
            out[m, n] = out[n, m] = total


@njit
def _meet(stretches, i, i_end, grown, j, j_end, shift):
    """Whether a stretch i..i_end and one of `grown` j..j_end, moved by `shift`, have a position
    in common."""
    if i == i_end or j == j_end:
        return False
    first = max(stretches[i, 0], grown[j, 0] + shift)
    i = _first_after(stretches, i, i_end, first)
    j = _first_after(grown, j, j_end, first - shift)
    while i < i_end and j < j_end:
        a, b = stretches[i, 1], grown[j, 1] + shift
        if min(a, b) > max(stretches[i, 0], grown[j, 0] + shift):
            return True
        i += a <= b
        j += b <= a
    return False


@njit
def touch_runs(stretches, offset, boxes, common, height, corners, out):
    """Whether masks without a common pixel have pixels that are neighbours: bool (m, m).

    Args:
        stretches, offset, boxes: of `foreground`.
        common: int64 (m, m), of `intersect_runs`.
        height: of the image.
        corners: whether pixels that share only a corner are neighbours (8), or not (4).
        out: bool (m, m).
    """
    # Stretches and the pixels above and below them: at an edge of the image there are none, and
    # within a stretch that continues in the next column they are in the stretch.
    grown = np.empty_like(stretches)
    for k in range(offset[-1]):
        first, end = stretches[k, 0], stretches[k, 1]
        grown[k, 0] = first - (first % height != 0)
        grown[k, 1] = end + (end % height != 0)
    masks = len(offset) - 1
    for m in range(masks):
        out[m, m] = False
        for n in range(m):
            touching = False
            if (
                common[m, n] == 0
                and max(boxes[m, 0], boxes[n, 0]) <= min(boxes[m, 2], boxes[n, 2])
                and max(boxes[m, 1], boxes[n, 1]) <= min(boxes[m, 3], boxes[n, 3])
            ):
                i, i_end, j, j_end = offset[m], offset[m + 1], offset[n], offset[n + 1]
                aside = grown if corners else stretches
                touching = (
                    _meet(stretches, i, i_end, grown, j, j_end, 0)
                    or _meet(stretches, i, i_end, aside, j, j_end, height)
                    or _meet(stretches, i, i_end, aside, j, j_end, -height)
                )
            out[m, n] = out[n, m] = touching


@njit
def sum_runs(stretches, offset, height, sums):
    """Write twice the sums of x and of y of the centres of every mask's pixels: int64 (m, 2).

    Pixel (x, y) has its centre at (x + 1/2, y + 1/2), so that twice a sum is a whole number, below
    2**49 for the largest image.
    """
    for m in range(len(offset) - 1):
        across = down = np.int64(0)
        for k in range(offset[m], offset[m + 1]):
            first, end = stretches[k, 0], stretches[k, 1]
            left, right = first // height, (end - 1) // height
            if left == right:
                count, top = end - first, first - left * height
                across += count * (2 * left + 1)
                down += count * (2 * top + count)
                continue
            top, bottom = first - left * height, end - right * height
            across += (height - top) * (2 * left + 1) + bottom * (2 * right + 1)
            down += height * height - top * top + bottom * bottom
            # The columns between are complete: their 2x + 1 sum to a difference of squares.
            across += height * (right * right - (left + 1) * (left + 1))
            down += (right - left - 1) * height * height
        sums[m, 0], sums[m, 1] = across, down
