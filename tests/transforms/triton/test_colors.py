"""Colours by Triton kernels, compared with torch operations, which tests compare with PIL."""

import pytest
import torch
from made_batches import drawn

from sa1bpack.transforms import ColorJitter, RandomGrayscale, backends
from sa1bpack.transforms.images.colors import change_with_torch
from sa1bpack.transforms.images.pixel_steps import PixelChanges

MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
JITTERS = {
    "all": ColorJitter(0.6, 0.6, 0.6, 0.5),
    "brightness": ColorJitter((0, 3)),
    "contrast": ColorJitter(0, (0, 4)),
    "saturation": ColorJitter(0, 0, (0, 4)),
    "hue": ColorJitter(0, 0, 0, (0.1, 0.5)),
    "any order": ColorJitter(0.6, 0.6, 0.6, 0.5, random_order=True),
    "grey": RandomGrayscale(0.5),
}


def made_images(device) -> tuple[torch.Tensor, torch.Tensor]:
    """Three images of 37 x 41 with noise, greys and pure colours, the last one all padding."""
    random = torch.Generator().manual_seed(3)
    images = torch.rand((3, 3, 37, 41), generator=random) * 255
    images[0, :, :9] = images[0, :1, :9]  # greys: no hue
    images[1, :, 3] = torch.tensor([255.0, 0, 0])[:, None]
    images[1, :, 4] = torch.tensor([9.0, 200, 200])[:, None]  # two largest channels
    inside = torch.zeros((3, 37, 41), dtype=torch.bool)
    inside[0] = True
    inside[1, :20, :33] = True
    return images.to(device), inside.to(device)


def adjusted(step, images, inside, device, dtype):
    normal = torch.tensor([MEAN, STD], dtype=torch.float32, device=device)
    change = step(PixelChanges(), None, drawn(3, device)).colors
    return backends.launch(device, "colors.adjust_colors", images, inside, change, normal, dtype)


@pytest.mark.parametrize("step", JITTERS.values(), ids=JITTERS.keys())
def test_colours_are_those_of_torch_operations(step, triton_device):
    images, inside = made_images(triton_device)
    adjusted_images = adjusted(step, images.clone(), inside, triton_device, torch.float32)
    change = step(PixelChanges(), None, drawn(3, triton_device)).colors
    expected = change_with_torch(images.clone(), inside[:, None], change)
    mean, std = (torch.tensor(v, device=triton_device)[:, None, None] for v in (MEAN, STD))
    expected = (expected - mean) / std * inside[:, None]
    # Saturation and hue divide by small differences of colours that sums have rounded.
    torch.testing.assert_close(adjusted_images, expected, atol=2e-5, rtol=1e-5)
    assert not adjusted_images[2].any()
    assert not adjusted_images[1, :, 20:].any()


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_sums_are_in_single_precision_whatever_the_default(default, triton_device):
    images, inside = made_images(triton_device)

    def with_contrast():
        return adjusted(JITTERS["contrast"], images, inside, triton_device, torch.bfloat16)

    expected = with_contrast()
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        assert torch.equal(with_contrast(), expected)
    finally:
        torch.set_default_dtype(before)
