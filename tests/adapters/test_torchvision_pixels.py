"""Steps that change pixels have the results of torchvision's functions of the same names."""

import numpy as np
import pytest
import torch
from frameworks import need_torchvision
from made_batches import Layout, dataset

from sa1bpack import transforms as T

SIDE = 24
PLAIN = {"mean": (0, 0, 0), "std": (255, 255, 255)}  # torchvision's floats are 0 to 1


@pytest.fixture(autouse=True)
def functional():
    """torchvision.transforms.v2.functional."""
    need_torchvision()
    from torchvision.transforms.v2 import functional

    return functional


def photos() -> torch.Tensor:
    """uint8 (4, 3, SIDE, SIDE)."""
    pixels = np.random.default_rng(3).integers(0, 256, (4, 3, SIDE, SIDE), dtype=np.uint8)
    pixels[0, :, 0] = pixels[0, :1, 0]  # greys
    return torch.from_numpy(pixels)


def made(*steps, **options) -> dict:
    """What a pipeline makes of the photos."""
    images = photos().permute(0, 2, 3, 1).contiguous()
    sizes = torch.full((4, 4), SIDE, dtype=torch.int32)
    batch = {"images": images, "sizes": sizes, "image_ids": torch.arange(4)}
    return T.Pipeline(dataset(Layout(SIDE, SIDE, "squash")), steps, **PLAIN, **options)(batch, 0)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.9])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_factors_of_colours(name, factor, functional):
    found = made(T.ColorJitter(**{name: (factor, factor)}))["images"]
    expected = getattr(functional, f"adjust_{name}")(photos() / 255.0, factor)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("turn", [-0.5, -0.13, 0.2, 0.5])
def test_the_shift_of_hue(turn, functional):
    found = made(T.ColorJitter(hue=(turn, turn)))["images"]
    torch.testing.assert_close(
        found, functional.adjust_hue(photos() / 255.0, turn), atol=1e-5, rtol=0
    )


def test_grey_images(functional):
    found = made(T.RandomGrayscale(1))["images"]
    expected = functional.rgb_to_grayscale(photos() / 255.0, 3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.4), (9, 2.0), (23, 1.0)])
def test_gaussian_blur(size, sigma, functional):
    found = made(T.GaussianBlur(size, sigma))["images"]
    expected = functional.gaussian_blur(photos() / 255.0, [size, size], [sigma, sigma])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_vertical_flip(functional):
    found = made(T.RandomVerticalFlip(1))["images"]
    assert torch.equal(found, functional.vertical_flip(photos() / 255.0))


def test_random_erasing(functional):
    result = made(T.RandomErasing(1, value=(0.1, 0.2, 0.3)))
    value = torch.tensor([0.1, 0.2, 0.3])[:, None, None]
    for found, image, box in zip(
        result["images"], photos() / 255.0, result["erase_box"].tolist(), strict=True
    ):
        x0, y0, x1, y1 = box
        expected = functional.erase(image, y0, x0, y1 - y0, x1 - x0, value)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
