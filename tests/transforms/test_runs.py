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
from sa1bpack.transforms import AxisMaps, RunBatch, draw_runs
from sa1bpack.transforms.masks import runs as runs_module

SAMPLINGS = ("area", "center")


BATCHES = st.tuples(
    st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 30), st.integers(1, 30)
)
any_device = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@any_device
@given(BATCHES)
def test_upright_maps_draw_the_cells_of_draw_window(any_way, sampling, drawn):
    seed, count, *size = drawn
    random = np.random.default_rng(seed)
    samples = [random_sample(random) for _ in range(count)]
    maps = random_maps(random, count, tuple(size))
    runs = RunBatch.collate(samples).to(any_way)
    cells = expected(samples, maps, tuple(size), sampling)
    axes = axes_of(maps)
    on_device = AxisMaps(axes.scale.to(any_way), axes.offset.to(any_way))
    for given_maps in (torch.from_numpy(maps), axes, on_device):
        found = draw_runs(runs, given_maps, tuple(size), sampling)
        assert found.dtype == torch.bool and found.device.type == any_way.type
        np.testing.assert_array_equal(found.cpu().numpy(), cells)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@any_device
@given(BATCHES)
def test_rotating_maps_draw_the_cells_of_draw_window(any_way, monkeypatch, sampling, drawn):
    """Some maps of the batch rotate, others do not; torch operations draw a few masks at a time."""
    monkeypatch.setattr(runs_module, "chunk_bytes", lambda device: 20_000)
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
    ends, offset = flat_runs([[3, 9, 30], [0, 30], [], [], [], [], [10, 30], [], []])
    runs = RunBatch(
        torch.from_numpy(ends),
        torch.from_numpy(offset),
        torch.tensor([0, 3, 6, 9]),
        torch.tensor([[5, 6], [7, 7], [6, 5]]),
        torch.from_numpy(offset),
    ).to(any_way)
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
def test_damaged_runs_on_a_device_write_nothing_outside_the_result(operations, sampling):
    """On CUDA an index error is an assertion, after which the device cannot be used."""
    ends = torch.tensor([7, -500, 2**31 - 1, 3, 20], dtype=torch.int32)
    offset = torch.tensor([0, 5])
    runs = RunBatch(ends, offset, torch.tensor([0, 1]), torch.tensor([[4, 5]]), offset)
    for turn in (0.0, 0.5):
        affine = torch.tensor([[[1, turn, 0], [0, 1, 0]]], dtype=torch.float64)
        assert draw_runs(runs, affine, (4, 5), sampling).shape == (1, 4, 5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_dataloader_pins_the_runs_of_a_batch():
    runs = RunBatch.collate([random_sample(np.random.default_rng(0))])
    [batch] = torch.utils.data.DataLoader([0], collate_fn=lambda _: {"runs": runs}, pin_memory=True)
    assert batch["runs"].run_ends.is_pinned() and batch["runs"].sizes.is_pinned()
    assert torch.equal(batch["runs"].run_ends, runs.run_ends)
