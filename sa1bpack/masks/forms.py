"""Lists of counts and drawn masks to run ends: the forms besides COCO's text and polygons."""

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.kernels import njit
from sa1bpack.keywords import checks_options
from sa1bpack.masks.arrays import checked_pieces, frozen, mask_error
from sa1bpack.masks.raster import check_image


@njit
def _sum_counts(
    counts: np.ndarray, counts_offset: np.ndarray, pixels: np.ndarray, run_ends: np.ndarray
) -> tuple[int, np.int64]:
    """Write the run ends; returns the first mask that is refused and what it covers, or -1, -1."""
    first = counts_offset[0]
    for m in range(len(counts_offset) - 1):
        end = np.int64(0)
        for k in range(counts_offset[m], counts_offset[m + 1]):
            if counts[k] < 0 or counts[k] > pixels[m] - end:
                return m, np.int64(-1)
            end += counts[k]
            run_ends[k - first] = end
        if end != pixels[m] or counts_offset[m] == counts_offset[m + 1]:
            return m, end
    return -1, np.int64(-1)


@checks_options
def counts_runs(
    counts: np.ndarray, counts_offset: np.ndarray, height: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Add up the uncompressed counts of n masks of one image: COCO's lists, not its text.

    Args:
        counts: int64 (c,), lengths of runs in column-major order, background first, mask after
            mask. Runs of length 0 are kept.
        counts_offset: int64 (n + 1,), mask m's are ``counts[counts_offset[m]:counts_offset[m+1]]``.
        height, width: size of the source image in pixels.

    Returns:
        run_ends: int32 (r,), see `parse_counts`.
        run_offset: int64 (n + 1,).

    Raises:
        MaskError: a count is negative, or those of a mask do not sum to the image's pixels; the
            error's `mask` is the index of the mask.
        OptionError: an array has the wrong dtype, or the offsets do not fit.

    Examples:
        >>> counts, counts_offset = np.array([2, 3, 7]), np.array([0, 3])
        >>> sa1bpack.masks.counts_runs(counts, counts_offset, height=3, width=4)
        (array([ 2,  5, 12], dtype=int32), array([0, 3]))
    """
    height, width = check_image(height, width)
    pixels = np.full(max(np.size(counts_offset) - 1, 0), height * width, np.int64)
    return counts_runs_of_images(counts, counts_offset, pixels)


def counts_runs_of_images(
    counts: np.ndarray, counts_offset: np.ndarray, pixels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`counts_runs` of masks of several images.

    Args:
        pixels: int64 (n,), pixels of the source image of each mask, which is checked.
    """
    counts, counts_offset = checked_pieces(
        ("counts", "counts_offset"), counts, np.int64, counts_offset
    )
    run_ends = np.empty(counts_offset[-1] - counts_offset[0], np.int32)
    bad, covered = _sum_counts(counts, counts_offset, pixels, run_ends)
    if bad >= 0:
        fault = f"its counts sum to {covered}, the image has {pixels[bad]} pixels"
        if covered < 0:
            fault = (
                f"a count is negative, or they sum to more than the image's {pixels[bad]} pixels"
            )
        raise mask_error(bad, len(counts_offset) - 1, f"{fault}; correct or remove the annotation")
    return run_ends, counts_offset - counts_offset[0]


@njit
def _find_runs(mask: np.ndarray, run_ends: np.ndarray) -> np.int64:
    """Write the run ends of a mask, up to the memory there is; returns how many it has."""
    height, width = mask.shape
    runs = np.int64(0)
    foreground = False
    for x in range(width):
        for y in range(height):
            if (mask[y, x] != 0) != foreground:
                if runs < len(run_ends):
                    run_ends[runs] = x * height + y
                runs += 1
                foreground = not foreground
    if runs < len(run_ends):
        run_ends[runs] = height * width
    return runs + 1


@checks_options
def drawn_runs(mask: np.ndarray) -> np.ndarray:
    """Find the runs of a mask that is drawn as an image.

    Args:
        mask: uint8 or bool (H, W), rows and columns; all that is not 0 is foreground.

    Returns:
        int32 (r,), the run ends, see `parse_counts`.

    Raises:
        MaskError: an image of this size cannot have masks.
        OptionError: the array has another dtype, or not two axes.

    Examples:
        >>> sa1bpack.masks.drawn_runs(np.array([[0, 1], [0, 1]], np.uint8))
        array([2, 4], dtype=int32)
    """
    if not isinstance(mask, np.ndarray) or mask.dtype not in (np.uint8, np.bool_) or mask.ndim != 2:
        raise OptionError("mask must be uint8 or bool (H, W)")
    height, width = check_image(*mask.shape)
    view = frozen(mask).view(np.uint8)
    run_ends = np.empty(4 * (height + width), np.int32)  # usual outlines cross no more columns
    runs = _find_runs(view, run_ends)
    if runs > len(run_ends):
        run_ends = np.empty(runs, np.int32)
        _find_runs(view, run_ends)
    return run_ends[:runs].copy()
