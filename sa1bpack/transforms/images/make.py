"""The images of a batch, made by what its device has: see `transforms.backends`."""

from collections.abc import Sequence

import numpy as np
import torch

from sa1bpack.pixels.resample import normal
from sa1bpack.transforms import backends
from sa1bpack.transforms.geometry.frame import Frame
from sa1bpack.transforms.geometry.steps import Uniform
from sa1bpack.transforms.images.color import ColorJitter
from sa1bpack.transforms.images.compiled import planes_as_rgb, resample_images
from sa1bpack.transforms.images.pixels import normalize, yuv420_to_rgb
from sa1bpack.transforms.images.resample import (
    channels_first,
    enlarge,
    resample,
    resample_affine,
    supports,
)
from sa1bpack.transforms.memory import Memory, Table

_ZEROS, _ONES = np.zeros(3, np.float32), np.ones(3, np.float32)
# What does not change bytes, for the kernels of a CPU and of a device.
_UNCHANGED, _UNCHANGED_TABLE = normal(_ZEROS, _ONES), Table(np.stack([_ZEROS, _ONES]))


class ImageMaker:
    """Makes the images of batches on one canvas: moved, normalised and cast."""

    def __init__(
        self,
        canvas: tuple[int, int],
        dtype: torch.dtype,
        mean: Sequence[float],
        std: Sequence[float],
        shrinks: float,
        as_stored: bool,
    ):
        """
        canvas     (H, W) in pixels
        dtype      of the results, a floating-point type
        mean, std  of R, G, B in 0 to 255
        shrinks    the largest factor by which an image may be reduced
        as_stored  whether every pixel of the canvas is that of the stored image
        """
        self.canvas, self.dtype = canvas, dtype
        self._shrinks, self._as_stored = shrinks, as_stored
        means, stds = np.array(mean, np.float32), np.array(std, np.float32)
        self._normal, self._table = normal(means, stds), Table(np.stack([means, stds]))
        self._memory = Memory()

    def __call__(
        self,
        images: torch.Tensor,
        sizes: torch.Tensor,
        frame: Frame,
        colors: Sequence[tuple[ColorJitter, Uniform]],
    ) -> torch.Tensor:
        """`dtype` (B, 3, H, W), normalised, zero outside the images.

        images  of the batch: RGB (B, S, S, 3) or planes (B, S * 3 / 2, S), uint8
        sizes   (B, 4) of the batch
        colors  steps that change colours, each with its random numbers
        """
        device, stored, made = images.device, sizes[:, 2:], None
        compiled = device.type in backends.COMPILED_ON
        if images.dim() == 3:
            images = (planes_as_rgb if compiled else yuv420_to_rgb)(images, stored)
        if compiled:
            made = self._memory.empty((len(images), 3, *self.canvas), torch.float32)
            values = _UNCHANGED if colors else self._normal
            resample_images(images, stored, frame, values, self._shrinks, made)
        else:
            table, dtype = (
                (_UNCHANGED_TABLE, torch.float32) if colors else (self._table, self.dtype)
            )
            given = images, stored, frame, table.on(device), self._shrinks, dtype
            made = backends.launch(device, "images.sample_images", *given)
        if made is not None and not colors:
            return made.to(self.dtype)
        if made is None:
            made = self._resampled(images, stored, frame)
        inside = frame.visible(self.canvas)
        if len(colors) == 1 and backends.uses_triton(device, "images.adjust_colors"):
            [(step, uniform)] = colors
            given = made, inside, step.factors(uniform), step.used, self._table.on(device)
            # If the kernel cannot be started, images are as they were.
            done = backends.launch(device, "images.adjust_colors", *given, self.dtype)
            if done is not None:
                return done.to(self.dtype)
        inside = inside[:, None]
        for step, uniform in colors:
            made = step(made, inside, uniform)
        return normalize(made, *self._table.on(device), inside).to(self.dtype)

    def normalization(self, device: torch.device) -> dict[str, torch.Tensor]:
        """`pixel_mean` and `pixel_std` of a batch: float32 (3,) each, R, G, B in 0 to 255."""
        mean, std = self._table.on(device)
        return {"pixel_mean": mean.clone(), "pixel_std": std.clone()}

    def _resampled(self, images: torch.Tensor, stored: torch.Tensor, frame: Frame) -> torch.Tensor:
        """float32 (B, 3, H, W), 0 to 255, in torch operations."""
        if self._as_stored:
            return channels_first(images).float()
        if frame.window is not None:
            support, most = supports(frame.maps, self._shrinks), self._shrinks
            return resample_affine(
                images, stored, frame.steps(self.canvas), support, self.canvas, most
            )
        by = enlarge if self._shrinks <= 1 else resample
        return by(images, frame.maps, stored.flip(1).double(), self.canvas)
