"""Masks of several samples, drawn from their runs straight into a batch, in one compiled call."""

from typing import NamedTuple

import numpy as np

from sa1bpack.dataset.sample_spec import MaskSpec
from sa1bpack.errors import MaskError
from sa1bpack.kernels import njit
from sa1bpack.loading.batch.put import address_of, unpack_into, unpack_rows
from sa1bpack.masks.arrays import MAX_SIDE, check_image_runs, first_bad_mask, frozen
from sa1bpack.masks.raster import check_image, draw_area, draw_grid, fit_axes, sides_of


class SampleRuns(NamedTuple):
    """The runs of the kept masks of k samples, once they are loaded.

    Attributes:
        ends: int32 (r,), ends of runs, in source pixels.
        offset: int64 (m + 1,), where the runs of each mask begin in `ends`.
        masks_of: int64 (k + 1,), which of these masks each sample has.
        size: int32 (k, 4), source height, source width, stored height and stored width.
    """

    ends: np.ndarray
    offset: np.ndarray
    masks_of: np.ndarray
    size: np.ndarray

    @classmethod
    def of(cls, samples: np.ndarray, ends: np.ndarray, offset: np.ndarray) -> "SampleRuns":
        """The runs of samples, SAMPLE (k,), that follow each other in a batch."""
        masks_of = np.zeros(len(samples) + 1, np.int64)
        if len(samples):
            masks_of[1:] = samples["kept_end"] - samples["kept_begin"][0]
        return cls(frozen(ends), frozen(offset), masks_of, np.ascontiguousarray(samples["size"]))


@njit
def _fitting(
    ends: np.ndarray,
    offset: np.ndarray,
    masks_of: np.ndarray,
    pixels: np.ndarray,
    fits: np.ndarray,
) -> None:
    """Note which samples have runs that fit their pixels, int64 (k,): bool (k,), out."""
    for k in range(len(pixels)):
        runs_of = offset[masks_of[k] : masks_of[k + 1] + 1]
        fits[k] = first_bad_mask(ends, runs_of, pixels[k]) < 0


def damaged_runs(runs: SampleRuns, read: np.ndarray, draws: bool) -> dict[int, MaskError]:
    """The errors of samples whose runs do not fit their images, by number.

    Args:
        runs: the runs.
        read: bool (k,), the samples whose runs are there. Others are not looked at.
        draws: masks are drawn from them, so that there is a limit for the sides of images, too.
    """
    source = runs.size[:, :2].astype(np.int64)
    fits = np.empty(len(source), np.bool_)
    _fitting(runs.ends, runs.offset, runs.masks_of, source.prod(1), fits)
    if draws:
        fits &= (source <= MAX_SIDE).all(1)
    errors = {}
    for k in np.flatnonzero(read & ~fits).tolist():
        height, width = source[k].tolist()
        try:
            if draws:
                check_image(height, width)
            offset = runs.offset[runs.masks_of[k] : runs.masks_of[k + 1] + 1]
            check_image_runs(runs.ends, offset, height * width)
        except MaskError as error:
            errors[k] = error
    return errors


@njit
def _draw_by_area(
    runs: SampleRuns,
    sides: np.ndarray,
    numbers: np.ndarray,
    rows: np.ndarray,
    bits: np.ndarray,
    words: np.ndarray,
) -> None:
    """Draw the masks of some samples, sampled by area.

    Args:
        runs: the runs of all samples.
        sides: int64 (q, 2, 4), see `raster.sides_of`, of those that are drawn.
        numbers: int64 (q,), which samples these are.
        rows: int64 (q,), where the masks of each begin in the array.
        bits: uint8 (n, S, S / 8), out: the array; or no masks, for those of one sample at a time.
        words: uint64 (n, S * S / 8), out: the array, if its masks are bool.
    """
    unpacks = len(words) > 0
    most = 0
    for i in range(len(numbers)):
        k = numbers[i]
        most = max(most, runs.masks_of[k + 1] - runs.masks_of[k])
    drawn = bits
    if unpacks:
        drawn = np.empty((most, bits.shape[1], bits.shape[2]), np.uint8)
    for i in range(len(numbers)):
        k = numbers[i]
        first = runs.masks_of[k]
        count = runs.masks_of[k + 1] - first
        if count == 0:
            continue
        runs_of = runs.offset[first : first + count + 1]
        start = 0 if unpacks else rows[i]
        draw_area(runs.ends, runs_of, sides[i], drawn[start : start + count])
        if unpacks:
            unpack_rows(address_of(drawn), words[rows[i] : rows[i] + count])


def draw_masks(
    masks: MaskSpec, runs: SampleRuns, numbers: np.ndarray, rows: np.ndarray, out: np.ndarray
) -> None:
    """Draw the masks of samples whose runs fit their images.

    Args:
        masks: their form.
        runs: the runs of all samples.
        numbers: int64 (q,), which of the samples are drawn.
        rows: int64 (q,), where the masks of each begin in `out`.
        out: bool (n, S, S), or bits, uint8 (n, S, S / 8), C-contiguous.
    """
    axes = []
    for height, width in runs.size[numbers, :2].tolist():
        axes.append(fit_axes(height, width, masks.size, masks.fit, masks.image_size))
    if masks.sampling == "area":
        bits = out
        words = np.empty((0, 0), np.uint64)
        if out.dtype == np.bool_:
            bits = np.empty((0, masks.size, masks.size // 8), np.uint8)
            words = out.reshape(len(out), masks.size * masks.size).view(np.uint64)
        _draw_by_area(runs, sides_of(axes), numbers, rows, bits, words)
        return
    for k, row, (y, x) in zip(numbers.tolist(), rows.tolist(), axes, strict=True):
        first = int(runs.masks_of[k])
        count = int(runs.masks_of[k + 1]) - first
        of_sample = out[row : row + count]
        runs_of = runs.offset[first : first + count + 1]
        if out.dtype == np.bool_:
            bits = draw_grid(runs.ends, runs_of, y, x, masks.sampling)
            unpack_into(bits, of_sample, np.arange(count))
        else:
            draw_grid(runs.ends, runs_of, y, x, masks.sampling, of_sample)
