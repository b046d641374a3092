"""Runs drawn on a device, compared with the compiled kernels (which tests/masks compares with
full-size masks)."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import axes_of, expected, flat_runs, random_maps, random_sample

from sa1bpack.errors import MaskError
from sa1bpack.masks import window_map
from sa1bpack.transforms import AxisMaps, RunBatch, backends, draw_runs
from sa1bpack.transforms.masks import cells as torch_masks
from sa1bpack.transforms.masks.run_batch import Drawing

SAMPLINGS = ("area", "center")


BATCHES = st.tuples(
    st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 20), st.integers(1, 20)
)
any_device = settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@any_device
@given(BATCHES)
def test_upright_maps_draw_the_cells_of_draw_window(everywhere, sampling, batch):
    seed, count, *size = batch
    random = np.random.default_rng(seed)
    samples = [random_sample(random) for _ in range(count)]
    maps = random_maps(random, count, tuple(size))
    runs = RunBatch.collate(samples).to(everywhere)
    cells = expected(samples, maps, tuple(size), sampling)
    axes = axes_of(maps)
    on_device = AxisMaps(axes.scale.to(everywhere), axes.offset.to(everywhere))
    for given_maps in (torch.from_numpy(maps), axes, on_device):
        found = draw_runs(runs, given_maps, tuple(size), sampling)
        assert found.dtype == torch.bool and found.device.type == everywhere.type
        np.testing.assert_array_equal(found.cpu().numpy(), cells)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@any_device
@given(BATCHES)
def test_rotating_maps_draw_the_cells_of_draw_window(any_way, monkeypatch, sampling, drawn):
    """Some maps of the batch rotate, others do not; torch operations draw a few masks at a time."""
    monkeypatch.setattr(torch_masks, "chunk_bytes", lambda device: 20_000)
    seed, count, *size = drawn
    random = np.random.default_rng(seed)
    samples = [random_sample(random) for _ in range(count)]
    maps = random_maps(random, count, tuple(size))
    turned = random.random(count) < 0.7
    maps[turned, :, :2] += random.uniform(-2, 2, (turned.sum(), 2, 2))
    runs = RunBatch.collate(samples).to(any_way)
    cells = expected(samples, maps, tuple(size), sampling)
    found = draw_runs(runs, torch.from_numpy(maps), tuple(size), sampling)
    np.testing.assert_array_equal(found.cpu().numpy(), cells)


def test_masks_without_runs_are_padding(any_way):
    """Samples with three rows each, of which 2, 0 and 1 are masks."""
    rows = [[3, 9, 30], [0, 30], [], [], [], [], [10, 30], [], []]
    ends, offset = map(torch.from_numpy, flat_runs(rows))
    sizes = torch.tensor([[5, 6], [7, 7], [6, 5]])
    runs = RunBatch(ends, offset, torch.tensor([0, 3, 6, 9]), sizes, offset).to(any_way)
    maps = torch.from_numpy(np.stack([window_map(0, 0, 6, 6, (6, 6))] * 3))
    for sampling in SAMPLINGS:
        found = draw_runs(runs, maps, (6, 6), sampling)
        assert found.sum((1, 2)).tolist() == [6, 30, 0, 0, 0, 0, 20, 0, 0]


def test_damaged_runs_are_refused_on_the_cpu():
    ends, offset = flat_runs([[20], [7, 3, 20]])
    with pytest.raises(MaskError, match=r"^mask 1 of 2"):
        RunBatch.collate([(ends, offset, 4, 5)])
    offset = torch.from_numpy(offset)
    ends, of_one = torch.from_numpy(ends), torch.tensor([0, 2])
    runs = RunBatch(ends, offset, of_one, torch.tensor([[4, 5]]), offset)
    with pytest.raises(MaskError, match=r"^mask 1 of 2"):
        draw_runs(runs, torch.eye(3, dtype=torch.float64)[None, :2], (4, 5))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seed", range(2))
def test_damaged_runs_on_a_device_draw_cells_and_nothing_else(anywhere, sampling, seed):
    """The interpreter and CUDA end with an error, or a crash, where they reach outside arrays."""
    random = np.random.default_rng(seed)
    ends = torch.from_numpy(random.integers(-(2**31), 2**31, 40, dtype=np.int32))
    ends[:3] = torch.tensor([7, -500, 2**31 - 1])
    offset = torch.tensor([0, 17, 40])
    runs = RunBatch(ends, offset, torch.tensor([0, 2]), torch.tensor([[4, 5]]), offset)
    for turn in (0.0, 0.5):
        affine = torch.tensor([[[1 - 2 * seed, turn, 5 * seed], [0, 1, 0]]], dtype=torch.float64)
        found = draw_runs(runs.to(anywhere), affine, (4, 5), sampling)
        assert found.shape == (2, 4, 5) and (found.view(torch.uint8) <= 1).all()


def drawn(runs: RunBatch, maps, size, sampling, device):
    """Masks of all rows, and their counts, on the CPU; never by another backend."""
    runs = runs.to(device)
    rows = torch.arange(runs.masks, device=device)
    drawing = Drawing(
        runs.owner, len(runs.sizes), size, maps, None, runs, runs.sizes, rows, sampling
    )
    masks_and_counts = backends.launch(device, "masks.draw_upright", drawing)
    assert masks_and_counts is not None
    return [tensor.cpu() for tensor in masks_and_counts]


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


@pytest.mark.cuda
def test_a_dataloader_pins_the_runs_of_a_batch():
    runs = RunBatch.collate([random_sample(np.random.default_rng(0))])
    [batch] = torch.utils.data.DataLoader([0], collate_fn=lambda _: {"runs": runs}, pin_memory=True)
    assert batch["runs"].run_ends.is_pinned() and batch["runs"].sizes.is_pinned()
    assert torch.equal(batch["runs"].run_ends, runs.run_ends)
