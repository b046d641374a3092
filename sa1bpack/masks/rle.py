"""COCO's compressed run-length text to run ends, and back.

A mask in SA-1B is a COCO "counts" string. It lists the lengths of the runs of a mask's pixels in
column-major order (down the first column, then the next), background first; if a mask starts with
foreground, its first count is 0. From the fourth count on, the difference from the count two before
is written. Each number is a little-endian signed varint: groups of 5 bits; bit 5 of a group (0x20)
says that another one follows, bit 4 of the last one is the sign; a group g is the character
chr(48 + g). (pycocotools, maskApi.c, rleToString and rleFrString.)

Here a mask is represented by its run ends: the cumulative sums of its counts, int32, the last one
equal to the number of pixels. The runs of n masks are concatenated in one array, with an offset
array (CSR): mask m is ``run_ends[run_offset[m] : run_offset[m + 1]]``. Ends at even positions of a
mask close background runs, ends at odd positions foreground runs. Runs of length 0 are kept, so
that the text can be written again byte for byte.
"""

import numpy as np

from sa1bpack.arguments import whole_number
from sa1bpack.errors import MaskError
from sa1bpack.kernels import njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import (
    MAX_RUN_END,
    check_image_runs,
    checked_pieces,
    checked_runs,
    frozen,
    mask_error,
)

MAX_GROUPS = 12  # 60 bits, which cannot overflow int64
MOST_GROUPS = 7  # that are written: a difference of two counts has at most 33 bits and a sign


@njit
def _parse_text(
    text: np.ndarray,
    text_offset: np.ndarray,
    pixels: np.ndarray,
    run_ends: np.ndarray,
    run_offset: np.ndarray,
    noncanonical: np.ndarray,
) -> tuple[int, np.int64]:
    """Write the run ends of all texts, and where those of each begin and end.

    Returns the first mask that is refused, and the pixels that its runs cover, -1 if its text is
    damaged; or -1, -1 if there is none.
    """
    run = run_offset[0] = np.int64(0)
    for m in range(len(text_offset) - 1):
        groups = text[text_offset[m] : text_offset[m + 1]]
        if len(groups) == 0 or (groups[-1] - 48) & 32:  # so that the last number ends
            return m, np.int64(-1)
        p = np.uint64(0)  # unsigned: numba tests signed indices for their sign
        count = np.uint64(len(groups))
        end = before = before2 = np.int64(0)  # of the last run; its count, and the one before
        value = outside = redundant = np.int64(0)
        first = run
        most = pixels[m]
        while p < count:
            group = np.int64(groups[p]) - 48
            p += np.uint64(1)
            outside |= group
            value = group & 31
            bits = 5
            while group & 32:
                last = group
                group = np.int64(groups[p]) - 48
                p += np.uint64(1)
                outside |= group
                value |= (group & 31) << bits
                bits += 5
                if bits > 5 * MAX_GROUPS:
                    return m, np.int64(-1)
                # A last group that only repeats the sign bit of the group before it.
                redundant |= (group == 0 and last & 16 == 0) or (group == 31 and last & 16 != 0)
            value = (value << (64 - bits)) >> (64 - bits)  # sign extension
            if run - first > 2:
                value += before2
            before2 = before
            before = value
            end += value
            # Nothing overflows: a number is below 2**60 and is added to a value in 0..pixels.
            if value < 0 or end > most:
                break
            run_ends[run] = end
            run += 1
        if outside & ~63 or value < 0 or end != most:
            if outside & ~63 or value < 0:
                end = np.int64(-1)
            return m, end
        noncanonical[m] = redundant != 0
        run_offset[m + 1] = run
    return -1, np.int64(-1)


@checks_options
def parse_counts(
    text: np.ndarray, text_offset: np.ndarray, pixels: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parse the compressed counts of n masks of one image.

    Args:
        text: uint8 (t,), the concatenated counts strings as ASCII bytes.
        text_offset: int64 (n + 1,), mask m's string is ``text[text_offset[m]:text_offset[m + 1]]``.
        pixels: height x width of the image, 1 to 2**31 - 1.

    Returns:
        run_ends: int32 (r,), column-major pixel positions where runs end, background first.
        run_offset: int64 (n + 1,), mask i's ends are ``run_ends[run_offset[i]:run_offset[i + 1]]``.
        noncanonical: bool (n,), True if the text is longer than COCO's encoder writes it for the
            same counts, so that `encode_counts` would not return the same bytes.

    Raises:
        MaskError: a text is empty, has a character outside 48..111, ends within a number, has a
            number of more than 12 groups or a negative count, or its counts do not sum to
            `pixels`; the message and the error's `mask` have the index of the mask.
        OptionError: an array has the wrong dtype, the offsets do not fit the text, or `pixels` is
            not a whole number of at least 0.

    Examples:
        >>> text = np.frombuffer(b"237", np.uint8)
        >>> ends, offset, other = sa1bpack.masks.parse_counts(text, np.array([0, 3]), pixels=12)
        >>> ends, offset, other
        (array([ 2,  5, 12], dtype=int32), array([0, 3]), array([False]))
    """
    text, text_offset = checked_pieces(("text", "text_offset"), text, np.uint8, text_offset)
    pixels = whole_number("pixels", pixels, 0)
    if not 1 <= pixels <= MAX_RUN_END:
        raise MaskError(
            f"an image of {pixels} pixels cannot have masks; the limit is {MAX_RUN_END}"
        )
    return parse_counts_of_images(
        text, text_offset, np.full(len(text_offset) - 1, pixels, np.int64)
    )


def parse_counts_of_images(
    text: np.ndarray, text_offset: np.ndarray, pixels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`parse_counts` of masks of several images.

    Args:
        pixels: int64 (n,), pixels of the source image of each mask, 1 to 2**31 - 1.
    """
    text, text_offset = checked_pieces(("text", "text_offset"), text, np.uint8, text_offset)
    masks = len(text_offset) - 1
    run_offset = np.empty(masks + 1, np.int64)
    noncanonical = np.empty(masks, np.bool_)
    run_ends = np.empty(len(text), np.int32)  # a number has at least one character
    bad, covered = _parse_text(text, text_offset, pixels, run_ends, run_offset, noncanonical)
    if bad >= 0:
        refused = text[text_offset[bad] : text_offset[bad + 1]].tobytes()
        fault = f"the runs cover {covered} pixels, the image has {pixels[bad]}"
        if covered < 0:
            fault = f"its {len(refused)} characters, {refused[:40]!r}, are not COCO's counts"
        raise mask_error(bad, masks, f"{fault}; correct or remove the annotation")
    return run_ends[: run_offset[-1]], run_offset, noncanonical


@njit
def _encode_text(
    run_ends: np.ndarray, run_offset: np.ndarray, text: np.ndarray, text_offset: np.ndarray
) -> None:
    """Write the concatenated texts of all masks, and where each begins and ends, (n + 1,)."""
    p = text_offset[0] = 0
    for m in range(len(run_offset) - 1):
        end = before = before2 = np.int64(0)  # of the last run; its count and the one before
        for k in range(run_offset[m], run_offset[m + 1]):
            count = np.int64(run_ends[k]) - end
            value = count
            if k > run_offset[m] + 2:
                value -= before2
            end = np.int64(run_ends[k])
            before2 = before
            before = count
            while value < -16 or value > 15:  # more than the 4 bits and sign of one group
                text[p] = 48 + ((value & 31) | 32)
                value >>= 5
                p += 1
            text[p] = 48 + (value & 31)
            p += 1
        text_offset[m + 1] = p


@checks_options
def encode_counts(run_ends: np.ndarray, run_offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Write run ends as COCO compressed counts, byte for byte as pycocotools does.

    The exact inverse of `parse_counts` for every text that is not noncanonical.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).

    Returns:
        text: uint8 (t,), ASCII bytes.
        text_offset: int64 (n + 1,).

    Raises:
        OptionError: an array has the wrong dtype or the offsets do not fit the runs.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> text, text_offset = sa1bpack.masks.encode_counts(run_ends, run_offset)
        >>> text.tobytes(), text_offset
        (b'237', array([0, 3]))
    """
    run_ends, run_offset = checked_runs(run_ends, run_offset)
    text_offset = np.empty(len(run_offset), np.int64)
    text = np.empty(MOST_GROUPS * int(run_offset[-1] - run_offset[0]), np.uint8)
    _encode_text(run_ends, run_offset, text, text_offset)
    return text[: text_offset[-1]].copy(), text_offset


def take_masks(
    run_ends: np.ndarray, run_offset: np.ndarray, keep: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gather the runs of some masks, in the given order.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        keep: int64 (k,), indices of masks, 0 to n - 1.

    Returns:
        run_ends: int32 (r',) and run_offset: int64 (k + 1,) of the masks in `keep`.

    Raises:
        OptionError: an array has the wrong dtype or the offsets do not fit the runs.
        IndexError: an index is outside the masks.
    """
    run_ends, run_offset = checked_runs(run_ends, run_offset)
    first = run_offset[:-1][keep]
    stop = run_offset[1:][keep]
    pieces = [run_ends[begin:end] for begin, end in zip(first, stop, strict=True)]
    offset = np.concatenate([[0], (stop - first).cumsum()])
    return np.concatenate([run_ends[:0], *pieces]), offset


@njit
def _area(run_ends: np.ndarray, run_offset: np.ndarray, area: np.ndarray) -> None:
    for m in range(len(area)):
        total = np.int64(0)
        for k in range(run_offset[m] + 1, run_offset[m + 1], 2):
            total += run_ends[k] - run_ends[k - 1]
        area[m] = total


@checks_options
def mask_area(run_ends: np.ndarray, run_offset: np.ndarray) -> np.ndarray:
    """Count the foreground pixels of every mask.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).

    Returns:
        int64 (n,), pixels of the source image.

    Raises:
        OptionError: an array has the wrong dtype or the offsets do not fit the runs.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> sa1bpack.masks.mask_area(run_ends, run_offset)
        array([3])
    """
    run_ends, run_offset = checked_runs(run_ends, run_offset)
    area = np.empty(len(run_offset) - 1, np.int64)
    _area(run_ends, run_offset, area)
    return area


@njit
def bounds(ends: np.ndarray, height: int) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """x0, y0, x1, y1 around a mask's foreground, ends exclusive; zeros if it has none."""
    x0 = np.int64(0)
    y0 = np.int64(height)
    x1 = np.int64(0)
    y1 = np.int64(0)
    for k in range(1, len(ends), 2):
        first = np.int64(ends[k - 1])
        last = np.int64(ends[k]) - 1
        if last < first:
            continue
        left = first // height
        right = last // height
        if x1 == 0:  # runs are sorted, so the first one is in the first column
            x0 = left
        x1 = right + 1
        if left == right:
            y0 = min(y0, first - left * height)
            y1 = max(y1, last - left * height + 1)
        else:  # it continues in the next column
            y0 = np.int64(0)
            y1 = np.int64(height)
    if x1 == 0:
        y0 = np.int64(0)
    return x0, y0, x1, y1


@njit
def _boxes(
    run_ends: np.ndarray, run_offset: np.ndarray, heights: np.ndarray, boxes: np.ndarray
) -> None:
    for m in range(len(boxes)):
        box = bounds(run_ends[run_offset[m] : run_offset[m + 1]], heights[m])
        boxes[m, 0], boxes[m, 1], boxes[m, 2], boxes[m, 3] = box


@checks_options
def mask_boxes(run_ends: np.ndarray, run_offset: np.ndarray, height: int, width: int) -> np.ndarray:
    """The box around each mask's foreground, as edges: x1 = xmax + 1, y1 = ymax + 1.

    pycocotools' `toBbox` is x0, y0, x1 - x0, y1 - y0. Width and height of SA-1B's boxes are one
    less.

    Args:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).
        height, width: size of the source image in pixels.

    Returns:
        int64 (n, 4): x0, y0, x1, y1 in source pixels; zeros for a mask without foreground.

    Raises:
        MaskError: the runs do not belong to an image of this size.
        OptionError: an array has the wrong dtype or the offsets do not fit the runs.

    Examples:
        >>> run_ends, run_offset = np.array([2, 5, 12], np.int32), np.array([0, 3], np.int64)
        >>> sa1bpack.masks.mask_boxes(run_ends, run_offset, height=3, width=4)
        array([[0, 0, 2, 3]])
    """
    run_ends, run_offset = check_image_runs(run_ends, run_offset, height * width)
    return boxes_of_images(run_ends, run_offset, np.full(len(run_offset) - 1, height, np.int64))


def boxes_of_images(
    run_ends: np.ndarray, run_offset: np.ndarray, heights: np.ndarray
) -> np.ndarray:
    """`mask_boxes` of masks of several images, whose runs are those of their images.

    Args:
        heights: int64 (n,), height of the source image of each mask.
    """
    boxes = np.empty((len(run_offset) - 1, 4), np.int64)
    _boxes(frozen(run_ends), frozen(run_offset), heights, boxes)
    return boxes
