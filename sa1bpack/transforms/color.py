"""Colour jitter: brightness, contrast, saturation and hue, drawn for each image.

The four are those of torchvision's `ColorJitter`, on values of 0 to 255 that are not rounded in
between. One thing differs: torchvision shuffles them for every image; here they always follow each
other in the order of the arguments. In a batch every image would otherwise have to go through every
one of them four times.
"""

import torch

from sa1bpack.errors import OptionError
from sa1bpack.transforms.geometric import Uniform

# Luma of ITU-R BT.601, as torchvision's rgb_to_grayscale rounds it.
LUMA = (0.2989, 0.587, 0.114)


class ColorJitter:
    """Change colours at random, as torchvision's `ColorJitter` does."""

    def __init__(
        self,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        hue: float = 0.0,
    ):
        """
        Args:
            brightness, contrast, saturation: the factor is uniform from max(0, 1 - value) to
                1 + value. 0 leaves the step out.
            hue: the hue is turned by a part of a full turn, uniform from -hue to hue; 0 to 0.5.

        Raises:
            OptionError: a value that is out of range.
        """
        for name, value, most in (
            ("brightness", brightness, float("inf")),
            ("contrast", contrast, float("inf")),
            ("saturation", saturation, float("inf")),
            ("hue", hue, 0.5),
        ):
            if not 0 <= value <= most:
                raise OptionError(f"{name} is {value!r}: give a number from 0 to {most:g}")
        self.brightness, self.contrast = brightness, contrast
        self.saturation, self.hue = saturation, hue

    def __call__(
        self, images: torch.Tensor, inside: torch.Tensor, uniform: Uniform
    ) -> torch.Tensor:
        """Change images (B, 3, H, W) float32, 0 to 255, which may be overwritten.

        inside   bool (B, 1, H, W), true where there is an image and no padding
        uniform  as of a geometric step
        """
        drawn = (2 * uniform(4) - 1).float()[:, :, None, None, None]  # (B, 4, 1, 1, 1)
        if self.brightness:
            images = adjust_brightness(images, _factor(self.brightness, drawn[:, 0]))
        if self.contrast:
            images = adjust_contrast(images, _factor(self.contrast, drawn[:, 1]), inside)
        if self.saturation:
            images = adjust_saturation(images, _factor(self.saturation, drawn[:, 2]))
        if self.hue:
            images = adjust_hue(images, self.hue * drawn[:, 3])
        return images


def _factor(spread: float, drawn: torch.Tensor) -> torch.Tensor:
    """Uniform from max(0, 1 - spread) to 1 + spread, from numbers of -1 to 1."""
    low, high = max(0.0, 1 - spread), 1 + spread
    return low + (high - low) * (drawn + 1) / 2


# ------------------------------------------------------------------------- one image, one factor
# images: float32 (B, 3, H, W), 0 to 255; may be overwritten. factor: float32 (B, 1, 1, 1).


def adjust_brightness(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Mix with black: factor * image."""
    return images.mul_(factor).clamp_(0, 255)


def adjust_contrast(
    images: torch.Tensor, factor: torch.Tensor, inside: torch.Tensor
) -> torch.Tensor:
    """Mix with the mean grey of the image, not of its padding. inside: bool (B, 1, H, W)."""
    grey = (gray(images) * inside).sum((2, 3), keepdim=True)
    mean = grey / inside.sum((2, 3), keepdim=True).clamp(min=1)
    return _blend(images, mean, factor)


def adjust_saturation(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Mix with the image in grey."""
    return _blend(images, gray(images), factor)


def adjust_hue(images: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Turn the hue by a part of a full turn, saturation and value of HSV kept."""
    value, largest = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    red, green, blue = images.split(1, 1)
    # Hue in sixths of a turn: 0 is red, 2 green, 4 blue. Without chroma it has no effect.
    ahead = torch.where(largest == 1, blue - red, red - green)
    ahead = torch.where(largest == 0, green - blue, ahead)
    hue = 2 * largest + ahead / chroma.clamp(min=1e-6) + 6 * turn
    # https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative
    place = torch.arange(5, 0, -2, device=images.device).view(1, 3, 1, 1)
    k = (hue + place).remainder_(6)
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def gray(images: torch.Tensor) -> torch.Tensor:
    """Luma: (B, 1, H, W) of images (B, 3, H, W)."""
    red, green, blue = images.split(1, 1)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _blend(images: torch.Tensor, other: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """factor * images + (1 - factor) * other, cut off at 0 and 255."""
    return images.mul_(factor).add_((1 - factor) * other).clamp_(0, 255)
