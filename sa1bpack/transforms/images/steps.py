"""Steps that change pixels: colour jitter, drawn per image, and Mixup and CutMix.

These two mix each image with another one of its batch.

The operations on colours are those of torchvision's `ColorJitter`, on values of 0 to 255 without
intermediate rounding. One thing differs: torchvision shuffles them per image; here they are applied
in the order of the arguments, because shuffling would take every operation four times for every
image of a batch.
"""

import numpy as np
import torch

from sa1bpack.arguments import number
from sa1bpack.display import call_text
from sa1bpack.keywords import checks_options
from sa1bpack.transforms.checks import LEAST, as_range
from sa1bpack.transforms.geometry import Uniform
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.masks.cells import count_cells
from sa1bpack.transforms.memory import Table

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
        """An operation that cannot change anything, such as one with value 0, is skipped.

        Args:
            brightness, contrast, saturation: a value of 0 to 255, for a factor uniform from
                max(0, 1 - value) to 1 + value; or a range (low, high) of 0 to 256.
            hue: 0 to 0.5, for a shift uniform from -hue to hue as a fraction of 360 degrees; or a
                range (low, high) of -0.5 to 0.5.

        Raises:
            OptionError: a value that is out of range.
        """
        self.brightness = as_range("brightness", brightness, 0, MAX_FACTOR, around=1)
        self.contrast = as_range("contrast", contrast, 0, MAX_FACTOR, around=1)
        self.saturation = as_range("saturation", saturation, 0, MAX_FACTOR, around=1)
        self.hue = as_range("hue", hue, -0.5, 0.5, around=0)

    def __repr__(self) -> str:
        return call_text(self)

    def __call__(
        self, images: torch.Tensor, inside: torch.Tensor, factors: torch.Tensor
    ) -> torch.Tensor:
        """Change the colours of images.

        Args:
            images: float32 (B, 3, H, W), 0 to 255; may be overwritten.
            inside: bool (B, 1, H, W), False for padding.
            factors: float32 (B, 4), see `factors`.
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
        return _shift_hue(images, factors[:, 3]) if hue else images

    @property
    def used(self) -> tuple[bool, bool, bool, bool]:
        """True for those of brightness, contrast, saturation and hue that can change anything."""
        factors = self.brightness, self.contrast, self.saturation
        return (*(factor != (1, 1) for factor in factors), self.hue != (0, 0))

    def factors(self, uniform: Uniform) -> torch.Tensor:
        """float32 (B, 4): three factors, and the shift of the hue as a fraction of 360 degrees."""
        drawn = uniform(4)
        limits = self.brightness, self.contrast, self.saturation, self.hue
        return torch.stack(
            [(low + (high - low) * drawn[:, k]).float() for k, (low, high) in enumerate(limits)], 1
        )


def _shift_hue(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Shift hues by fractions of 360 degrees, (B, 1, 1, 1), keeping saturation and value of HSV."""
    value, largest = images.max(1, keepdim=True)
    chroma = value - images.amin(1, keepdim=True)
    red, green, blue = images.split(1, 1)
    # Hue in units of 60 degrees: 0 is red, 2 green, 4 blue. Without chroma it has no effect.
    ahead = torch.where(largest == 1, blue - red, red - green)
    ahead = torch.where(largest == 0, green - blue, ahead)
    hue = 2 * largest + ahead / chroma.clamp(min=1e-6) + 6 * shift
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


# ------------------------------------------------------------------------------------------ mixing

_KNOTS = 4097  # size of the table of quantiles


class MixStep:
    """A step that mixes every image with the next one of its batch, the last one with the first.

    Called with images (B, 3, H, W) and random numbers, it returns what changes in the batch.

    Partners are random where batches are shuffled. The weight lam is drawn per image from
    Beta(alpha, alpha): it depends on the image alone, but the partner on the batch, and thus on the
    number of ranks.

    Attributes:
        alpha: parameter of the distribution.
        table: quantiles of it.
    """

    def __init__(self, alpha: float):
        """
        Args:
            alpha: parameter of the distribution Beta(alpha, alpha).

        Raises:
            OptionError: `alpha` is not from LEAST to 1 / LEAST.
        """
        self.alpha = number("alpha", alpha, LEAST, 1 / LEAST)
        self.table = Table(beta_quantiles(alpha))

    def __repr__(self) -> str:
        return call_text(self)

    def draw(self, numbers: torch.Tensor) -> torch.Tensor:
        """float32 (B,) from Beta(alpha, alpha), from uniform numbers in [0, 1), float64 (B,)."""
        table = self.table.on(numbers.device)
        low = torch.minimum(numbers, 1 - numbers)
        at = low * 2 * (_KNOTS - 1)
        left = at.long().clamp_(max=_KNOTS - 2)
        t = torch.lerp(table[left], table[left + 1], at - left)
        half = t ** (1 / self.alpha) / 2
        return torch.where(numbers < 0.5, half, 1 - half).float()


@checks_options
class Mixup(MixStep):
    """Mix every image with its neighbour in the batch.

    As in Zhang et al., "mixup: Beyond Empirical Risk Minimization" (2018).

    images[b] becomes lam[b] * images[b] + (1 - lam[b]) * images[partner[b]]. The batch gets
    `mix_lambda`, float32 (B,), and `mix_partner`, int64 (B,).

    Masks, boxes and points are not mixed, because two images have different objects. The output for
    image b is compared with the targets of both, and the loss is

        lam[b] * loss(output[b], targets[b]) + (1 - lam[b]) * loss(output[b], targets[partner[b]])

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.Mixup(alpha=0.2)], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["mix_lambda"].shape, batch["mix_partner"].tolist()
        (torch.Size([2]), [1, 0])
    """

    def __init__(self, alpha: float = 0.2):
        """
        Args:
            alpha: parameter of the distribution Beta(alpha, alpha); small values mix little.

        Raises:
            OptionError: `alpha` is not from 1e-6 to 1e6.
        """
        super().__init__(alpha)

    def __call__(self, images: torch.Tensor, uniform: Uniform) -> dict[str, torch.Tensor]:
        """Mix images (B, 3, H, W). Returns mixed images and the keys that are added."""
        [lam] = sent([self.draw(uniform(1)[:, 0])], images.device)
        weight = lam.view(-1, 1, 1, 1).to(images.dtype)
        mixed = images.roll(-1, 0).lerp_(images, weight)
        return {"images": mixed, "mix_lambda": lam, "mix_partner": _partners(images)}


@checks_options
class CutMix(MixStep):
    """Paste a rectangle of the neighbour in the batch into every image.

    As in Yun et al., "CutMix: Regularization Strategy to Train Strong Classifiers with Localizable
    Features" (2019).

    The rectangle has the aspect ratio of the canvas and the share 1 - lam of its area, its middle
    is anywhere, and what lies outside the canvas is cut off. It comes from the same place of the
    neighbour. The batch gets `mix_lambda`, float32 (B,), the share of the canvas that is left;
    `mix_partner`, int64 (B,); and `mix_box`, int64 (B, 4), x0, y0, x1, y1 in pixels of the canvas,
    x1 and y1 exclusive.

    Masks, boxes and points are not mixed, because two images have different objects; but unlike
    with `Mixup`, each pixel belongs to one image. So a loss per pixel takes targets[partner[b]]
    inside `mix_box[b]`, and targets[b] elsewhere; a loss per image weighs the two by lam, as for
    `Mixup`.

    Examples:
        >>> ds = sa1bpack.open("packed")
        >>> pipeline = T.Pipeline(ds, [T.CutMix()], size=256)
        >>> with sa1bpack.Loader(ds, batch_size=2, max_masks=8) as loader:
        ...     batch = pipeline(next(iter(loader)))
        >>> batch["mix_lambda"].shape, batch["mix_partner"].tolist()
        (torch.Size([2]), [1, 0])
    """

    def __init__(self, alpha: float = 1.0):
        """
        Args:
            alpha: parameter of the distribution Beta(alpha, alpha); 1 for any area alike.

        Raises:
            OptionError: `alpha` is not from 1e-6 to 1e6.
        """
        super().__init__(alpha)

    def __call__(self, images: torch.Tensor, uniform: Uniform) -> dict[str, torch.Tensor]:
        """Paste into images (B, 3, H, W). Returns the images and the keys that are added."""
        drawn = uniform(3)
        height, width = images.shape[2:]
        half = (1 - self.draw(drawn[:, 0]).double()).sqrt() / 2
        edges = []
        for column, side in ((1, width), (2, height)):
            middle = drawn[:, column] * side
            reach = half * side
            ends = torch.stack([middle - reach, middle + reach], 1)
            edges.append((ends + 0.5).floor().long().clamp_(0, side))
        (x0, x1), (y0, y1) = (pair.unbind(1) for pair in edges)
        left = (1 - ((x1 - x0) * (y1 - y0)).double() / (height * width)).float()
        box, left = sent([torch.stack([x0, y0, x1, y1], 1), left], images.device)
        x0, y0, x1, y1 = box.unbind(1)
        x, y = (torch.arange(side, device=images.device) for side in (width, height))
        across = (x >= x0[:, None]) & (x < x1[:, None])
        down = (y >= y0[:, None]) & (y < y1[:, None])
        pasted = (down[:, :, None] & across[:, None, :])[:, None]
        return {
            "images": torch.where(pasted, images.roll(-1, 0), images),
            "mix_lambda": left,
            "mix_partner": _partners(images),
            "mix_box": box,
        }


def _partners(images: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(images), device=images.device).roll(-1)


def beta_quantiles(alpha: float) -> np.ndarray:
    """The lower half of the quantiles of Beta(alpha, alpha), in a form without a pole.

    With t = (2 x) ** alpha, the distribution function for x <= 1/2 is proportional to the integral
    of (1 - x(t)) ** (alpha - 1) from 0 to t, whose integrand is bounded. Returns t at evenly spaced
    probabilities from 0 to 1/2, float64 (_KNOTS,).
    """
    t = np.linspace(0, 1, 16 * _KNOTS)
    density = (1 - t ** (1 / alpha) / 2) ** (alpha - 1)
    below = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return np.interp(np.linspace(0, 1, _KNOTS), below / below[-1], t)
