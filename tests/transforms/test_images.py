"""Pixels: resampled as by PIL, converted as by numpy, colours as by PIL and colorsys, mixed."""

import colorsys
import math

import numpy as np
import pytest
import torch
from made_batches import LAYOUT, dataset, drawn, moved, noisy_batch
from PIL import Image, ImageEnhance

from sa1bpack.pixels import yuv420_to_rgb as reference
from sa1bpack.transforms import (
    SAM_MEAN,
    SAM_STD,
    ColorJitter,
    CutMix,
    Mixup,
    Pipeline,
    yuv420_to_rgb,
)


@pytest.mark.parametrize("side", [2, 16, 34])
def test_planes_convert_to_the_bytes_of_the_reference_and_zero_beyond(everywhere, side):
    random = np.random.default_rng(side)
    sizes = [(side, side), (1, side), (side - 1, 1), (side, max(1, side // 2 - 1))]
    planes = random.integers(0, 256, (4, side * 3 // 2, side), dtype=np.uint8)
    stored = torch.tensor([[9, 9, *size] for size in sizes], dtype=torch.int32)
    given = torch.from_numpy(planes).to(everywhere), stored.to(everywhere)[:, 2:]
    found = yuv420_to_rgb(*given).cpu().numpy()
    half = side // 2
    for canvas, (height, width), rgb in zip(planes, sizes, found, strict=True):
        chroma = canvas[side:].reshape(2, half, half)
        rows, columns = (height + 1) // 2, (width + 1) // 2
        parts = canvas[:height, :width], *chroma[:, :rows, :columns]
        assert np.array_equal(rgb[:height, :width], reference(*parts))
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


ALL = torch.ones((1, 1, 6, 7), dtype=torch.bool)


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)


def planes(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)[None].float()


def adjusted(pixels: np.ndarray, name: str, factor: float, inside=ALL) -> np.ndarray:
    """What one operation makes of an image: (h, w, 3)."""
    names = ("brightness", "contrast", "saturation", "hue")
    step = ColorJitter(**{name: (-0.5, 0.5) if name == "hue" else (0, 2)})
    factors = torch.full((1, 4), factor) * torch.tensor([each == name for each in names])
    return step(planes(pixels), inside, factors)[0].permute(1, 2, 0).numpy()


# torchvision uses these enhancers for PIL images.
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
@pytest.mark.parametrize(
    ("name", "enhancer"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_factors_match_the_enhancers_of_pil(name, enhancer, factor):
    pixels = image()
    expected = np.asarray(enhancer(Image.fromarray(pixels)).enhance(factor)).astype(float)
    assert np.abs(adjusted(pixels, name, factor) - expected).max() <= 1.5  # PIL rounds


@pytest.mark.parametrize("turn", [-0.5, -0.21, 0.0, 1e-3, 0.3, 0.5])
def test_the_shift_of_hue_matches_colorsys(turn):
    pixels = image()
    pixels[0] = [[0, 0, 0], [255] * 3, [9, 9, 9], [255, 0, 0], [0, 7, 7], [7, 0, 7], [7, 7, 0]]
    expected = np.empty(pixels.shape)
    for at in np.ndindex(pixels.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[at] / 255))
        expected[at] = np.multiply(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value), 255)
    np.testing.assert_allclose(adjusted(pixels, "hue", turn), expected, atol=2e-3)


def test_padding_does_not_affect_contrast():
    pixels, inside = image(), ALL.clone()
    inside[..., 4:, :] = False
    expected = adjusted(pixels[:4], "contrast", 0.3, ALL[..., :4, :])
    pixels[4:] = 255
    np.testing.assert_allclose(adjusted(pixels, "contrast", 0.3, inside)[:4], expected, rtol=1e-5)


def test_factors_are_drawn_per_image_and_applied_in_order(device):
    """An image in a batch is changed as by the four operations, one after another."""
    batch = torch.cat([planes(image(k)) for k in range(4)]).to(device)
    numbers = drawn(4, device)
    inside = ALL.to(device).expand(4, -1, -1, -1)
    jitter = ColorJitter(0.4, 1.5, 0.2, 0.1)
    factors = jitter.factors(numbers)
    found = jitter(batch.clone(), inside, factors)
    limits = jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue
    for k, (low, high) in enumerate(limits):
        torch.testing.assert_close(factors[:, k].double(), low + (high - low) * numbers(4)[:, k])
    for name in ("brightness", "contrast", "saturation", "hue"):
        batch = ColorJitter(**{name: 0.3})(batch, inside, factors)
    torch.testing.assert_close(found, batch, atol=5e-3, rtol=0)


def test_a_number_is_short_for_the_range_around_its_neutral_value():
    """As in torchvision."""
    spread, ranges = ColorJitter(0.5, 1.5, 0.25, 0.1), ((0.5, 1.5), (0, 2.5), (0.75, 1.25))
    assert (spread.brightness, spread.contrast, spread.saturation) == ranges
    assert spread.hue == (-0.1, 0.1) and ColorJitter(*ranges).contrast == (0, 2.5)
    assert ColorJitter((1, 1), hue=(0, 0)).used == (False,) * 4


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
    numbers = drawn(64, device)(3)
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
