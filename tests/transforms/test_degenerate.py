"""Every step on every degenerate batch, made in every way: compiled, by torch, by Triton."""

import pytest
from degenerate_batches import compare

from sa1bpack.transforms.images.resample import most_taps


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_a_degenerate_batch_has_one_result_by_compiled_kernels_and_torch(first):
    for seed in range(first, first + 20):
        compare(seed, triton=False)


@pytest.mark.parametrize("first", [1000, 1010])
def test_a_degenerate_batch_has_one_result_by_triton(first, triton_device, request):
    if triton_device.type != "cpu":
        pytest.skip("interpreted on a CPU alone; test_pipeline.py compares on a device")
    count = 10 if request.config.getoption("torture") else 2
    for seed in range(first, first + count):
        compare(seed, triton=True)


@pytest.mark.parametrize("most, side, taps", [
    (1, 48, 2), (1.2, 48, 3), (1000, 48, 48), (1e6, 1024, 1024), (1, 1, 1),
])  # fmt: skip
def test_a_filter_has_no_more_pixels_than_its_image(most, side, taps):
    assert most_taps(most, side) == taps
