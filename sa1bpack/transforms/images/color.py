"""Colour jitter: brightness, contrast, saturation and hue, drawn per image.

The operations are those of torchvision's `ColorJitter`, on values of 0 to 255 without intermediate
rounding. One thing differs: torchvision shuffles them per image; here they are applied in the order
of the arguments, because shuffling would take every operation four times for every image of a
batch.
"""

import torch

from sa1bpack.arguments import checks_options
from sa1bpack.display import call_text
from sa1bpack.transforms.geometry.steps import Uniform
from sa1bpack.transforms.masks.cells import count_cells
from sa1bpack.transforms.options import as_range

# Luma of ITU-R BT.601, as torchvision's rgb_to_grayscale rounds it.
LUMA = (0.2989, 0.587, 0.114)

MAX_FACTOR = 256.0  # turns the darkest grey into white; far from overflowing float32

Range = tuple[float, float]


@checks_options
class ColorJitter:
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
    ):
        """
        Args:
            brightness, contrast, saturation: a value of 0 to 255, for a factor uniform from
                max(0, 1 - value) to 1 + value; or a range (low, high) of 0 to 256.
            hue: 0 to 0.5, for a shift uniform from -hue to hue as a fraction of a full turn; or a
                range (low, high) of -0.5 to 0.5.

        An operation that cannot change anything, such as one with value 0, is skipped.

        Raises:
            OptionError: a value that is out of range.
        """
        self.brightness = as_range("brightness", brightness, 0, MAX_FACTOR, around=1)
        self.contrast = as_range("contrast", contrast, 0, MAX_FACTOR, around=1)
        self.saturation = as_range("saturation", saturation, 0, MAX_FACTOR, around=1)
        self.hue = as_range("hue", hue, -0.5, 0.5)

    def __repr__(self) -> str:
        return call_text(self)

    def __call__(
        self, images: torch.Tensor, inside: torch.Tensor, factors: torch.Tensor
    ) -> torch.Tensor:
        """Change images (B, 3, H, W) float32, 0 to 255, which may be overwritten.

        inside   bool (B, 1, H, W), false for padding
        factors  float32 (B, 4), see `factors`
        """
        brightness, contrast, saturation, hue = self.used
        factors = factors[:, :, None, None, None]  # (B, 4, 1, 1, 1)
        if brightness:  # mix with black
            images = images.mul_(factors[:, 0]).clamp_(0, 255)
        if contrast:  # with the mean grey of the image without its padding
            grey = (gray(images) * inside).sum((2, 3), keepdim=True)
            cells = count_cells(inside[:, 0]).clamp(min=1).view(-1, 1, 1, 1)
            images = _blend(images, grey / cells, factors[:, 1])
        if saturation:  # with the greyscale image
            images = _blend(images, gray(images), factors[:, 2])
        return _turn_hue(images, factors[:, 3]) if hue else images

    @property
    def used(self) -> tuple[bool, bool, bool, bool]:
        """Whether brightness, contrast, saturation and hue can change anything."""
        factors = self.brightness, self.contrast, self.saturation
        return (*(factor != (1, 1) for factor in factors), self.hue != (0, 0))

    def factors(self, uniform: Uniform) -> torch.Tensor:
        """float32 (B, 4): the factors of the first three, and the shift of the hue, in turns."""
        drawn = uniform(4)
        limits = self.brightness, self.contrast, self.saturation, self.hue
        return torch.stack(
            [(low + (high - low) * drawn[:, k]).float() for k, (low, high) in enumerate(limits)], 1
        )


def _turn_hue(images: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Shift hues by fractions of a full turn, (B, 1, 1, 1), keeping saturation and value of HSV."""
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
    """factor * images + (1 - factor) * other, clipped to 0 and 255."""
    return images.mul_(factor).add_((1 - factor) * other).clamp_(0, 255)
