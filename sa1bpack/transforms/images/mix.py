"""Mixup and CutMix: each image is mixed with another one of its batch."""

import numpy as np
import torch

from sa1bpack.arguments import checks_options, is_number
from sa1bpack.display import call_text
from sa1bpack.errors import OptionError
from sa1bpack.transforms.geometry.steps import Uniform
from sa1bpack.transforms.host import sent
from sa1bpack.transforms.memory import Table

_KNOTS = 4097  # size of the table of quantiles


class MixStep:
    """A step that mixes every image with the next one of its batch (the last one with the first).

    Partners are random where batches are shuffled. The weight lam is drawn per image from
    Beta(alpha, alpha): it depends on the image alone, but the partner on the batch, and thus on the
    number of ranks.
    """

    def __init__(self, alpha: float):
        """alpha: of the distribution. Raises OptionError unless it is a number above 0."""
        if not is_number(alpha) or alpha <= 0:
            raise OptionError(f"alpha is {alpha!r}: choose a number above 0")
        self.alpha = alpha
        self._table = Table(beta_quantiles(alpha))

    def __repr__(self) -> str:
        return call_text(self)

    def __call__(self, images: torch.Tensor, uniform: Uniform) -> dict[str, torch.Tensor]:
        """Mix images (B, 3, H, W). Returns what changes in the batch."""
        raise NotImplementedError

    def draw(self, numbers: torch.Tensor) -> torch.Tensor:
        """float32 (B,) from Beta(alpha, alpha), from uniform numbers in [0, 1), float64 (B,)."""
        table = self._table.on(numbers.device)
        low = torch.minimum(numbers, 1 - numbers)
        at = low * 2 * (_KNOTS - 1)
        left = at.long().clamp_(max=_KNOTS - 2)
        t = torch.lerp(table[left], table[left + 1], at - left)
        half = t ** (1 / self.alpha) / 2
        return torch.where(numbers < 0.5, half, 1 - half).float()


@checks_options
class Mixup(MixStep):
    """Mix every image with its neighbour in the batch (Zhang et al., "mixup: Beyond Empirical Risk
    Minimization", 2018).

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
        """alpha: of the distribution; small values mix little. Raises OptionError unless > 0."""
        super().__init__(alpha)

    def __call__(self, images: torch.Tensor, uniform: Uniform) -> dict[str, torch.Tensor]:
        """Mix images (B, 3, H, W). Returns mixed images and the keys that are added."""
        [lam] = sent([self.draw(uniform(1)[:, 0])], images.device)
        weight = lam.view(-1, 1, 1, 1).to(images.dtype)
        mixed = images.roll(-1, 0).lerp_(images, weight)
        return {"images": mixed, "mix_lambda": lam, "mix_partner": _partners(images)}


@checks_options
class CutMix(MixStep):
    """Paste a rectangle of the neighbour in the batch into every image (Yun et al., "CutMix:
    Regularization Strategy to Train Strong Classifiers with Localizable Features", 2019).

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
        """alpha: of the distribution; 1 for any area alike. Raises OptionError unless > 0."""
        super().__init__(alpha)

    def __call__(self, images: torch.Tensor, uniform: Uniform) -> dict[str, torch.Tensor]:
        """Paste into images (B, 3, H, W). Returns the images and the keys that are added."""
        drawn = uniform(3)
        height, width = images.shape[2:]
        half = (1 - self.draw(drawn[:, 0]).double()).sqrt() / 2
        edges = []
        for column, side in ((1, width), (2, height)):
            middle, reach = drawn[:, column] * side, half * side
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
