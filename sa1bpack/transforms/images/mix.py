"""Mixup: each image is mixed with another one of its batch."""

import numpy as np
import torch

from sa1bpack.errors import OptionError
from sa1bpack.transforms.geometry.steps import Uniform
from sa1bpack.transforms.options import is_number
from sa1bpack.transforms.tables import Table

_KNOTS = 4097  # size of the table of quantiles


class Mixup:
    """Mix every image with its neighbour in the batch (Zhang et al., "mixup: Beyond Empirical Risk
    Minimization", 2018).

    images[b] becomes lam[b] * images[b] + (1 - lam[b]) * images[partner[b]], with lam drawn per
    image from Beta(alpha, alpha). The partner is the next image of the batch (of the last one, the
    first): batches are shuffled already. So lam depends on the image alone, but the partner on the
    batch, and thus on the number of ranks.

    Masks, boxes and points are not mixed, because two images have different objects. The output for
    image b is compared with the targets of both, and the loss is

        lam[b] * loss(output[b], targets[b]) + (1 - lam[b]) * loss(output[b], targets[partner[b]])
    """

    def __init__(self, alpha: float = 0.2):
        """alpha: of the distribution; small values mix little. Raises OptionError unless > 0."""
        if not is_number(alpha) or alpha <= 0:
            raise OptionError(f"alpha is {alpha!r}: choose a number above 0")
        self.alpha = alpha
        self._table = Table(beta_quantiles(alpha))

    def __call__(
        self, images: torch.Tensor, uniform: Uniform
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mix images (B, 3, H, W). Returns mixed images, lam float32 (B,), partner int64 (B,)."""
        lam = self.draw(uniform(1)[:, 0])
        weight = lam.view(-1, 1, 1, 1).to(images.dtype)
        mixed = torch.lerp(images.roll(-1, 0), images, weight)
        partner = torch.arange(len(images), device=images.device).roll(-1)
        return mixed, lam, partner

    def draw(self, numbers: torch.Tensor) -> torch.Tensor:
        """float32 (B,) from Beta(alpha, alpha), from uniform numbers in [0, 1), float64 (B,)."""
        table = self._table.on(numbers.device)
        low = torch.minimum(numbers, 1 - numbers)
        at = low * 2 * (_KNOTS - 1)
        left = at.long().clamp_(max=_KNOTS - 2)
        t = torch.lerp(table[left], table[left + 1], at - left)
        half = t ** (1 / self.alpha) / 2
        return torch.where(numbers < 0.5, half, 1 - half).float()


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
