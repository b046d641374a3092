"""Mixup: the distribution of the weights, and the partner."""

import math

import numpy as np
import pytest
import torch

from sa1bpack.errors import OptionError
from sa1bpack.transforms.images.mix import Mixup


def beta_cdf(x: float, alpha: float) -> float:
    """The distribution function of Beta(alpha, alpha) at x <= 1/2, by its power series."""
    total, term = 0.0, 1.0
    for k in range(400):
        total += term / (alpha + k)
        term *= (k + 1 - alpha) / (k + 1) * x
    log_beta = 2 * math.lgamma(alpha) - math.lgamma(2 * alpha)
    return total * math.exp(alpha * math.log(x) - log_beta)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 1.0, 2.0, 8.0])
def test_weights_are_quantiles_of_the_beta_distribution(alpha):
    probabilities = np.linspace(0.001, 0.4999, 50)
    found = Mixup(alpha).draw(torch.from_numpy(probabilities)).double()
    for p, lam in zip(probabilities, found.tolist(), strict=True):
        if lam > 1e-30:  # float32 ends at 1e-45
            assert beta_cdf(lam, alpha) == pytest.approx(p, abs=2e-4)
    upper = Mixup(alpha).draw(torch.from_numpy(1 - probabilities)).double()
    torch.testing.assert_close(upper, 1 - found, atol=1e-7, rtol=0)


def test_alpha_one_is_uniform():
    numbers = torch.linspace(0, 1 - 2**-53, 101, dtype=torch.float64)
    torch.testing.assert_close(Mixup(1.0).draw(numbers), numbers.float())


def test_images_are_mixed_with_the_next_one_of_the_batch(device):
    images = torch.rand(3, 3, 4, 5).to(device)
    numbers = torch.tensor([[0.1], [0.5], [0.8]], dtype=torch.float64, device=device)
    mixed, lam, partner = Mixup(1.0)(images, lambda n: numbers)
    assert partner.tolist() == [1, 2, 0]
    torch.testing.assert_close(lam, numbers[:, 0].float())
    for b, (weight, other) in enumerate(zip(lam.tolist(), partner.tolist(), strict=True)):
        torch.testing.assert_close(mixed[b], weight * images[b] + (1 - weight) * images[other])


def test_the_only_image_of_a_batch_does_not_change():
    images = torch.rand(1, 3, 4, 5)
    mixed, _, partner = Mixup(0.5)(images, lambda n: torch.full((1, n), 0.3).double())
    torch.testing.assert_close(mixed, images)
    assert partner.tolist() == [0]


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), None, "a"])
def test_an_invalid_alpha_is_refused(alpha):
    with pytest.raises(OptionError, match="alpha is"):
        Mixup(alpha)
