"""The images of a batch: moved, changed, normalised and cast by what their device has.

See `transforms.backends`. Compiled and Triton kernels normalise and cast while they resample; if
colours are changed in between, what they write has bytes' values in float32. Images are blurred,
and rectangles erased, when they are normalised.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sa1bpack.transforms.backends import launch, uses_compiled
from sa1bpack.transforms.frame import Frame, in_boxes
from sa1bpack.transforms.host import on_device, sent
from sa1bpack.transforms.images.blur import blurred
from sa1bpack.transforms.images.colors import ColorChange, change_by_kernel, change_with_torch
from sa1bpack.transforms.images.pixel_steps import Erasing, PixelChanges
from sa1bpack.transforms.images.pixels import normalize, yuv420_to_rgb
from sa1bpack.transforms.images.resample import Sampling, sample_compiled, sample_with_torch
from sa1bpack.transforms.memory import Memory, Table

_UNCHANGED = Table(np.array([[0.0] * 3, [1.0] * 3], np.float32))  # a mean and std


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
        self, images: Tensor, sizes: Tensor, frame: Frame, changes: PixelChanges
    ) -> Tensor:
        """`dtype` (B, 3, H, W), normalised, zero outside the images.

        Args:
            images: uint8, the images of the batch: RGB (B, S, S, 3) or planes (B, S * 3 / 2, S); on
                the canvas of a class of aspect, (B, H, W, 3) or (B, H * 3 / 2, W).
            sizes: (B, 4), sizes of the batch in pixels, on the device of the frame.
            frame: frame of the images.
            changes: what else is done to them.
        """
        device = images.device
        stored = sizes[:, 2:]
        if images.dim() == 3:
            images = yuv420_to_rgb(images, stored)
        dtype = self.dtype
        if changes.blur is not None:  # which is done to float32
            dtype = torch.float32
        result = self._sampled(images, stored, frame, changes.colors, dtype)
        if changes.blur is not None:
            result = blurred(result, changes.blur, self._memory)
            if frame.window is not None:
                shown = on_device(frame, device).visible(frame.canvas)
                result.masked_fill_(~shown[:, None], 0)
        result = result.to(self.dtype)
        if changes.erasing is not None:
            _erase(result, changes.erasing)
        return result

    def _sampled(
        self,
        images: Tensor,
        stored: Tensor,
        frame: Frame,
        colors: ColorChange | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """(B, 3, H, W), moved, recoloured and normalised: of `dtype`, or float32.

        Args:
            images: uint8 (B, S, S, 3).
            stored: (B, 2), height and width of the stored images.
            frame: frame of the images.
            colors: how colours change; None: they do not.
            dtype: the type that is wanted.
        """
        device = images.device
        normal = self.normal
        sampled_dtype = dtype
        if colors is not None:  # between resampling and normalising
            normal = _UNCHANGED
            sampled_dtype = torch.float32
        sampling = Sampling(images, stored, frame, normal, self.most(frame))
        sampled = self._sample_by_kernel(sampling, sampled_dtype)
        if sampled is not None and colors is None:
            return sampled
        frame = on_device(frame, device)
        if sampled is None:
            whole = (self.side, self.side)
            unmoved = not self.geometric and frame.canvas == images.shape[1:3] == whole
            sampled = sample_with_torch(sampling, frame, unmoved)
        inside = frame.visible(frame.canvas)
        if colors is None:
            return self._normalize(sampled, inside)
        return self._recolored(sampled, inside, colors, dtype)

    def _recolored(
        self, sampled: Tensor, inside: Tensor, colors: ColorChange, dtype: torch.dtype
    ) -> Tensor:
        """Images (B, 3, H, W) with other colours, normalised: of `dtype`, or float32.

        Args:
            sampled: float32 (B, 3, H, W), 0 to 255; may be overwritten.
            inside: bool (B, H, W), True where the images are.
            colors: how colours change.
            dtype: the type that is wanted.
        """
        device = sampled.device
        if uses_compiled(device):
            change_by_kernel(sampled, inside, colors, self.normal)
            return sampled
        colors = on_device(colors, device)
        normal = self.normal.on(device)
        adjusted: Tensor | None = launch(
            device, "colors.adjust_colors", sampled, inside, colors, normal, dtype
        )
        if adjusted is not None:
            return adjusted
        # If the kernel cannot be started, images are as they were.
        return self._normalize(change_with_torch(sampled, inside[:, None], colors), inside)

    def _normalize(self, images: Tensor, inside: Tensor) -> Tensor:
        """float32 (B, 3, H, W) normalised, zero outside: inside is bool (B, H, W)."""
        mean, std = self.normal.on(images.device)
        return normalize(images, mean, std, inside[:, None])

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


def _erase(images: Tensor, erasing: Erasing) -> None:
    """Erase rectangles of images (B, 3, H, W), in place."""
    if uses_compiled(images.device):
        # A tenth of the time of the operation below, which passes over all pixels.
        colour = torch.tensor(erasing.value, dtype=images.dtype, device="cpu")[:, None, None]
        for image, (x0, y0, x1, y1) in zip(images, erasing.boxes.tolist(), strict=True):
            image[:, y0:y1, x0:x1] = colour
        return
    [boxes] = sent([erasing.boxes], images.device)
    canvas = (images.shape[2], images.shape[3])
    erased = in_boxes(boxes, canvas, canvas)
    for channel, value in zip(images.unbind(1), erasing.value, strict=True):
        channel.masked_fill_(erased, value)
