"""Images and planes by Triton kernels, compared with the compiled kernels, numpy and PIL."""

import numpy as np
import pytest
import torch

from sa1bpack.transforms import AxisMaps, Frame, backends
from sa1bpack.transforms.images.resample import Sampling, sample_compiled
from sa1bpack.transforms.memory import Memory, Table

MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
NORMAL = Table(np.array([MEAN, STD], np.float32))
UNCHANGED = Table(np.array([[0.0] * 3, [1.0] * 3], np.float32))


def framed(maps, keep, canvas, device="cpu") -> Frame:
    """Of images that cover so many rows and columns of a canvas."""
    maps = AxisMaps(maps.scale.to(device), maps.offset.to(device))
    return Frame(maps, keep.flip(1).double().to(device), canvas)


def sampled(device, images, maps, stored, keep, canvas, shrinks, plain=False):
    """The kernel's images, on the CPU."""
    frame = framed(maps, keep, canvas, device)
    normal = UNCHANGED if plain else NORMAL
    sampling = Sampling(images.to(device), stored.to(device), frame, normal, shrinks)
    found = backends.launch(device, "images.sample_images", sampling, torch.float32)
    assert found is not None
    return found.cpu()


def compiled(images, maps, stored, keep, canvas):
    sampling = Sampling(images, stored, framed(maps, keep, canvas), NORMAL, 1)
    return sample_compiled(sampling, Memory())


def made_images(count: int, side: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=random)


SCALES = {
    "copy and mirror": ([[1.0, 1], [-1, 1], [1, -1]], [[0.0, 0], [30, 0], [0, 24]], 1),
    "enlarge": ([[0.3, 0.71], [-0.5, 0.2], [0.99, 1]], [[2.3, 0.1], [31, 4], [-3.2, 5]], 1),
    "reduce": ([[2.5, 1.0], [-7.3, 3], [1.5, 0.25]], [[0.0, 0.4], [32, -2], [1, 1]], 7.3),
    "nearly one pixel": ([[9.0, 9], [1e-3, 1e-3], [9, 7]], [[0.0, 0], [5, 5], [0.0, 0]], 9),
}


@pytest.mark.parametrize("canvas", [(18, 12), (1, 70)])
@pytest.mark.parametrize("scale, offset, shrinks", SCALES.values(), ids=SCALES.keys())
def test_images_are_those_of_the_compiled_kernel_bit_for_bit(
    triton_device, scale, offset, shrinks, canvas
):
    images = made_images(3, 32)
    stored = torch.tensor([[32, 32], [32, 32], [24, 30]])
    maps = AxisMaps(*(torch.tensor(n, dtype=torch.float64) for n in (scale, offset)))
    keep = torch.tensor([[32, 32], [11, 9], [0, 5]]).minimum(torch.tensor(canvas))
    expected = compiled(images, maps, stored, keep, canvas)
    found = sampled(triton_device, images, maps, stored, keep, canvas, shrinks)
    assert torch.equal(found, expected)


def test_nothing_outside_a_canvas_is_read_or_written_whatever_the_sizes(triton_device):
    """Pixels of neighbours would be 255; sizes and maps are those of a damaged batch."""
    images = made_images(3, 16) // 2
    images[0], images[2] = 255, 255
    stored = torch.tensor([[16, 16], [30_000, 30_000], [16, 16]])
    scale = torch.tensor([[1.0, 1], [900, -900], [1, 1]], dtype=torch.float64)
    maps = AxisMaps(scale, torch.tensor([[0.0, 0], [-(10.0**6), 10.0**300], [0, 0]]).double())
    keep = torch.tensor([[16, 16]] * 3)
    found = sampled(triton_device, images, maps, stored, keep, (16, 16), 1, plain=True)
    assert (found[0] == 255).all() and (found[2] == 255).all() and (found[1] <= 127).all()
