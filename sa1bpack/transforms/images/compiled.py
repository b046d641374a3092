"""Images of a batch on a CPU, made by compiled kernels: the results of the torch operations that a
device runs (`resample`, `pixels`), but for rounding. Each pixel is written once, where it belongs,
in as many threads as torch may use.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from sa1bpack.pixels.resample import (
    AffinePlaces,
    Normal,
    Part,
    make_taps,
    resample_affine_rows,
    resample_rows,
)
from sa1bpack.pixels.yuv420 import planes_to_rgb
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.geometry.frame import Frame
from sa1bpack.transforms.images.resample import supports

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


def resample_images(
    images: torch.Tensor,
    stored: torch.Tensor,
    frame: Frame,
    values: Normal,
    shrinks: float,
    out: torch.Tensor,
) -> None:
    """Resample and normalise images.

    images   uint8 (B, S, S, 3)
    stored   integers (B, 2): height and width of the stored images
    frame    of the images
    values   what bytes become
    shrinks  no map reduces an image by a larger factor
    out      float32 (B, 3, H, W), on the frame's canvas; zero outside the images
    """
    size = height, _ = frame.canvas
    data, target = images.numpy(), out.numpy()
    lengths, kept = stored.tolist(), frame.kept(size).tolist()
    if frame.window is None:
        centers = [at.numpy() for at in frame.maps.centers(*size)]
        scales = frame.maps.scale.tolist()
    else:
        steps, support = frame.steps(size), supports(frame.maps, shrinks)
        places = [array.numpy() for array in (steps, support, frame.edges())]

    def jobs() -> Iterator[Job]:
        for k in range(len(data)):
            if frame.window is None:
                x, y = (
                    make_taps(centers[axis][k], scales[k][axis], int(lengths[k][1 - axis]))
                    for axis in range(2)
                )
                rows = partial(resample_rows, data[k], y, x, values)
            else:
                of = AffinePlaces(*(array[k] for array in places))
                rows = partial(resample_affine_rows, data[k], tuple(lengths[k]), of, values)
            for start in range(0, height, PART_ROWS):
                part = Part(start, min(start + PART_ROWS, height), *kept[k])
                yield partial(rows, part, target[k])

    run_jobs(jobs())
