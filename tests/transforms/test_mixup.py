"""Mixup and CutMix: the distribution of the weights, the partner, the rectangle."""

import math

import numpy as np
import pytest
import torch

from sa1bpack.transforms import CutMix, Mixup
from sa1bpack.transforms.random import uniform


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


def test_images_are_mixed_with_the_next_one_of_the_batch(device):
    images = torch.rand(3, 3, 4, 5).to(device)
    numbers = torch.tensor([[0.1], [0.5], [0.8]], dtype=torch.float64, device=device)
    mixed, lam, partner = Mixup(1.0)(images, lambda n: numbers).values()
    assert partner.tolist() == [1, 2, 0]
    torch.testing.assert_close(lam, numbers[:, 0].float())
    for b, (weight, other) in enumerate(zip(lam.tolist(), partner.tolist(), strict=True)):
        torch.testing.assert_close(mixed[b], weight * images[b] + (1 - weight) * images[other])


def test_a_rectangle_of_the_next_image_is_pasted(device):
    """Compared with the rectangle from its definition, in Python."""
    images = torch.rand(64, 3, 20, 30).to(device)
    numbers = uniform(0, 0, torch.arange(64, device=device), 0, 3)
    done = CutMix(1.0)(images, lambda n: numbers[:, :n])
    assert done["mix_partner"].tolist() == [*range(1, 64), 0]
    weights = CutMix(1.0).draw(numbers[:, 0]).tolist()
    before, after = images.cpu(), done["images"].cpu()
    for b, (lam, (_, u, v)) in enumerate(zip(weights, numbers.tolist(), strict=True)):
        reach = math.sqrt(1 - lam) / 2
        x0, x1, y0, y1 = (
            min(max(math.floor(side * (middle + sign * reach) + 0.5), 0), side)
            for side, middle in ((30, u), (20, v))
            for sign in (-1, 1)
        )
        assert done["mix_box"][b].tolist() == [x0, y0, x1, y1]
        expected = before[b].clone()
        expected[:, y0:y1, x0:x1] = before[(b + 1) % 64, :, y0:y1, x0:x1]
        assert torch.equal(after[b], expected)
        left = 1 - (x1 - x0) * (y1 - y0) / 600
        assert done["mix_lambda"][b].item() == pytest.approx(left, abs=1e-6)
    assert 0 < done["mix_lambda"].min() < 0.4 and done["mix_lambda"].max() > 0.9
