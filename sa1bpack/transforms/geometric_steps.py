"""Steps that move the image: flips, scale jitter, crops, rotation and shear.

A geometric step moves no pixels. It maps a `Frame` to the next one, and the pipeline moves images,
masks, boxes and points with the map of the last frame, each exactly once.
"""

from collections.abc import Callable
from math import radians, sqrt, tan

import torch
from torch import Tensor

from sa1bpack.arguments import number
from sa1bpack.display import call_text
from sa1bpack.keywords import checks_options
from sa1bpack.transforms.checks import LEAST, as_range
from sa1bpack.transforms.frame import Frame
from sa1bpack.transforms.maps import AffineMaps, AxisMaps
from sa1bpack.transforms.random import in_range

Uniform = Callable[[int], Tensor]

CROP_ATTEMPTS = 10  # as in torchvision


class Step:
    """The base class of all steps of a pipeline."""

    def __repr__(self) -> str:
        return call_text(self)


@checks_options
class GeometricStep(Step):
    """A step from one frame to the next; the base class for custom steps.

    Attributes:
        shrinks: the largest factor by which the step may reduce an image; 1 for never.

    Examples:
        >>> issubclass(T.RandomHorizontalFlip, T.GeometricStep), T.RandomHorizontalFlip.shrinks
        (True, 1.0)
    """

    shrinks = 1.0

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The next frame.

        uniform(n), to be called once, returns float64 (B, n) in [0, 1) that depend on the seed, the
        epoch, the image and the position of the step in the pipeline; on the device of the frame,
        which for a batch of a Loader is the CPU, wherever its images are.
        """
        raise NotImplementedError


@checks_options
class RandomHorizontalFlip(GeometricStep):
    """Mirror left and right; padding stays to the right of and below the image.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomHorizontalFlip()], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, p: float = 0.5):
        """
        Args:
            p: probability per image.

        Raises:
            OptionError: `p` is not from 0 to 1.
        """
        self.p = number("p", p, 0, 1)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with some images mirrored."""
        return _mirrored(frame, uniform(1)[:, 0] < self.p, axis=0)


@checks_options
class RandomVerticalFlip(GeometricStep):
    """Mirror top and bottom; padding stays to the right of and below the image.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomVerticalFlip()], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, p: float = 0.5):
        """
        Args:
            p: probability per image.

        Raises:
            OptionError: `p` is not from 0 to 1.
        """
        self.p = number("p", p, 0, 1)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with some images mirrored."""
        return _mirrored(frame, uniform(1)[:, 0] < self.p, axis=1)


def _mirrored(frame: Frame, flips: Tensor, axis: int) -> Frame:
    """The frame with some images, bool (B,), mirrored along an axis: 0 is x, 1 is y."""
    scale = torch.ones_like(frame.extent)
    scale[:, axis] = torch.where(flips, -1.0, 1.0)
    offset = torch.zeros_like(frame.extent)
    offset[:, axis] = torch.where(flips, frame.extent[:, axis], 0.0)
    return frame.step(AxisMaps(scale, offset), frame.extent)


@checks_options
class ScaleJitter(GeometricStep):
    """Scale, then crop randomly where the image is too large and pad where it is too small.

    The scale is uniform in a range; 1 keeps the image at the size that fits the canvas. 0.1 to 2 is
    the large-scale jittering of Ghiasi et al., "Simple Copy-Paste is a Strong Data Augmentation
    Method for Instance Segmentation" (2021), with crop and padding as in Detectron2's
    `FixedSizeCrop`.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.ScaleJitter(0.5, 2.0)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, low: float = 0.1, high: float = 2.0):
        """
        Args:
            low, high: range of the scale.

        Raises:
            OptionError: not 1e-6 <= low <= high <= 1e6.
        """
        self.low, self.high = as_range("(low, high)", (low, high), LEAST, 1 / LEAST)
        self.shrinks = max(1.0, 1 / self.low)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with images scaled, cropped and padded."""
        drawn = uniform(3)
        scale = in_range(drawn[:, :1], (self.low, self.high))
        extent = frame.extent * scale
        offset = drawn[:, 1:] * (extent - frame.sides).clamp(min=0)
        maps = AxisMaps((1 / scale).expand(-1, 2), offset / scale)
        return frame.step(maps, torch.minimum(extent, frame.sides))


@checks_options
class RandomResizedCrop(GeometricStep):
    """Cut out a rectangle and stretch it over the full canvas.

    Area and aspect ratio are drawn as in torchvision's `RandomResizedCrop` (Szegedy et al., "Going
    Deeper with Convolutions", 2015): area uniform, ratio log-uniform, ten attempts, and after them
    the largest rectangle with an allowed ratio. Unlike there, the rectangle is not rounded to whole
    pixels. `scale` and `ratio` refer to the part of the canvas that the image covers, before
    stretching.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomResizedCrop(scale=(0.25, 1.0))], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(
        self, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ):
        """
        Args:
            scale: range of the rectangle's fraction of the area of the image, 0 < low <= high <= 1.
            ratio: range of width / height, 0 < low <= high, both finite.

        Raises:
            OptionError: an invalid range.
        """
        self.scale = as_range("scale", scale, LEAST, 1)
        self.ratio = as_range("ratio", ratio, LEAST, 1 / LEAST)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame of the rectangles."""
        drawn = uniform(2 * CROP_ATTEMPTS + 2)
        sides = self._sides(frame.extent, drawn[:, 2:].view(len(drawn), CROP_ATTEMPTS, 2))
        offset = drawn[:, :2] * (frame.extent - sides)
        maps = AxisMaps(sides / frame.sides, offset)
        return frame.step(maps, frame.sides.expand_as(frame.extent))

    def _sides(self, extent: Tensor, drawn: Tensor) -> Tensor:
        """float64 (B, 2): width and height of the rectangles, from numbers (B, attempts, 2)."""
        low, high = self.ratio
        area = in_range(drawn[..., 0], self.scale)
        ratio = low * (high / low) ** drawn[..., 1]
        whole = extent.prod(1, keepdim=True)
        tried = torch.stack([area * whole * ratio, area * whole / ratio], 2).sqrt()
        fits = (tried <= extent[:, None]).all(2)
        first = fits.byte().argmax(1)
        fitting = tried[torch.arange(len(tried), device=tried.device), first]
        width, height = extent.unbind(1)
        largest = [torch.minimum(width, height * high), torch.minimum(height, width / low)]
        return torch.where(fits.any(1, keepdim=True), fitting, torch.stack(largest, 1))


@checks_options
class CenterCrop(GeometricStep):
    """Cut out the middle and enlarge it to the canvas, for evaluation: nothing is random.

    The part has the aspect ratio of the canvas. With `fraction` 1 it is the largest in the image:
    on a square canvas, the shorter side of the image becomes that of the canvas. A smaller fraction
    leaves out more on all sides: resizing the shorter side to 256 and cropping 224 x 224 pixels is
    `CenterCrop(224 / 256)` with `size=224`.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.CenterCrop()], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, fraction: float = 1.0):
        """
        Args:
            fraction: fraction of the sides of the largest part.

        Raises:
            OptionError: not 0 < fraction <= 1.
        """
        self.fraction = number("fraction", fraction, LEAST, 1)

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame of the middle."""
        scale = (frame.extent / frame.sides).amin(1, keepdim=True) * self.fraction
        offset = (frame.extent - scale * frame.sides) / 2
        whole = frame.sides.expand_as(frame.extent)
        return frame.step(AxisMaps(scale.expand(-1, 2), offset), whole)


@checks_options
class RandomAffine(GeometricStep):
    """Shear and rotate by random angles around the middle of the image.

    As in torchvision's `RandomAffine`, the rectangle that the image covered remains: what leaves it
    is cut off, and its empty corners are zero, as padding is. A pipeline may have one such step.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomAffine(degrees=15, shear=5)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(
        self, degrees: float | tuple[float, float] = 0.0, shear: float | tuple[float, float] = 0.0
    ):
        """
        Args:
            degrees: angle of the rotation, clockwise: a number of 0 to 180, for an angle uniform
                from -degrees to degrees; or a range (low, high) of -180 to 180.
            shear: angle of vertical lines in degrees, clockwise before the rotation: a number of 0
                to 60 or a range of -60 to 60.

        Raises:
            OptionError: a value that is out of range.
        """
        self.degrees = as_range("degrees", degrees, -180, 180, around=0)
        self.shear = as_range("shear", shear, -60, 60, around=0)
        steepest = max(abs(tan(radians(angle))) for angle in self.shear)
        # The norm of [[1, t], [0, 1]]: what it reduces most.
        self.shrinks = (steepest + sqrt(steepest**2 + 4)) / 2

    def __call__(self, frame: Frame, uniform: Uniform) -> Frame:
        """The frame with images sheared and rotated."""
        drawn = uniform(2)
        angle = torch.deg2rad(in_range(drawn[:, 0], self.degrees))
        shear = torch.deg2rad(in_range(drawn[:, 1], self.shear))
        # On the canvas, y down, an image is sheared by [[1, -t], [0, 1]] and then rotated by
        # [[c, -s], [s, c]]; its pixels come from the inverse.
        c = angle.cos()
        s = angle.sin()
        t = shear.tan()
        linear = torch.stack([c - t * s, s + t * c, -s, c], 1).view(-1, 2, 2)
        middle = frame.extent / 2
        rotated = AffineMaps(linear, torch.zeros_like(middle)).apply(middle)
        return frame.step(AffineMaps(linear, middle - rotated), frame.extent)
