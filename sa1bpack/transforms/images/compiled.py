"""Images of a batch on a CPU, made by compiled kernels: the results of the torch operations that a
device runs (`resample`, `pixels`), but for rounding. Each pixel is written once, where it belongs,
in as many threads as torch may use.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from sa1bpack.pixels.resample import Normal, make_taps, resample_rows
from sa1bpack.pixels.turn import turn_rows
from sa1bpack.pixels.yuv420 import planes_to_rgb
from sa1bpack.transforms.geometry.affine import AxisMaps
from sa1bpack.transforms.ways import Job, run_jobs

# Rows of an image in one job: small enough for the cache, large enough to be worth a start.
PART_ROWS = 256


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
            for start in range(0, height, PART_ROWS):
                rows = start, min(start + PART_ROWS, height)
                yield partial(resample_rows, data[k], y, x, values, tuple(kept[k]), rows, target[k])

    run_jobs(jobs())


def turn_images(
    images: torch.Tensor,
    steps: torch.Tensor,
    support: torch.Tensor,
    window: torch.Tensor,
    stored: torch.Tensor,
    keep: torch.Tensor,
    values: Normal,
    out: torch.Tensor,
) -> None:
    """Resample and normalise images under maps that may rotate, see `sa1bpack.pixels.turn`.

    images   uint8 (B, S, S, 3)
    steps    int64 (B, 2, 3), from the canvas to stored coordinates
    support  float64 (B, 2), x and y
    window   int64 (B, 4)
    stored   (B, 2): height and width of the stored images
    keep     int64 (B, 2): rows and columns of the canvas that images may cover; others become 0
    values   what bytes become
    out      float32 (B, 3, H, W)
    """
    height = out.shape[2]
    data, target = images.numpy(), out.numpy()
    placed = [array.numpy() for array in (steps, support, window)]
    lengths, kept = stored.tolist(), keep.tolist()
    run_jobs(
        partial(
            turn_rows,
            data[k],
            tuple(lengths[k]),
            *(array[k] for array in placed),
            values,
            tuple(kept[k]),
            (start, min(start + PART_ROWS, height)),
            target[k],
        )
        for k in range(len(data))
        for start in range(0, height, PART_ROWS)
    )
