"""Colour jitter, compared with colorsys and PIL's enhancers."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from sa1bpack.transforms.images.color import (
    ColorJitter,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
)
from sa1bpack.transforms.random import uniform

ALL = torch.ones((1, 1, 6, 7), dtype=torch.bool)


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)


def planes(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1)[None].float()


def number(value: float) -> torch.Tensor:
    return torch.full((1, 1, 1, 1), value)


# torchvision uses these enhancers for PIL images.
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
@pytest.mark.parametrize(
    ("adjust", "enhancer"),
    [
        (adjust_brightness, ImageEnhance.Brightness),
        (lambda x, f: adjust_contrast(x, f, ALL), ImageEnhance.Contrast),
        (adjust_saturation, ImageEnhance.Color),
    ],
    ids=["brightness", "contrast", "saturation"],
)
def test_factors_match_the_enhancers_of_pil(adjust, enhancer, factor):
    pixels = image()
    expected = np.asarray(enhancer(Image.fromarray(pixels)).enhance(factor)).astype(float)
    found = adjust(planes(pixels), number(factor))[0].permute(1, 2, 0).numpy()
    assert np.abs(found - expected).max() <= 1.5  # PIL rounds grey and the result


@pytest.mark.parametrize("turn", [-0.5, -0.21, 0.0, 1e-3, 0.3, 0.5])
def test_the_shift_of_hue_matches_colorsys(turn):
    pixels = image()
    pixels[0] = [[0, 0, 0], [255] * 3, [9, 9, 9], [255, 0, 0], [0, 7, 7], [7, 0, 7], [7, 7, 0]]
    expected = np.empty(pixels.shape)
    for at in np.ndindex(pixels.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(pixels[at] / 255))
        expected[at] = np.multiply(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value), 255)
    found = adjust_hue(planes(pixels), number(turn))[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_padding_does_not_affect_contrast():
    pixels = image()
    inside = ALL.clone()
    inside[..., 4:, :] = False
    other = pixels.copy()
    other[4:] = 255
    found = [
        adjust_contrast(planes(each), number(0.3), inside)[..., :4, :] for each in (pixels, other)
    ]
    assert torch.equal(*found)
    expected = adjust_contrast(planes(pixels[:4]), number(0.3), ALL[..., :4, :])
    torch.testing.assert_close(found[0], expected)


def test_factors_are_drawn_per_image_and_applied_in_order(device):
    """An image in a batch is changed as by the four functions alone."""
    batch = torch.cat([planes(image(k)) for k in range(4)]).to(device)
    drawn = uniform(0, 0, torch.arange(4, device=device), 0, 4)
    inside = ALL.to(device).expand(4, -1, -1, -1)
    jitter = ColorJitter(0.4, 1.5, 0.2, 0.1)
    found = jitter(batch.clone(), inside, jitter.factors(lambda n: drawn[:, :n]))
    for k in range(4):
        b, c, s, h = drawn[k].tolist()
        x = adjust_brightness(batch[k : k + 1].clone(), number(0.6 + 0.8 * b).to(device))
        x = adjust_contrast(x, number(2.5 * c).to(device), ALL.to(device))
        x = adjust_saturation(x, number(0.8 + 0.4 * s).to(device))
        x = adjust_hue(x, number(0.2 * h - 0.1).to(device))
        torch.testing.assert_close(found[k : k + 1], x, atol=5e-3, rtol=0)


def test_a_number_is_short_for_the_range_around_its_neutral_value():
    """As in torchvision."""
    spread, ranges = ColorJitter(0.5, 1.5, 0.25, 0.1), ((0.5, 1.5), (0, 2.5), (0.75, 1.25))
    assert (spread.brightness, spread.contrast, spread.saturation) == ranges
    assert spread.hue == (-0.1, 0.1) and ColorJitter(*ranges).contrast == (0, 2.5)
    assert ColorJitter((1, 1), hue=(0, 0)).used == (False,) * 4
