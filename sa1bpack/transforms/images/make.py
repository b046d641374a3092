"""The images of a batch: moved, recoloured, normalised and cast by what their device has.

See `transforms.backends`. Compiled and Triton kernels normalise and cast while they resample; if
colours are changed in between, what they write has bytes' values in float32.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sa1bpack.transforms.backends import launch, uses_compiled
from sa1bpack.transforms.frame import Frame
from sa1bpack.transforms.host import on_device, sent
from sa1bpack.transforms.images.pixels import normalize, yuv420_to_rgb
from sa1bpack.transforms.images.resample import Sampling, sample_compiled, sample_with_torch
from sa1bpack.transforms.images.steps import ColorJitter
from sa1bpack.transforms.memory import Memory, Table

_UNCHANGED = Table(np.array([[0.0] * 3, [1.0] * 3], np.float32))  # a mean and std


class Recoloring(NamedTuple):
    """A step that changes colours, and its factors of each image: float32 (B, 4), on any device."""

    step: ColorJitter
    factors: Tensor


@dataclass(frozen=True)
class ImageMaker:
    """Make the images of batches of a dataset: moved, normalised and cast.

    Attributes:
        dtype: type of the results, a floating-point type.
        normal: float32 (2, 3), mean and std of R, G, B in 0 to 255.
        side: S, side of the stored canvas in pixels.
        geometric: steps move the images.
        shrinks: the largest factor by which they may reduce an image.
    """

    dtype: torch.dtype
    normal: Table
    side: int
    geometric: bool
    shrinks: float
    _memory: Memory = field(default_factory=Memory)

    def __call__(
        self,
        images: Tensor,
        sizes: Tensor,
        frame: Frame,
        recoloring: Recoloring | None,
    ) -> Tensor:
        """`dtype` (B, 3, H, W), normalised, zero outside the images.

        Args:
            images: uint8, the images of the batch: RGB (B, S, S, 3) or planes (B, S * 3 / 2, S).
            sizes: (B, 4), sizes of the batch in pixels, on the device of the frame.
            frame: frame of the images.
            recoloring: how colours change; None: they do not.
        """
        device = images.device
        stored = sizes[:, 2:]
        if images.dim() == 3:
            images = yuv420_to_rgb(images, *sent([stored], device))
        normal = self.normal
        dtype = self.dtype
        if recoloring is not None:  # between resampling and normalising
            normal = _UNCHANGED
            dtype = torch.float32
        sampling = Sampling(images, stored, frame, normal, self.most(frame))
        sampled = self._sample_by_kernel(sampling, dtype)
        if sampled is not None and recoloring is None:
            return sampled.to(self.dtype)
        frame = on_device(frame, device)
        if sampled is None:
            unmoved = not self.geometric and frame.canvas == (self.side, self.side)
            sampled = sample_with_torch(sampling, frame, unmoved)
        inside = frame.visible(frame.canvas)
        if recoloring is None:
            return self._normalize(sampled, inside)
        step = recoloring.step
        [factors] = sent([recoloring.factors], device)
        adjusted: Tensor | None = launch(
            device,
            "images.adjust_colors",
            *(sampled, inside, factors, step.used, self.normal.on(device), self.dtype),
        )
        if adjusted is not None:
            return adjusted.to(self.dtype)
        # If the kernel cannot be started, images are as they were.
        return self._normalize(step(sampled, inside[:, None], factors), inside)

    def _normalize(self, images: Tensor, inside: Tensor) -> Tensor:
        """float32 (B, 3, H, W) normalised and cast, zero outside: inside is bool (B, H, W)."""
        mean, std = self.normal.on(images.device)
        return normalize(images, mean, std, inside[:, None]).to(self.dtype)

    def _sample_by_kernel(self, sampling: Sampling, dtype: torch.dtype) -> Tensor | None:
        """Images by compiled or Triton kernels; None if the device has none."""
        device = sampling.images.device
        if uses_compiled(device):
            return sample_compiled(sampling, self._memory)
        sampled: Tensor | None = launch(device, "images.sample_images", sampling, dtype)
        return sampled

    @property
    def tables(self) -> tuple[Table, ...]:
        """The constants that are read on the device of the images."""
        return self.normal, _UNCHANGED

    def most(self, frame: Frame) -> float:
        """The largest factor by which an image may be reduced on a canvas."""
        return self.shrinks * self.side / min(frame.canvas)
