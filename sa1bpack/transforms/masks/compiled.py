"""Masks of a batch on a CPU, made by compiled kernels: the cells of the torch operations that a
device runs (`cells`, `runs`). Each cell is written once, where it belongs, in as many threads as
torch may use.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from sa1bpack.masks._arrays import check_image_runs
from sa1bpack.masks.cells import fill_cells, take_affine, take_cells
from sa1bpack.masks.window import check_maps, draw_affine, draw_window
from sa1bpack.transforms.backends import Job, run_jobs

# Bytes of mask bits in one job: small enough for the cache, large enough to be worth a start.
PART_BYTES = 1 << 20


def draw_masks(
    samples: Iterable[tuple[int, np.ndarray, tuple[np.ndarray, np.ndarray, int, int]]],
    maps: torch.Tensor,
    sampling: str,
    keep: torch.Tensor | None,
    out: torch.Tensor,
    visible: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw masks from their runs into their rows of an array.

    samples  per sample its number, the rows of its masks int64 (m,), and their runs: run_ends,
             run_offset, height, width
    maps     float64 (B, 2, 3), from the cells of the output to source pixels
    keep     int64 (B, 2): rows and columns that the image covers; cells beyond them become False.
             None: all
    out      bool (T, h, w), C-contiguous; rows without a mask become False
    visible  bool (B, h, w), for maps that may rotate: they are evaluated at sample points, and
             cells that are not visible become False

    Returns int64 (T,), the cells of each mask.
    """
    target, size = out.numpy(), tuple(out.shape[1:])
    affine = maps.numpy()
    kept = [size] * len(affine) if keep is None else [tuple(both) for both in keep.tolist()]
    counts = np.full(len(target), -1)
    share = max(1, PART_BYTES // (size[0] * -(-size[1] // 8)))

    if visible is not None:
        check_maps(affine, size)
    draw_bits = draw_window if visible is None else draw_affine

    def draw(sample: int, rows: np.ndarray, runs: tuple) -> None:
        bits = draw_bits(*runs, affine[sample], size, sampling)
        fill_cells(bits, rows, kept[sample], target, counts)
        if visible is not None:
            shown = visible[sample].numpy()
            for row in rows:
                np.logical_and(target[row], shown, out=target[row])
                counts[row] = np.count_nonzero(target[row])

    def jobs() -> Iterator[Job]:
        for sample, rows, (run_ends, run_offset, height, width) in samples:
            # All at once, so that an error has the number of the mask in its image.
            check_image_runs(run_ends, run_offset, height * width)
            counts[rows] = 0
            for first in range(0, len(rows), share):
                offset = run_offset[first : first + share + 1]
                runs = run_ends, offset, height, width
                yield partial(draw, sample, rows[first : first + share], runs)
        for row in np.flatnonzero(counts < 0):
            target[row], counts[row] = False, 0

    run_jobs(jobs())
    return torch.from_numpy(counts)


def unpack_masks(bits: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 (T, h, w / 8) into bool (T, h, w). Returns int64 (T,), the cells of each."""
    source, target = bits.numpy(), out.numpy()
    counts = np.zeros(len(target), np.int64)
    size = tuple(out.shape[1:])
    run_jobs(
        partial(fill_cells, source[part], _numbers(part), size, target, counts)
        for part in _parts(len(source), size)
    )
    return torch.from_numpy(counts)


def take_masks(
    masks: torch.Tensor,
    owner: torch.Tensor,
    columns: torch.Tensor,
    rows: torch.Tensor,
    keep: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Select columns and rows of masks, as `masks.take_cells` does.

    masks    bool (T, Sm, Sm), or bits uint8 (T, Sm, Sm / 8)
    owner    int64 (T,), the sample of each, non-decreasing
    columns  int64 (B, w), rows int64 (B, h): of the grid, for each of the output
    keep     int64 (B, 2): rows and columns of the output that the image covers
    out      bool (T, h, w), overwritten

    Returns int64 (T,), the cells of each.
    """
    down, across, kept = rows.numpy(), columns.numpy(), keep.tolist()
    of_sample = list(zip(down, across, map(tuple, kept), strict=True))
    return _taken(take_cells, masks, owner, of_sample, out)


def take_affine_masks(
    masks: torch.Tensor,
    owner: torch.Tensor,
    steps: torch.Tensor,
    visible: torch.Tensor,
    out: torch.Tensor,
) -> torch.Tensor:
    """Take masks from their grids under affine maps, as `cells.take_affine` does.

    steps    int64 (B, 2, 3), from cells of the output to those of the grid
    visible  bool (B, h, w)
    others   see `take_masks`

    Returns int64 (T,), the cells of each.
    """
    of_sample = list(zip(steps.numpy(), visible.numpy(), strict=True))
    return _taken(take_affine, masks, owner, of_sample, out)


def _taken(
    kernel: Callable[..., None],
    masks: torch.Tensor,
    owner: torch.Tensor,
    of_sample: Sequence[tuple],
    out: torch.Tensor,
) -> torch.Tensor:
    """Have a kernel of `sa1bpack.masks.cells` fill `out`; `of_sample` has its arguments for each
    sample. Returns int64 (T,), the cells of each."""
    source, target = masks.numpy(), out.numpy()
    counts = np.zeros(len(target), np.int64)
    run_jobs(
        partial(kernel, source[part], _numbers(part), *of_sample[k], target, counts)
        for k, part in _parts_of_samples(owner, len(of_sample), out)
    )
    return torch.from_numpy(counts)


def _parts_of_samples(
    owner: torch.Tensor, samples: int, out: torch.Tensor
) -> Iterator[tuple[int, slice]]:
    """The number of a sample and some of its masks, for each job."""
    ends = np.searchsorted(owner.numpy(), np.arange(samples + 1)).tolist()
    for sample, (first, last) in enumerate(itertools.pairwise(ends)):
        for part in _parts(last - first, tuple(out.shape[1:])):
            yield sample, slice(first + part.start, first + part.stop)


def _parts(masks: int, size: tuple[int, int]) -> list[slice]:
    """Masks 0..masks in the parts of jobs."""
    share = max(1, 8 * PART_BYTES // (size[0] * size[1]))
    return [slice(start, min(start + share, masks)) for start in range(0, masks, share)]


def _numbers(part: slice) -> np.ndarray:
    return np.arange(part.start, part.stop)
