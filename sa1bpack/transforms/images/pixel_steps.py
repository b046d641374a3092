"""Steps that change the pixels of each image by itself: colours, blur, erased rectangles.

A step adds what it draws to the `PixelChanges` of a batch; `images.make` applies them, in the order
of the steps, after the images were moved.
"""

from dataclasses import dataclass, replace
from math import log
from typing import Any

import torch
from torch import Tensor

from sa1bpack.arguments import flag, is_number, number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.keywords import checks_options
from sa1bpack.pixels.colors import BRIGHTNESS, CONTRAST, HUE, SATURATION
from sa1bpack.transforms.checks import LEAST, as_numbers, as_range
from sa1bpack.transforms.frame import Frame
from sa1bpack.transforms.geometric_steps import Step, Uniform
from sa1bpack.transforms.images.blur import Blur
from sa1bpack.transforms.images.colors import NEUTRAL, ColorChange
from sa1bpack.transforms.random import in_range
from sa1bpack.wording import brief

MAX_FACTOR = 256.0  # turns the darkest grey into white; far from overflowing float32
MAX_KERNEL = 511  # pixels
MAX_SIGMA = 1000.0  # pixels
MAX_VALUE = 1e4  # of normalised images
ERASING_ATTEMPTS = 10  # as in torchvision
# Weights of a blur below this share of the largest, which float32 cannot tell from none.
_NO_WEIGHT = 1e-10

Range = tuple[float, float]


@dataclass(frozen=True)
class Erasing:
    """The rectangles that are erased.

    Attributes:
        boxes: int64 (B, 4), x0, y0, x1, y1 in pixels of the canvas; empty for none.
        value: what R, G, B become, after normalisation.
        masks: cells of masks and points in the rectangles are erased, too.
    """

    boxes: Tensor
    value: tuple[float, float, float]
    masks: bool


@dataclass(frozen=True)
class PixelChanges:
    """What steps do to the pixels of the images of a batch; None stands for nothing."""

    colors: ColorChange | None = None
    blur: Blur | None = None
    erasing: Erasing | None = None

    def with_colors(self, change: ColorChange) -> "PixelChanges":
        """With a change of colours after those that there are."""
        if self.colors is not None:
            change = self.colors.then(change)
        return replace(self, colors=change)


class PixelStep(Step):
    """A step that changes the pixels of each image by itself."""

    def __call__(self, changes: PixelChanges, frame: Frame, uniform: Uniform) -> PixelChanges:
        """The changes with those of this step.

        Args:
            changes: those of the steps before.
            frame: where the images are.
            uniform: draws the random numbers, see `GeometricStep`.
        """
        raise NotImplementedError


@checks_options
class ColorJitter(PixelStep):
    """Change colours at random, as torchvision's `ColorJitter` does.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.ColorJitter(brightness=0.4, hue=0.1)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(
        self,
        brightness: float | Range = 0.0,
        contrast: float | Range = 0.0,
        saturation: float | Range = 0.0,
        hue: float | Range = 0.0,
        random_order: bool = False,
    ):
        """An operation that cannot change anything, such as one with value 0, is skipped.

        Args:
            brightness, contrast, saturation: a value of 0 to 255, for a factor uniform from
                max(0, 1 - value) to 1 + value; or a range (low, high) of 0 to 256.
            hue: 0 to 0.5, for a shift uniform from -hue to hue as a fraction of 360 degrees; or a
                range (low, high) of -0.5 to 0.5.
            random_order: do the operations in an order that is drawn for each image, as torchvision
                does; otherwise in the order of these arguments.

        Raises:
            OptionError: a value that is out of range.
        """
        self.brightness = as_range("brightness", brightness, 0, MAX_FACTOR, around=1)
        self.contrast = as_range("contrast", contrast, 0, MAX_FACTOR, around=1)
        self.saturation = as_range("saturation", saturation, 0, MAX_FACTOR, around=1)
        self.hue = as_range("hue", hue, -0.5, 0.5, around=0)
        self.random_order = flag("random_order", random_order)

    def __call__(self, changes: PixelChanges, frame: Frame, uniform: Uniform) -> PixelChanges:
        """The changes with the operations and their factors."""
        kinds = self.used
        if not kinds:
            return changes
        ranges = self.ranges
        drawn = uniform(2 * len(ranges))
        factors = torch.stack([in_range(drawn[:, kind], ranges[kind]) for kind in kinds], 1)
        order = torch.stack([torch.full_like(drawn[:, 0], kind).long() for kind in kinds], 1)
        choices: tuple[tuple[int, ...], ...] = tuple((kind,) for kind in kinds)
        if self.random_order and len(kinds) > 1:
            keys = torch.stack([drawn[:, len(ranges) + kind] for kind in kinds], 1)
            places = keys.argsort(1)
            factors = factors.gather(1, places)
            order = order.gather(1, places)
            choices = (kinds,) * len(kinds)
        return changes.with_colors(ColorChange(order, factors.float(), choices))

    def __repr__(self) -> str:
        """As a call, without an option that has its default.

        The text is in the records of features: those that were made before there was the option are
        found again.
        """
        return super().__repr__().replace(", random_order=False", "")

    @property
    def ranges(self) -> tuple[Range, Range, Range, Range]:
        """The ranges of the four factors, by kind."""
        return self.brightness, self.contrast, self.saturation, self.hue

    @property
    def used(self) -> tuple[int, ...]:
        """The kinds of those operations that can change anything."""
        kinds = (BRIGHTNESS, CONTRAST, SATURATION, HUE)
        return tuple(kind for kind in kinds if self.ranges[kind] != (NEUTRAL[kind],) * 2)


@checks_options
class RandomGrayscale(PixelStep):
    """Make some images grey, in all three channels, as torchvision's `RandomGrayscale` does.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomGrayscale(1)], size=256, mean=[0] * 3, std=[255] * 3)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     red, green, blue = pipeline(next(iter(loader)))["images"].unbind(1)
        >>> torch.equal(red, green), torch.equal(red, blue)
        (True, True)
    """

    def __init__(self, p: float = 0.1):
        """
        Args:
            p: probability per image.

        Raises:
            OptionError: `p` is not from 0 to 1.
        """
        self.p = number("p", p, 0, 1)

    def __call__(self, changes: PixelChanges, frame: Frame, uniform: Uniform) -> PixelChanges:
        """The changes with saturation 0 for some images."""
        gray = uniform(1) < self.p  # (B, 1)
        kinds = torch.full_like(gray, SATURATION, dtype=torch.int64)
        factors = torch.where(gray, 0.0, 1.0).float()
        return changes.with_colors(ColorChange(kinds, factors, ((SATURATION,),)))


@checks_options
class GaussianBlur(PixelStep):
    """Blur images, all or some at random, as torchvision's `GaussianBlur` does.

    Lengths are in pixels of the canvas. The edges of an image are those of the part of the canvas
    that it covers: padding does not bleed into it, but corners that a rotation left empty do.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.GaussianBlur(23, (0.1, 2.0), p=0.5)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["images"].shape, batch["masks"].shape
        (torch.Size([2, 3, 256, 256]), torch.Size([2, 8, 64, 64]))
    """

    def __init__(self, kernel_size: int, sigma: float | Range = (0.1, 2.0), p: float = 1.0):
        """
        Args:
            kernel_size: width and height of the filter in pixels: an odd number up to 511.
            sigma: standard deviation in pixels, a number above 0, up to 1000; or a range
                (low, high), from which it is drawn uniformly for each image.
            p: probability per image; torchvision's is always 1.

        Raises:
            OptionError: a value that is out of range.
        """
        self.kernel_size = whole_number("kernel_size", kernel_size, 1, MAX_KERNEL)
        if self.kernel_size % 2 == 0:
            raise OptionError(f"kernel_size is {kernel_size}: choose an odd number")
        limits: Any = sigma
        if is_number(sigma):
            limits = (sigma, sigma)
        self.sigma = as_range("sigma", limits, LEAST, MAX_SIGMA)
        self.p = number("p", p, 0, 1)

    def __call__(self, changes: PixelChanges, frame: Frame, uniform: Uniform) -> PixelChanges:
        """The changes with the filters."""
        drawn = uniform(2)
        blurs = drawn[:, :1] < self.p
        sigma = in_range(drawn[:, 1:], self.sigma)
        taps = torch.arange(self.kernel_size, dtype=torch.float64, device=drawn.device)
        distance = taps - self.kernel_size // 2
        weights = (-0.5 * (distance / sigma).square()).exp()
        weights = torch.where(weights < _NO_WEIGHT, 0.0, weights)
        weights = torch.where(blurs, weights, (distance == 0).double())
        weights = (weights / weights.sum(1, keepdim=True)).float()
        return replace(changes, blur=Blur(weights, frame.kept(frame.canvas)))


@checks_options
class RandomErasing(PixelStep):
    """Erase a rectangle of some images, as torchvision's `RandomErasing` does.

    As in Zhong et al., "Random Erasing Data Augmentation" (2020): area uniform, ratio log-uniform,
    ten attempts, after which an image stays as it is. The area is that of the part of the canvas
    that the image covers. The batch gets `erase_box`, int64 (B, 4), x0, y0, x1, y1 in pixels of the
    canvas, x1 and y1 exclusive; zeros for an image that stays as it is.

    By default only pixels are erased: the model should complete the objects, so masks, boxes and
    points stay. With `masks=True`, the cells of masks whose centre lies in the rectangle become
    False, which `valid` and relations see, and `point_inside` is False for points in it; boxes
    stay.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.RandomErasing(p=1.0)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> x0, y0, x1, y1 = batch["erase_box"][0].tolist()
        >>> batch["images"][0, :, y0:y1, x0:x1].any().item()
        False
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Range = (0.02, 0.33),
        ratio: Range = (0.3, 3.3),
        value: float | tuple[float, float, float] = 0.0,
        masks: bool = False,
    ):
        """
        Args:
            p: probability per image.
            scale: range of the rectangle's fraction of the area of the image, 0 < low <= high <= 1.
            ratio: range of height / width, 0 < low <= high, both finite.
            value: what pixels become, after normalisation: one number, or three for R, G, B, of
                -10000 to 10000. 0 is the mean colour.
            masks: erase cells of masks, and points, as well.

        Raises:
            OptionError: a value that is out of range.
        """
        self.p = number("p", p, 0, 1)
        self.scale = as_range("scale", scale, LEAST, 1)
        self.ratio = as_range("ratio", ratio, LEAST, 1 / LEAST)
        colour: Any = value
        if is_number(value):
            colour = (value,) * 3
        values = as_numbers(colour)
        if len(values) != 3 or max(map(abs, values)) > MAX_VALUE:
            raise OptionError(
                f"value is {brief(value)}: choose one number, or three for R, G, B, of "
                f"{-MAX_VALUE:g} to {MAX_VALUE:g}, in units of normalised images"
            )
        self.value = (values[0], values[1], values[2])
        self.masks = flag("masks", masks)

    def __call__(self, changes: PixelChanges, frame: Frame, uniform: Uniform) -> PixelChanges:
        """The changes with the rectangles."""
        drawn = uniform(3 + 2 * ERASING_ATTEMPTS)
        covered = frame.kept(frame.canvas)  # rows and columns
        tried = drawn[:, 3:].view(len(drawn), ERASING_ATTEMPTS, 2)
        area = in_range(tried[..., 0], self.scale) * covered.prod(1, keepdim=True)
        logarithms = (log(self.ratio[0]), log(self.ratio[1]))
        ratio = in_range(tried[..., 1], logarithms).exp()
        sides = torch.stack([area * ratio, area / ratio], 2).sqrt().round().long()
        fits = (sides < covered[:, None]).all(2)
        first = fits.byte().argmax(1)
        chosen = sides[torch.arange(len(sides), device=sides.device), first]
        start = (drawn[:, 1:3] * (covered - chosen + 1)).floor().long()
        corners = torch.cat([start.flip(1), (start + chosen).flip(1)], 1)
        erases = (drawn[:, 0] < self.p) & fits.any(1)
        boxes = torch.where(erases[:, None], corners, 0)
        return replace(changes, erasing=Erasing(boxes, self.value, self.masks))
