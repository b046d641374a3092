"""Pixels: resampled as by PIL, converted as by numpy, mixed."""

import math

import numpy as np
import pytest
import torch
from made_batches import LAYOUT, dataset, drawn, moved, noisy_batch

from sa1bpack.pixels import yuv420_to_rgb as reference
from sa1bpack.transforms import (
    SAM_MEAN,
    SAM_STD,
    CutMix,
    Mixup,
    Pipeline,
    yuv420_to_rgb,
)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (16, 16), (34, 34), (34, 12), (4, 46)])
def test_planes_convert_to_the_bytes_of_the_reference_and_zero_beyond(everywhere, rows, columns):
    random = np.random.default_rng(rows)
    sizes = [(rows, columns), (1, columns), (rows - 1, 1), (rows, max(1, columns // 2 - 1))]
    planes = random.integers(0, 256, (4, rows * 3 // 2, columns), dtype=np.uint8)
    stored = torch.tensor([[9, 9, *size] for size in sizes], dtype=torch.int32)
    on_device = torch.from_numpy(planes).to(everywhere)
    images = yuv420_to_rgb(on_device, stored.to(everywhere)[:, 2:]).cpu().numpy()
    for canvas, (height, width), rgb in zip(planes, sizes, images, strict=True):
        chroma = canvas[rows:].reshape(2, rows // 2, columns // 2)
        cb, cr = chroma[:, : (height + 1) // 2, : (width + 1) // 2]
        expected = reference(canvas[:height, :width], cb, cr)
        assert np.array_equal(rgb[:height, :width], expected)
        assert not rgb[height:].any() and not rgb[:, width:].any()


def test_planes_of_damaged_sizes_read_nothing_outside(everywhere):
    """On CUDA an index error is an assertion, after which the device cannot be used."""
    planes = torch.full((1, 24, 16), 128, dtype=torch.uint8, device=everywhere)
    for size in ([10**6, 10**6], [-5, 7], [0, 0], [2**31 - 1, -(2**31)]):
        stored = torch.tensor([size], dtype=torch.int32, device=everywhere)
        rgb = yuv420_to_rgb(planes, stored)
        assert set(rgb.flatten().tolist()) <= {0, 128}


def test_normalising_matches_sam_and_padding_is_zero(device):
    batch = noisy_batch(LAYOUT, "bits")
    found = Pipeline(dataset(LAYOUT))(moved(batch, device))["images"].cpu().numpy()
    expected = (batch["images"].numpy() - np.array(SAM_MEAN)) / SAM_STD
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found[:, :, :64], expected.transpose(0, 3, 1, 2)[:, :, :64], atol=1e-6
    )
    assert not found[:, :, 64:].any()


def beta_cdf(x: float, alpha: float) -> float:
    """The distribution function of Beta(alpha, alpha) at x <= 1/2, by its power series."""
    total = 0.0
    term = 1.0
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


@pytest.mark.parametrize("alpha", [0.05, 0.4, 1.0, 1.01, 2.0, 8.0, 16.0, 100.0, 1e4, 1e6])
def test_weights_are_spread_as_the_beta_distribution_is(alpha):
    """Compared with its moments, at probabilities in even steps."""
    probabilities = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    with np.errstate(all="raise"):
        lam = Mixup(alpha).draw(probabilities).double()
    squares = (lam - 0.5).square()
    assert lam.mean().item() == pytest.approx(0.5, abs=1e-6)
    assert squares.mean().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=1e-3)
    fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert squares.square().mean().item() == pytest.approx(fourth, rel=1e-3)


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
    numbers = drawn(64, device)(3)
    done = CutMix(1.0)(images, lambda n: numbers[:, :n])
    assert done["mix_partner"].tolist() == [*range(1, 64), 0]
    weights = CutMix(1.0).draw(numbers[:, 0]).tolist()
    before = images.cpu()
    after = done["images"].cpu()
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
