"""Steps that place the image on the canvas: flip, scale jitter, random resized crop.

A geometric step moves no pixels. It maps a `Frame` to the next one, and the pipeline moves images,
masks, boxes and points with the map of the last frame, each exactly once.
"""

from collections.abc import Callable

import torch

from sa1bpack.errors import OptionError
from sa1bpack.transforms.geometry.affine import AxisMaps
from sa1bpack.transforms.geometry.frame import Frame
from sa1bpack.transforms.options import as_numbers, is_number

Uniform = Callable[[int], torch.Tensor]

CROP_ATTEMPTS = 10  # as in torchvision


class GeometricStep:
    """A step from one frame to the next; the base class for custom steps.

    shrinks  the largest factor by which the step may reduce an image; 1 for never
    """

    shrinks = 1.0

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """Return the next frame.

        uniform(n), to be called once, returns float64 (B, n) in [0, 1) that depend on the seed, the
        epoch, the image and the position of the step in the pipeline.
        """
        raise NotImplementedError


class RandomFlip(GeometricStep):
    """Mirror left and right; padding stays to the right of and below the image."""

    def __init__(self, p: float = 0.5):
        """p: probability per image. Raises OptionError unless it is from 0 to 1."""
        if not is_number(p) or not 0 <= p <= 1:
            raise OptionError(f"p is {p!r}: choose a probability from 0 to 1")
        self.p = p

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with some images mirrored."""
        flips = uniform(1) < self.p  # (B, 1)
        scale = torch.ones_like(frame.extent)
        scale[:, :1] = torch.where(flips, -1.0, 1.0)
        offset = torch.zeros_like(frame.extent)
        offset[:, :1] = torch.where(flips, frame.extent[:, :1], 0.0)
        return frame.step(AxisMaps(scale, offset), frame.extent)


class ScaleJitter(GeometricStep):
    """Scale, then crop randomly where the image is too large and pad where it is too small.

    The scale is uniform in a range; 1 keeps the image at the size that fits the canvas. 0.1 to 2 is
    the large-scale jittering of Ghiasi et al., "Simple Copy-Paste is a Strong Data Augmentation
    Method for Instance Segmentation" (2021), with crop and padding as in Detectron2's
    `FixedSizeCrop`.
    """

    def __init__(self, low: float = 0.1, high: float = 2.0):
        """low, high: the range of the scale, finite. Raises OptionError unless 0 < low <= high."""
        if not (is_number(low) and is_number(high) and 0 < low <= high):
            raise OptionError(
                f"low is {low!r} and high {high!r}: choose 0 < low <= high, both finite"
            )
        self.low, self.high = low, high
        self.shrinks = max(1.0, 1 / low)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with images scaled, cropped and padded."""
        drawn = uniform(3)
        scale = self.low + (self.high - self.low) * drawn[:, :1]
        extent = frame.extent * scale
        offset = drawn[:, 1:] * (extent - frame.sides).clamp(min=0)
        maps = AxisMaps((1 / scale).expand(-1, 2), offset / scale)
        return frame.step(maps, torch.minimum(extent, frame.sides))


class RandomResizedCrop(GeometricStep):
    """Cut out a rectangle and stretch it over the full canvas.

    Area and aspect ratio are drawn as in torchvision's `RandomResizedCrop` (Szegedy et al., "Going
    Deeper with Convolutions", 2015): area uniform, ratio log-uniform, ten attempts, and after them
    the largest rectangle with an allowed ratio. Unlike there, the rectangle is not rounded to whole
    pixels. `area` and `ratio` refer to the part of the canvas that the image covers, before
    stretching.
    """

    def __init__(
        self,
        area: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ):
        """
        Args:
            area: range of the rectangle's fraction of the image, 0 < low <= high <= 1.
            ratio: range of width / height, 0 < low <= high, both finite.

        Raises:
            OptionError: an invalid range.
        """
        areas, ratios = as_numbers(area), as_numbers(ratio)
        if len(areas) != 2 or not 0 < areas[0] <= areas[1] <= 1:
            raise OptionError(f"area is {area!r}: choose a range with 0 < low <= high <= 1")
        if len(ratios) != 2 or not 0 < ratios[0] <= ratios[1]:
            raise OptionError(
                f"ratio is {ratio!r}: choose a range with 0 < low <= high, both finite"
            )
        self.area, self.ratio = areas, ratios

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame of the rectangles."""
        drawn = uniform(2 * CROP_ATTEMPTS + 2)
        sides = self._sides(frame.extent, drawn[:, 2:].view(len(drawn), CROP_ATTEMPTS, 2))
        offset = drawn[:, :2] * (frame.extent - sides)
        maps = AxisMaps(sides / frame.sides, offset)
        return frame.step(maps, frame.sides.expand_as(frame.extent))

    def _sides(self, extent: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """float64 (B, 2): width and height of the rectangles, from numbers (B, attempts, 2)."""
        low, high = self.ratio
        area = self.area[0] + (self.area[1] - self.area[0]) * drawn[..., 0]
        ratio = low * (high / low) ** drawn[..., 1]
        whole = extent.prod(1, keepdim=True)
        tried = torch.stack([area * whole * ratio, area * whole / ratio], 2).sqrt()
        fits = (tried <= extent[:, None]).all(2)
        first = fits.byte().argmax(1)
        found = tried[torch.arange(len(tried), device=tried.device), first]
        width, height = extent.unbind(1)
        largest = torch.stack(
            [torch.minimum(width, height * high), torch.minimum(height, width / low)], 1
        )
        return torch.where(fits.any(1, keepdim=True), found, largest)
