"""Masks of a batch on a CPU, made by compiled kernels: the cells of the torch operations that a
device runs (`cells`, `runs`). Each cell is written once, where it belongs, in as many threads as
torch may use.

Results are bool (n, h, w), in `memory`, and int64 (n,), the cells that are set in each mask.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from sa1bpack.masks import cells, window
from sa1bpack.masks.arrays import check_image_runs
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.masks.cells import Taking
from sa1bpack.transforms.masks.run_batch import Drawing, compiled_samples
from sa1bpack.transforms.memory import Memory

# Bytes of mask bits in one job: small enough for the cache, large enough to be worth a start.
PART_BYTES = 1 << 20

Masks = tuple[torch.Tensor, torch.Tensor]


def draw_masks(drawing: Drawing, memory: Memory) -> Masks:
    """Draw masks from their runs, as `sa1bpack.masks.draw_window` does."""
    affine, size, keep = drawing.maps.matrix().numpy(), drawing.size, drawing.keep
    kept = [size] * len(affine) if keep is None else [*map(tuple, keep.tolist())]

    def draw(sample: int, rows: np.ndarray, image: tuple, out: np.ndarray, counts: np.ndarray):
        bits = window.draw_window(*image, affine[sample], size, drawing.sampling)
        cells.fill_cells(bits, rows, kept[sample], out, counts)

    return _drawn(draw, drawing, memory)


def draw_affine(drawing: Drawing, memory: Memory) -> Masks:
    """`draw_masks` at the sample points of maps, which may rotate."""
    affine, size = drawing.maps.matrix().numpy(), drawing.size
    window.check_maps(affine, size)
    visible = drawing.frame.visible(size).numpy()

    def draw(sample: int, rows: np.ndarray, image: tuple, out: np.ndarray, counts: np.ndarray):
        bits = window.draw_affine(*image, affine[sample], size, drawing.sampling)
        cells.fill_cells(bits, rows, size, out, counts)
        for row in rows:
            np.logical_and(out[row], visible[sample], out=out[row])
            counts[row] = np.count_nonzero(out[row])

    return _drawn(draw, drawing, memory)


def _drawn(draw: Callable[..., None], drawing: Drawing, memory: Memory) -> Masks:
    """Have a function draw some masks of a sample at a time, from its runs, into their rows."""
    out, counts = memory.empty(drawing.shape, torch.bool), np.full(len(drawing.owner), -1)
    (height, width), target = drawing.size, out.numpy()
    share = max(1, PART_BYTES // (height * -(-width // 8)))

    def jobs() -> Iterator[Job]:
        for sample, rows, (ends, offset, *source) in compiled_samples(drawing.runs, drawing.place):
            # All at once, so that an error has the number of the mask in its image.
            check_image_runs(ends, offset, source[0] * source[1])
            counts[rows] = 0
            for first in range(0, len(rows), share):
                image = ends, offset[first : first + share + 1], *source
                yield partial(draw, sample, rows[first : first + share], image, target, counts)
        for row in np.flatnonzero(counts < 0):
            target[row], counts[row] = False, 0

    run_jobs(jobs())
    return out, torch.from_numpy(counts)


def take_cells(taking: Taking, memory: Memory) -> Masks:
    """Take cells of masks under upright maps, as `masks.cells.take_cells` does; without maps, all
    cells of masks in bits."""
    if taking.maps is None:
        return _taken(cells.fill_cells, taking, [(taking.size,)] * taking.samples, memory)
    columns, rows = (numbers.numpy() for numbers in taking.columns_and_rows)
    kept = map(tuple, taking.keep.tolist())
    return _taken(cells.take_cells, taking, [*zip(rows, columns, kept, strict=True)], memory)


def take_affine(taking: Taking, memory: Memory) -> Masks:
    """Take cells of masks under affine maps, as `masks.cells.take_affine` does."""
    visible = taking.frame.visible(taking.size).numpy()
    of_sample = [*zip(taking.steps.numpy(), visible, strict=True)]
    return _taken(cells.take_affine, taking, of_sample, memory)


def _taken(
    kernel: Callable[..., None], taking: Taking, of_sample: Sequence[tuple], memory: Memory
) -> Masks:
    """Have a kernel of `sa1bpack.masks.cells` make all masks; `of_sample` has its arguments for
    each sample."""
    owner, (height, width) = taking.owner.numpy(), taking.size
    out, counts = memory.empty((len(owner), height, width), torch.bool), np.zeros(len(owner), int)
    source, target = taking.masks.numpy(), out.numpy()
    share = max(1, 8 * PART_BYTES // (height * width))
    ends = np.searchsorted(owner, np.arange(len(of_sample) + 1)).tolist()

    def jobs() -> Iterator[Job]:
        for given, (first, last) in zip(of_sample, itertools.pairwise(ends), strict=True):
            for start in range(first, last, share):
                rows = np.arange(start, min(start + share, last))
                yield partial(kernel, source[start : rows[-1] + 1], rows, *given, target, counts)

    run_jobs(jobs())
    return out, torch.from_numpy(counts)
