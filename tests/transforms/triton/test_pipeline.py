"""A pipeline with Triton kernels has the results of the compiled ones, bit for bit."""

import pytest
import torch
from made_batches import KEYS, LAYOUT, STEPS, Layout, dataset, made_by, moved, noisy_batch, ragged

from sa1bpack.transforms import Pipeline, RandomHorizontalFlip, ScaleJitter


def by_compiled(made: Pipeline, batch: dict, epoch: int) -> dict:
    with made_by(compiled_on=("cpu",)):
        return made(batch, epoch)


# One of the three for each of the steps, at one of two sizes: interpreted kernels are slow.
KINDS = [("bits", "pad"), ("bool", "squash"), ("runs", "pad")]
CASES = [(name, *KINDS[n % 3], n % 2) for n, name in enumerate(STEPS)]
# Every other one takes place in `make torture` alone.
CASES = [pytest.param(*case, marks=[pytest.mark.long] * (n % 2)) for n, case in enumerate(CASES)]
SIZES = [{}, {"size": (24, 20), "mask_size": 16}]


@pytest.mark.parametrize("name, masks, fit, size", CASES)
def test_results_are_those_of_the_compiled_kernels(triton_device, name, masks, fit, size):
    pixels = "yuv420" if masks == "runs" else "rgb"
    layout = Layout(image_size=32, mask_size=32, fit=fit, pixels=pixels)
    batch = noisy_batch(layout, masks)
    made = Pipeline(dataset(layout), STEPS[name], **SIZES[size])
    found = moved(made(moved(batch, triton_device), 3), torch.device("cpu"))
    expected = by_compiled(made, batch, 3)
    assert found.keys() == expected.keys()
    # Elsewhere than on a CPU, powers and colours may be rounded in another way.
    exact = triton_device.type == "cpu" or name in ("none", "flip", "jitter")
    for key in (*KEYS, "images"):
        if key == "images" and name == "colors":  # the grey mean is summed in another order
            torch.testing.assert_close(found[key], expected[key], atol=1e-4, rtol=1e-4)
        elif exact:
            assert torch.equal(found[key], expected[key]), key
        elif found[key].is_floating_point():
            torch.testing.assert_close(found[key], expected[key], atol=1e-3, rtol=1e-3)
        else:
            assert (found[key] != expected[key]).float().mean() < 1e-3, key


@pytest.mark.parametrize("layout", ["padded", "concat_bits", "runs"])
def test_padding_and_flat_masks_are_those_of_the_compiled_kernels(triton_device, layout):
    batch = ragged(layout)
    made = Pipeline(
        dataset(LAYOUT), [RandomHorizontalFlip(), ScaleJitter(0.7, 1.5)], size=32, mask_size=24
    )
    found = moved(made(moved(batch, triton_device), 3), torch.device("cpu"))
    expected = by_compiled(made, batch, 3)
    assert found["masks"].flatten(-2).any(-1).sum() == 3
    for key in ("masks", "valid", "images"):
        assert torch.equal(found[key], expected[key]), key


@pytest.mark.parametrize("p", [0, 1], ids=["copy", "flip"])
def test_a_pixel_that_is_copied_or_mirrored_is_that_pixel_exactly(triton_device, p):
    layout = Layout(image_size=32, mask_size=32, fit="squash")
    batch = moved(noisy_batch(layout, "bits"), triton_device)
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    result = Pipeline(dataset(layout), [RandomHorizontalFlip(p)], **plain)(batch, 0)
    images = batch["images"].permute(0, 3, 1, 2).float()
    assert torch.equal(result["images"], images.flip(3) if p else images)


def test_images_of_any_floating_type(triton_device):
    layout = Layout(image_size=16, mask_size=16)
    batch = moved(noisy_batch(layout, "bits"), triton_device)
    single = Pipeline(dataset(layout), STEPS["crop"])(batch, 0)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        made = Pipeline(dataset(layout), STEPS["crop"], dtype=dtype)(batch, 0)
        tolerance = {"atol": 1e-38, "rtol": 2**-7 if dtype == torch.bfloat16 else 0}
        torch.testing.assert_close(made["images"], single["images"].to(dtype), **tolerance)
