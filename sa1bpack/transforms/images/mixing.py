"""Mixup and CutMix: steps that mix each image with another one of its batch."""

import numpy as np
import torch
from torch import Tensor

from sa1bpack.arguments import number
from sa1bpack.keywords import checks_options
from sa1bpack.transforms.checks import LEAST
from sa1bpack.transforms.frame import in_boxes
from sa1bpack.transforms.geometric_steps import Step, Uniform
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.memory import Table

_KNOTS = 4097  # size of the table of quantiles
_SUMMED = 16 * _KNOTS  # places where the density is summed
# With a large alpha, the density is summed where it is above exp(-_NEGLIGIBLE) of the largest.
_NEGLIGIBLE = 80.0


class MixStep(Step):
    """A step that mixes every image with the next one of its batch, the last one with the first.

    Partners are random where batches are shuffled. The weight lam is drawn per image from
    Beta(alpha, alpha): it depends on the image alone, but the partner on the batch, and thus on the
    number of ranks.

    Attributes:
        alpha: parameter of the distribution.
        table: quantiles of it, see `beta_quantiles`.
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

    def __call__(self, images: Tensor, uniform: Uniform) -> dict[str, Tensor]:
        """Mix images (B, 3, H, W). Returns what changes in the batch."""
        raise NotImplementedError

    def draw(self, numbers: Tensor) -> Tensor:
        """float32 (B,) from Beta(alpha, alpha), from uniform numbers in [0, 1), float64 (B,)."""
        table = self.table.on(numbers.device)
        share = 2 * torch.minimum(numbers, 1 - numbers)
        if self.alpha > 1:
            share = share.sqrt().sqrt()
        knot = share * (_KNOTS - 1)
        left = knot.long().clamp_(max=_KNOTS - 2)
        half = torch.lerp(table[left], table[left + 1], knot - left)
        if self.alpha <= 1:
            half = half ** (1 / self.alpha) / 2
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

    def __call__(self, images: Tensor, uniform: Uniform) -> dict[str, Tensor]:
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

    The rectangle has the aspect ratio of the canvas and the share 1 - lam of its area. Its middle
    is anywhere on the canvas, and what lies outside the canvas is cut off. Its pixels have the same
    place in the neighbour. The batch gets `mix_lambda`, float32 (B,), the share of the canvas that
    is left; `mix_partner`, int64 (B,); and `mix_box`, int64 (B, 4), x0, y0, x1, y1 in pixels of the
    canvas, x1 and y1 exclusive.

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
            alpha: parameter of the distribution Beta(alpha, alpha); 1: all areas are equally
                likely.

        Raises:
            OptionError: `alpha` is not from 1e-6 to 1e6.
        """
        super().__init__(alpha)

    def __call__(self, images: Tensor, uniform: Uniform) -> dict[str, Tensor]:
        """Paste into images (B, 3, H, W). Returns the images and the keys that are added."""
        drawn = uniform(3)
        height, width = images.shape[2:]
        half = (1 - self.draw(drawn[:, 0]).double()).sqrt() / 2
        x0, x1 = _clipped_edges(drawn[:, 1], half, width)
        y0, y1 = _clipped_edges(drawn[:, 2], half, height)
        left = (1 - ((x1 - x0) * (y1 - y0)).double() / (height * width)).float()
        box, left = sent([torch.stack([x0, y0, x1, y1], 1), left], images.device)
        pasted = in_boxes(box, (height, width), (height, width))[:, None]
        return {
            "images": torch.where(pasted, images.roll(-1, 0), images),
            "mix_lambda": left,
            "mix_partner": _partners(images),
            "mix_box": box,
        }


def _clipped_edges(middle: Tensor, half: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """The edges of rectangles along one axis of a canvas, int64 (B,) each: low and high, in pixels.

    Args:
        middle, half: float64 (B,), middle and half the length, as fractions of the side.
        side: length of the axis in pixels.
    """
    middle = middle * side
    reach = half * side
    ends = torch.stack([middle - reach, middle + reach], 1)
    low, high = (ends + 0.5).floor().long().clamp_(0, side).unbind(1)
    return low, high


def _partners(images: Tensor) -> Tensor:
    """int64 (B,): the index of the image that each one is mixed with."""
    return torch.arange(len(images), device=images.device).roll(-1)


def beta_quantiles(alpha: float) -> np.ndarray:
    """The lower half of the quantiles x of Beta(alpha, alpha), float64 (_KNOTS,).

    A form of them that has no pole, at even steps of a place from 0 to 1, so that few knots do: up
    to an alpha of 1, (2 x) ** alpha at the place 2 p of a probability p; above, x at the place
    (2 p) ** (1/4).
    """
    places = np.linspace(0, 1, _KNOTS)
    with np.errstate(under="ignore"):
        if alpha > 1:
            return _narrow_quantiles(alpha, places**4)
        return _wide_quantiles(alpha, places)


def _wide_quantiles(alpha: float, shares: np.ndarray) -> np.ndarray:
    """(2 x) ** alpha at shares of the probability below 1/2; alpha is at most 1.

    With t = (2 x) ** alpha, the distribution function for x <= 1/2 is proportional to the integral
    of (1 - x(t)) ** (alpha - 1) from 0 to t, whose integrand is bounded.
    """
    t = np.linspace(0, 1, _SUMMED)
    density = (1 - t ** (1 / alpha) / 2) ** (alpha - 1)
    quantiles: np.ndarray = np.interp(shares, _summed(density), t)
    return quantiles


def _narrow_quantiles(alpha: float, shares: np.ndarray) -> np.ndarray:
    """x at shares of the probability below 1/2; alpha is above 1.

    With y = 1 - 2 x, the density is proportional to (1 - y ** 2) ** (alpha - 1), about
    exp((1 - alpha) * y ** 2): with a large alpha, only a small y has any.
    """
    widest = min(1.0, (_NEGLIGIBLE / (alpha - 1)) ** 0.5)
    y = np.linspace(widest, 0, _SUMMED)
    density = (1 - y**2) ** (alpha - 1)
    quantiles: np.ndarray = np.interp(shares, _summed(density), (1 - y) / 2)
    return quantiles


def _summed(density: np.ndarray) -> np.ndarray:
    """float64 (n,): the share of a density at even steps that lies before each, from 0 to 1."""
    below = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    shares: np.ndarray = below / below[-1]
    return shares
