"""Compiled kernels on a CPU have the results of the torch operations that a device runs."""

import pytest
import torch
from made_batches import KEYS, STEPS, dataset, noisy_batch

from sa1bpack.format.layout import Layout
from sa1bpack.transforms import Pipeline, RandomHorizontalFlip, backends
from sa1bpack.transforms.backends import run_jobs
from sa1bpack.transforms.images import make as made_images
from sa1bpack.transforms.masks import make as made_masks


@pytest.mark.parametrize(("masks", "fit"), [("bits", "pad"), ("bool", "squash"), ("runs", "pad")])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_a_cpu_has_the_results_of_a_device(steps, fit, masks, monkeypatch):
    layout = Layout(image_size=96, mask_size=96, fit=fit)
    batch = noisy_batch(layout, masks)
    for options in ({}, {"size": (64, 80), "mask_size": 41}, {"size": 150, "mask_size": (9, 96)}):
        pipeline = Pipeline(dataset(layout), steps, seed=2, min_area=30, **options)
        with monkeypatch.context() as patch:
            patch.setattr(backends, "COMPILED_ON", ())
            expected = pipeline(batch, 1)
        found = pipeline(batch, 1)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in KEYS)
        # `grid_sample` takes float32 positions: up to 1e-4 of a pixel off.
        torch.testing.assert_close(found["images"], expected["images"], atol=2e-3, rtol=0)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("masks", ["bits", "bool", "runs"])
@pytest.mark.parametrize("steps", [STEPS["jitter"], STEPS["affine"]], ids=["jitter", "affine"])
def test_jobs_and_threads_do_not_change_the_result(steps, masks, monkeypatch):
    layout = Layout(image_size=96, mask_size=96)
    batch = noisy_batch(layout, masks)
    pipeline = Pipeline(dataset(layout), steps)
    torch.set_num_threads(1)
    expected = pipeline(batch, 0)
    monkeypatch.setattr(made_masks, "PART_BYTES", 1)
    monkeypatch.setattr(made_images, "PART_ROWS", 7)
    for count in (1, 3):
        torch.set_num_threads(count)
        found = pipeline(batch, 0)
        assert all(torch.equal(found[key], expected[key]) for key in expected if key != "runs")


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_thread_reaches_the_caller(threads):
    torch.set_num_threads(threads)
    with pytest.raises(ZeroDivisionError):
        run_jobs([lambda: None, lambda: 1 / 0, lambda: None])


def test_a_kept_result_is_not_overwritten_by_later_ones():
    """Large results, of which only views are kept."""
    layout = Layout(image_size=96, mask_size=96)
    batch = noisy_batch(layout, "runs")
    options = {"steps": [RandomHorizontalFlip()], "size": 640, "mask_size": 640}
    pipeline, kept = Pipeline(dataset(layout), **options), []
    for epoch in range(5):
        done = pipeline(batch, epoch)
        kept.append((done["images"][1:3, 0], done["masks"][2:]))
        del done
    for epoch, (images, masks) in enumerate(kept):
        fresh = Pipeline(dataset(layout), **options)(batch, epoch)
        assert torch.equal(images, fresh["images"][1:3, 0])
        assert torch.equal(masks, fresh["masks"][2:])
