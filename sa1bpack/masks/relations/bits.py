"""Relations from packed bits, by population count, where the boxes of two masks overlap.

A row of a mask is `words` uint64, little-endian: cell x is bit x mod 64 of word x div 64. Cells
beyond the grid are 0.
"""

import sys

import numpy as np

from sa1bpack.kernels import intrinsic, njit, types


@intrinsic
def _popcount(context, word):
    """The set bits of a uint64: one instruction, where llvmlite has the operation and numba not."""

    def build(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), build


def as_words(masks: np.ndarray) -> np.ndarray:
    """uint64 (m, h, words) of bits, uint8 (m, h, b), or of bool (m, h, w). A view if possible."""
    bits = masks
    if masks.dtype == np.bool_:
        bits = np.packbits(masks, axis=-1, bitorder="little")
    count, height, nbytes = bits.shape
    if nbytes % 8 or not bits.flags.c_contiguous:
        padded = np.zeros((count, height, -(-nbytes // 8) * 8), np.uint8)
        padded[..., :nbytes] = bits
        bits = padded
    words = bits.view("<u8")
    words = words if sys.byteorder == "little" else words.astype(np.uint64)
    words.flags.writeable = False
    return words


@njit
def word_boxes(words, boxes):
    """Write the rows and words in which masks have bits: int64 (m, 4) w0, y0, w1, y1; ends
    exclusive, zeros for an empty mask."""
    masks, height, width = words.shape
    found = np.empty(width, np.uint64)
    for m in range(masks):
        top, bottom = height, 0
        found[:] = 0
        for y in range(height):
            some = np.uint64(0)
            for w in range(width):
                found[w] |= words[m, y, w]
                some |= words[m, y, w]
            if some:
                top, bottom = min(top, y), y + 1
        boxes[m] = 0
        if bottom:
            boxes[m, 0], boxes[m, 1], boxes[m, 2], boxes[m, 3] = width, top, 0, bottom
            for w in range(width):
                if found[w]:
                    boxes[m, 0], boxes[m, 2] = min(boxes[m, 0], w), w + 1


@njit
def _common(first, second, left, top, right, bottom):
    """Count the common bits of two masks (h, words) within a box of words."""
    total = np.uint64(0)
    if right - left == first.shape[1]:  # one stretch of memory
        a = first[top:bottom].reshape(-1)
        b = second[top:bottom].reshape(-1)
        for k in range(len(a)):
            total += _popcount(a[k] & b[k])
        return np.int64(total)
    for y in range(top, bottom):
        for w in range(left, right):
            total += _popcount(first[y, w] & second[y, w])
    return np.int64(total)


@njit
def intersect_bits(words, boxes, out):
    """Count the common cells of all pairs of masks: int64 (m, m); areas on the diagonal."""
    for m in range(len(words)):
        for n in range(m + 1):
            left, right = max(boxes[m, 0], boxes[n, 0]), min(boxes[m, 2], boxes[n, 2])
            top, bottom = max(boxes[m, 1], boxes[n, 1]), min(boxes[m, 3], boxes[n, 3])
            total = np.int64(0)
            if left < right and top < bottom:
                total = _common(words[m], words[n], left, top, right, bottom)
            out[m, n] = out[n, m] = total


@njit
def _grow(mask, corners, out):
    """Write a mask and the neighbours of its cells, as far as they are on the words' grid."""
    height, width = mask.shape
    beside = np.zeros((height + 2, width), np.uint64)
    for y in range(height):
        for w in range(width):
            word = mask[y, w]
            wide = word | (word << np.uint64(1)) | (word >> np.uint64(1))
            if w:
                wide |= mask[y, w - 1] >> np.uint64(63)
            if w + 1 < width:
                wide |= mask[y, w + 1] << np.uint64(63)
            beside[y + 1, w] = wide
    for y in range(height):
        for w in range(width):
            if corners:
                out[y, w] = beside[y, w] | beside[y + 1, w] | beside[y + 2, w]
                continue
            out[y, w] = beside[y + 1, w]
            if y:
                out[y, w] |= mask[y - 1, w]
            if y + 1 < height:
                out[y, w] |= mask[y + 1, w]


@njit
def touch_bits(words, boxes, common, corners, out):
    """Whether masks without a common cell have cells that are neighbours: bool (m, m).

    common, corners  as in `runs.touch_runs`
    """
    masks, height, width = words.shape
    grown = np.empty((height, width), np.uint64)
    for m in range(masks):
        out[m, m] = False
        _grow(words[m], corners, grown)
        # Neighbours may be one row, or one word, outside the box.
        left, right = boxes[m, 0] - 1, boxes[m, 2] + 1
        top, bottom = boxes[m, 1] - 1, boxes[m, 3] + 1
        for n in range(m):
            touching = False
            if common[m, n] == 0 and boxes[m, 3] and boxes[n, 3]:
                for y in range(max(top, boxes[n, 1]), min(bottom, boxes[n, 3])):
                    some = np.uint64(0)
                    for w in range(max(left, boxes[n, 0]), min(right, boxes[n, 2])):
                        some |= grown[y, w] & words[n, y, w]
                    if some:
                        touching = True
                        break
            out[m, n] = out[n, m] = touching


# For each bit of a cell's number in its word: the cells whose number has that bit.
_NUMBERS = np.array([sum(1 << x for x in range(64) if x >> bit & 1) for bit in range(6)], np.uint64)


@njit
def measure_bits(words, numbers, sums, boxes):
    """Write where the cells of every mask are.

    Args:
        words: uint64 (m, h, w).
        numbers: `_NUMBERS`.
        sums: int64 (m, 2), out: as in `runs.sum_runs`.
        boxes: int64 (m, 4), out: x0, y0, x1, y1 in cells, ends exclusive; zeros for an empty mask.
    """
    masks, height, width = words.shape
    found = np.empty(width, np.uint64)
    for m in range(masks):
        across = down = total = np.int64(0)
        top, bottom = height, 0
        found[:] = 0
        for y in range(height):
            in_row = np.int64(0)
            for w in range(width):
                word = words[m, y, w]
                if word:
                    found[w] |= word
                    count = np.int64(_popcount(word))
                    in_row += count
                    across += count * 64 * w
                    for bit in range(6):
                        across += np.int64(_popcount(word & numbers[bit])) << bit
            if in_row:
                top, bottom = min(top, y), y + 1
                down += in_row * (2 * y + 1)
                total += in_row
        sums[m, 0], sums[m, 1] = 2 * across + total, down
        boxes[m] = 0
        if total:
            boxes[m, 1], boxes[m, 3] = top, bottom
            left = 0
            while not found[left >> 6] >> np.uint64(left & 63) & np.uint64(1):
                left += 1
            right = 64 * width
            while not found[(right - 1) >> 6] >> np.uint64((right - 1) & 63) & np.uint64(1):
                right -= 1
            boxes[m, 0], boxes[m, 2] = left, right


def measured(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`measure_bits`: int64 (m, 2) sums, and int64 (m, 4) boxes."""
    sums, boxes = np.empty((len(words), 2), np.int64), np.empty((len(words), 4), np.int64)
    measure_bits(words, _NUMBERS, sums, boxes)
    return sums, boxes
