"""The work of a pipeline on a CPU, compiled: images, and masks from their runs or their grid.

The results are those of the torch operations that a device runs (`resample`, `masks`, `runs`): the
same cells, and pixels that differ by rounding only. Each pixel and each cell is written once, where
it belongs, in as many threads as torch may use.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from sa1bpack.masks._arrays import check_image_runs
from sa1bpack.masks.cells import fill_cells, take_cells
from sa1bpack.masks.window import draw_window
from sa1bpack.pixels.resample import Normal, make_taps, resample_rows
from sa1bpack.pixels.yuv420 import planes_to_rgb
from sa1bpack.transforms.affine import AxisMaps

Job = Callable[[], None]

# Of one job: small enough for the cache, large enough that starting it costs little.
_BITS = 1 << 20  # bytes of mask bits
_ROWS = 256  # of an image


def run_jobs(jobs: Iterable[Job]) -> None:
    """Run jobs in as many threads as torch may use."""
    jobs = list(jobs)
    threads = min(torch.get_num_threads(), len(jobs))
    if threads < 2:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


# ---------------------------------------------------------------------------------------- images


def planes_as_rgb(planes: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """`pixels.yuv420_to_rgb` on a CPU: uint8 (B, S, S, 3), undefined outside `stored`."""
    side = planes.shape[2]
    rgb = np.empty((len(planes), side, side, 3), np.uint8)

    def convert(k: int, height: int, width: int) -> None:
        source, target = planes[k].reshape(-1).numpy(), rgb[k].reshape(-1)
        planes_to_rgb(source, height, width, side, side, side, target)

    run_jobs(partial(convert, k, *size) for k, size in enumerate(stored.tolist()))
    return torch.from_numpy(rgb)


def draw_images(
    images: torch.Tensor,
    maps: AxisMaps,
    stored: torch.Tensor,
    keep: torch.Tensor,
    values: Normal,
    out: torch.Tensor,
) -> None:
    """Resample and normalise images.

    images  uint8 (B, S, S, 3)
    maps    from the canvas to stored coordinates
    stored  (B, 2): width and height of the stored images
    keep    int64 (B, 2): rows and columns of the canvas that the image covers; others become 0
    values  what bytes become
    out     float32 (B, 3, H, W)
    """
    height, width = out.shape[2:]
    centers = [at.numpy() for at in maps.centers(height, width)]
    scales, lengths, kept = maps.scale.tolist(), stored.tolist(), keep.tolist()
    data, target = images.numpy(), out.numpy()

    def jobs() -> Iterator[Job]:
        for k in range(len(data)):
            x, y = (
                make_taps(centers[axis][k], scales[k][axis], int(lengths[k][axis]))
                for axis in range(2)
            )
            for start in range(0, height, _ROWS):
                rows = start, min(start + _ROWS, height)
                yield partial(resample_rows, data[k], y, x, values, tuple(kept[k]), rows, target[k])

    run_jobs(jobs())


# ----------------------------------------------------------------------------------------- masks


def draw_masks(
    samples: Iterable[tuple[int, np.ndarray, tuple[np.ndarray, np.ndarray, int, int]]],
    maps: torch.Tensor,
    sampling: str,
    keep: torch.Tensor | None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Draw masks from their runs into their rows of an array.

    samples  per sample its number, the rows of its masks int64 (m,), and their runs: run_ends,
             run_offset, height, width
    maps     float64 (B, 2, 3), from the cells of the output to source pixels
    keep     int64 (B, 2): rows and columns that the image covers; cells beyond them become False.
             None: all
    out      bool (T, h, w), C-contiguous; rows without a mask become False

    Returns int64 (T,), the cells of each mask.
    """
    target, size = out.numpy(), tuple(out.shape[1:])
    affine = maps.numpy()
    kept = [size] * len(affine) if keep is None else [tuple(both) for both in keep.tolist()]
    counts = np.full(len(target), -1)
    share = max(1, _BITS // (size[0] * -(-size[1] // 8)))

    def draw(sample: int, rows: np.ndarray, runs: tuple) -> None:
        bits = draw_window(*runs, affine[sample], size, sampling)
        fill_cells(bits, rows, kept[sample], target, counts)

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
    source, target = masks.numpy(), out.numpy()
    counts = np.zeros(len(target), np.int64)
    down, across, kept = rows.numpy(), columns.numpy(), keep.tolist()
    ends = np.searchsorted(owner.numpy(), np.arange(len(columns) + 1)).tolist()
    size = tuple(out.shape[1:])

    def jobs() -> Iterator[Job]:
        for k, (first, last) in enumerate(itertools.pairwise(ends)):
            for part in _parts(last - first, size):
                part = slice(first + part.start, first + part.stop)
                yield partial(
                    take_cells, source[part], _numbers(part), down[k], across[k], tuple(kept[k]),
                    target, counts,
                )  # fmt: skip

    run_jobs(jobs())
    return torch.from_numpy(counts)


def _parts(masks: int, size: tuple[int, int]) -> list[slice]:
    """Masks 0..masks in the parts of jobs."""
    share = max(1, 8 * _BITS // (size[0] * size[1]))
    return [slice(start, min(start + share, masks)) for start in range(0, masks, share)]


def _numbers(part: slice) -> np.ndarray:
    return np.arange(part.start, part.stop)
