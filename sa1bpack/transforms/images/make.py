"""The images of a batch, made by what its device has, see `transforms.backends`.

Compiled kernels on a CPU have the results of the torch operations of other devices (`resample`,
`pixels`), but for rounding. Each pixel is written once, where it belongs, in as many threads as
torch may use.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
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
from sa1bpack.transforms import backends
from sa1bpack.transforms.backends import Job, run_jobs
from sa1bpack.transforms.geometry.frame import Frame
from sa1bpack.transforms.geometry.steps import Uniform
from sa1bpack.transforms.host import on_device, sent
from sa1bpack.transforms.images.color import ColorJitter
from sa1bpack.transforms.images.pixels import normalize, yuv420_to_rgb
from sa1bpack.transforms.images.resample import Sampling, channels_first, resample, resample_affine
from sa1bpack.transforms.memory import Memory, Table

_UNCHANGED = Table(np.array([[0.0] * 3, [1.0] * 3], np.float32))  # a mean and std


@dataclass(frozen=True)
class ImageMaker:
    """Makes the images of batches of a dataset: moved, normalised and cast.

    dtype      of the results, a floating-point type
    normal     float32 (2, 3): mean and std of R, G, B in 0 to 255
    side       S, of the stored canvas
    geometric  whether steps move the images
    shrinks    the largest factor by which they may reduce an image
    """

    dtype: torch.dtype
    normal: Table
    side: int
    geometric: bool
    shrinks: float
    _memory: Memory = field(default_factory=Memory)

    def __call__(
        self,
        images: torch.Tensor,
        sizes: torch.Tensor,
        frame: Frame,
        colors: tuple[ColorJitter, Uniform] | None,
    ) -> torch.Tensor:
        """`dtype` (B, 3, H, W), normalised, zero outside the images.

        images  of the batch: RGB (B, S, S, 3) or planes (B, S * 3 / 2, S), uint8
        sizes   (B, 4) of the batch, on the device of the frame
        colors  a step that changes colours, with its random numbers
        """
        device, stored = images.device, sizes[:, 2:]
        compiled = backends.uses_compiled(device)
        if images.dim() == 3:
            convert = planes_as_rgb if compiled else yuv420_to_rgb
            images = convert(images, *sent([stored], device))
        normal, dtype = (self.normal, self.dtype) if colors is None else (_UNCHANGED, torch.float32)
        sampling = Sampling(images, stored, frame, normal, self.most(frame))
        if compiled:
            made = sample_images(sampling, self._memory)
        else:
            made = backends.launch(device, "images.sample_images", sampling, dtype)
        if made is not None and colors is None:
            return made.to(self.dtype)
        if made is None:
            made = self._resampled(on_device(sampling, device))
        inside = on_device(frame, device).visible(frame.canvas)
        if colors is not None:
            step, uniform = colors
            [factors] = sent([step.factors(uniform)], device)
            given = made, inside, factors, step.used, self.normal.on(device), self.dtype
            # If the kernel cannot be started, images are as they were.
            done = backends.launch(device, "images.adjust_colors", *given)
            if done is not None:
                return done.to(self.dtype)
            made = step(made, inside[:, None], factors)
        return normalize(made, *self.normal.on(device), inside[:, None]).to(self.dtype)

    def most(self, frame: Frame) -> float:
        """The largest factor by which an image may be reduced on a canvas."""
        return self.shrinks * self.side / min(frame.canvas)

    def _resampled(self, sampling: Sampling) -> torch.Tensor:
        """float32 (B, 3, H, W), 0 to 255, in torch operations."""
        images, stored, frame = sampling.images, sampling.stored, sampling.frame
        if not self.geometric and frame.canvas == (self.side, self.side):
            return channels_first(images).float()
        if frame.window is not None:
            steps, most = frame.steps(frame.canvas), sampling.shrinks
            return resample_affine(images, stored, steps, sampling.supports, frame.canvas, most)
        return resample(images, frame.maps, stored.flip(1).double(), frame.canvas)


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
