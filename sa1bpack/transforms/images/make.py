"""The images of a batch, made by what its device has: see `transforms.backends`."""

from dataclasses import dataclass, field

import numpy as np
import torch

from sa1bpack.transforms import backends
from sa1bpack.transforms.geometry.frame import Frame
from sa1bpack.transforms.geometry.steps import Uniform
from sa1bpack.transforms.images.color import ColorJitter
from sa1bpack.transforms.images.compiled import planes_as_rgb, sample_images
from sa1bpack.transforms.images.pixels import normalize, yuv420_to_rgb
from sa1bpack.transforms.images.resample import (
    Sampling,
    channels_first,
    resample,
    resample_affine,
)
from sa1bpack.transforms.memory import Memory, Table

_UNCHANGED = Table(np.array([[0.0] * 3, [1.0] * 3], np.float32))  # a mean and std


@dataclass(frozen=True)
class ImageMaker:
    """Makes the images of batches on one canvas: moved, normalised and cast.

    dtype      of the results, a floating-point type
    normal     float32 (2, 3): mean and std of R, G, B in 0 to 255
    shrinks    the largest factor by which an image may be reduced
    as_stored  whether every pixel of the canvas is that of the stored image
    """

    dtype: torch.dtype
    normal: Table
    shrinks: float
    as_stored: bool
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
        sizes   (B, 4) of the batch
        colors  a step that changes colours, with its random numbers
        """
        device, stored = images.device, sizes[:, 2:]
        compiled = backends.uses_compiled(device)
        if images.dim() == 3:
            images = (planes_as_rgb if compiled else yuv420_to_rgb)(images, stored)
        normal, dtype = (self.normal, self.dtype) if colors is None else (_UNCHANGED, torch.float32)
        sampling = Sampling(images, stored, frame, normal, self.shrinks)
        if compiled:
            made = sample_images(sampling, self._memory)
        else:
            made = backends.launch(device, "images.sample_images", sampling, dtype)
        if made is not None and colors is None:
            return made.to(self.dtype)
        if made is None:
            made = self._resampled(sampling)
        inside = frame.visible(frame.canvas)
        if colors is not None:
            step, uniform = colors
            factors = step.factors(uniform)
            given = made, inside, factors, step.used, self.normal.on(device), self.dtype
            # If the kernel cannot be started, images are as they were.
            done = backends.launch(device, "images.adjust_colors", *given)
            if done is not None:
                return done.to(self.dtype)
            made = step(made, inside[:, None], factors)
        return normalize(made, *self.normal.on(device), inside[:, None]).to(self.dtype)

    def _resampled(self, sampling: Sampling) -> torch.Tensor:
        """float32 (B, 3, H, W), 0 to 255, in torch operations."""
        images, stored, frame = sampling.images, sampling.stored, sampling.frame
        if self.as_stored:
            return channels_first(images).float()
        if frame.window is not None:
            steps, canvas = frame.steps(frame.canvas), frame.canvas
            return resample_affine(images, stored, steps, sampling.supports, canvas, self.shrinks)
        return resample(images, frame.maps, stored.flip(1).double(), frame.canvas)
