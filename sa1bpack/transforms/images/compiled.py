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
    Part,
    make_taps,
    normal,
    resample_affine_rows,
    resample_rows,
)
from sa1bpack.pixels.yuv420 import planes_to_rgb
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.images.resample import Sampling
from sa1bpack.transforms.memory import Memory

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


def sample_images(sampling: Sampling, memory: Memory) -> torch.Tensor:
    """Resample and normalise images: float32 (B, 3, H, W)."""
    frame, values = sampling.frame, normal(*sampling.normal.values)
    size = height, _ = frame.canvas
    made = memory.empty((len(sampling.images), 3, *size), torch.float32)
    data, target = sampling.images.numpy(), made.numpy()
    lengths, kept = sampling.stored.tolist(), frame.kept(size).tolist()
    if frame.window is None:
        centers = [at.numpy() for at in frame.maps.centers(*size)]
        scales = frame.maps.scale.tolist()
    else:
        given = frame.steps(size), sampling.supports, frame.edges()
        places = [array.numpy() for array in given]

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
    return made
