"""Images on the canvas of a class of aspect: what a pipeline makes of them on square canvases."""

import pytest
import torch
from made_batches import KEYS, Layout, dataset, moved, noisy_batch

from sa1bpack import transforms as T

SIDE = 24
LAYOUT = Layout(image_size=SIDE, mask_size=SIDE)


def planes_of(canvas):
    """Grey levels as planes, uint8 (B, H * 3 / 2, W), of RGB (B, H, W, 3)."""
    images, height, width = canvas.numpy(), *canvas.shape[1:3]
    luma = torch.from_numpy(images[..., 1].copy())
    chroma = torch.from_numpy(images[:, : height // 2, :width, 0].copy())
    return torch.cat([luma, chroma.reshape(len(luma), height // 2, width)], 1)


@pytest.mark.parametrize(
    "steps", [[T.RandomResizedCrop((0.1, 0.9))], [T.RandomAffine(20)]], ids=str
)
def test_a_smaller_canvas_changes_nothing(everywhere, steps):
    batch = noisy_batch(LAYOUT, "bits")
    assert batch["sizes"][:, 2:].amax(0).tolist() == [16, 24]
    square = batch | {"images": batch["images"] * 1}
    square["images"][:, 16:] = 0
    pipeline = T.Pipeline(dataset(LAYOUT), steps, size=(12, 20), seed=3)
    expected = pipeline(moved(square, everywhere), epoch=2)
    for height in (16, 20):
        small = square | {"images": square["images"][:, :height], "sample_class": 1}
        made = pipeline(moved(small, everywhere), epoch=2)
        assert made["sample_class"] == 1
        torch.testing.assert_close(made["images"], expected["images"], rtol=0, atol=1e-5)
        for key in KEYS:
            assert torch.equal(made[key], expected[key]), key


@pytest.mark.parametrize("canvas", [(16, 24), (20, 24)])
def test_planes_on_a_smaller_canvas_are_converted_as_on_a_square(everywhere, canvas):
    height, width = canvas
    batch = noisy_batch(LAYOUT, "bits")
    small = planes_of(batch["images"][:, :height, :width])
    chroma = small[:, height:].reshape(-1, 2, height // 2, width // 2)
    square = torch.zeros(len(small), SIDE * 3 // 2, SIDE, dtype=torch.uint8)
    square[:, :height, :width] = small[:, :height]
    halves = square[:, SIDE:].view(-1, 2, SIDE // 2, SIDE // 2)
    halves[:, :, : height // 2, : width // 2] = chroma
    pipeline = T.Pipeline(dataset(LAYOUT), size=(16, 24))
    expected = pipeline(moved(batch | {"images": square}, everywhere), epoch=0)["images"]
    made = pipeline(moved(batch | {"images": small, "sample_class": 0}, everywhere), epoch=0)
    torch.testing.assert_close(made["images"], expected, rtol=0, atol=1e-5)
