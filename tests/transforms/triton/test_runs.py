"""Masks drawn by the Triton kernel, compared with the compiled kernels, pycocotools and numpy."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import axes_of, expected, flat_runs, random_maps, random_sample

from sa1bpack.masks import window_map
from sa1bpack.transforms import RunBatch, backends, draw_runs
from sa1bpack.transforms.masks.run_batch import Drawing

SAMPLINGS = ("area", "center")
few = settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def drawn(runs: RunBatch, maps, size, sampling, device):
    """Masks of all rows, and their counts, on the CPU; never by another backend."""
    runs = runs.to(device)
    place = torch.arange(runs.masks, device=device)
    given = runs.owner, len(runs.sizes), tuple(size), maps, None, runs, runs.sizes, place, sampling
    drawing = Drawing(*given)
    found = backends.launch(device, "masks.draw_upright", drawing)
    assert found is not None
    return [tensor.cpu() for tensor in found]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@few
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 30), st.integers(1, 30))
def test_cells_are_those_of_draw_window(triton_device, sampling, seed, count, height, width):
    """Empty, full and noisy masks, zero-length runs; maps that mirror, leave the image or have no
    width; and the same through `draw_runs`."""
    random, size = np.random.default_rng(seed), (height, width)
    samples = [random_sample(random) for _ in range(count)]
    maps = random_maps(random, count, size)
    runs = RunBatch.collate(samples)
    cells = torch.from_numpy(expected(samples, maps, size, sampling))
    found, counts = drawn(runs, axes_of(maps), size, sampling, triton_device)
    assert found.dtype == torch.bool and torch.equal(found, cells)
    assert counts.tolist() == cells.sum((1, 2)).tolist()
    again = draw_runs(runs.to(triton_device), torch.from_numpy(maps), size, sampling)
    assert torch.equal(again.cpu(), cells)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_maps_that_reach_far_draw_what_draw_window_draws_and_farther_ones_background(
    triton_device, sampling
):
    far = 2.0**20 - 1
    windows = [(-far, -far, far, far), (0, 0, 5, 4), (-1, 2, far, 2.5)]
    samples = [(*flat_runs([[0, 67_500]]), 270, 250)] * 3  # a run of more than 65,535 pixels
    maps = np.stack([window_map(*window, (8, 8)) for window in windows])
    cells = expected(samples, maps, (8, 8), sampling)
    runs = RunBatch.collate(samples)
    found, _ = drawn(runs, axes_of(maps), (8, 8), sampling, triton_device)
    np.testing.assert_array_equal(found.numpy(), cells)
    assert cells[1].all()
    beyond = axes_of(maps)
    beyond.offset[0, 0], beyond.offset[2, 1] = float("nan"), 2.0**20
    found, counts = drawn(runs, beyond, (8, 8), sampling, triton_device)
    assert counts.tolist() == [0, 64, 0] and found.sum((1, 2)).tolist() == [0, 64, 0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seed", range(2))
def test_damaged_runs_draw_cells_and_nothing_else(triton_device, sampling, seed):
    """The interpreter and CUDA end with an error, or a crash, where they reach outside arrays."""
    random = np.random.default_rng(seed)
    ends = torch.from_numpy(random.integers(-(2**31), 2**31, 40, dtype=np.int32))
    ends[:3] = torch.tensor([7, -500, 2**31 - 1])
    offset = torch.tensor([0, 17, 40])
    runs = RunBatch(ends, offset, torch.tensor([0, 2]), torch.tensor([[4, 5]]), offset)
    maps = axes_of(window_map(*((5, 0, 0, 4) if seed & 1 else (0, 0, 5, 4)), (4, 5))[None])
    found, counts = drawn(runs, maps, (4, 5), sampling, triton_device)
    assert counts.tolist() == found.view(torch.uint8).sum((1, 2)).tolist()
    assert (found.view(torch.uint8) <= 1).all()
