"""Compiled kernels on a CPU have the results of the torch operations that a device runs."""

import threading

import pytest
import torch
from made_batches import KEYS, LAYOUT, STEPS, Layout, dataset, made_by, noisy_batch, ragged

from sa1bpack.transforms import Pipeline, RandomHorizontalFlip
from sa1bpack.transforms.backends import run_jobs, sharing_cores


@pytest.mark.parametrize("masks, fit", [("bits", "pad"), ("bool", "squash"), ("runs", "pad")])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_a_cpu_has_the_results_of_a_device(steps, fit, masks):
    layout = Layout(fit=fit)
    batch = noisy_batch(layout, masks)
    for options in ({}, {"size": (64, 80), "mask_size": 41}, {"size": 150, "mask_size": (9, 96)}):
        pipeline = Pipeline(dataset(layout), steps, seed=2, min_area=30, **options)
        with made_by():
            expected = pipeline(batch, 1)
        found = pipeline(batch, 1)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in KEYS)
        # `grid_sample` takes float32 positions: up to 1e-4 of a pixel off.
        torch.testing.assert_close(found["images"], expected["images"], atol=2e-3, rtol=0)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("steps, masks", [
    ("jitter", "padded_bits"), ("jitter", "runs"), ("affine", "padded_bits"), ("affine", "concat"),
])  # fmt: skip
def test_jobs_and_threads_do_not_change_the_result(steps, masks):
    """An image is made in three jobs, and every mask in its own."""
    batch = ragged(masks)
    found = []
    pipeline = Pipeline(dataset(LAYOUT), STEPS[steps], size=520, mask_size=2100)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(pipeline(batch, 0))
    one, several = found
    assert all(torch.equal(several[key], one[key]) for key in one if key != "runs")
    with made_by():
        expected = pipeline(batch, 0)
    assert all(torch.equal(one[key], expected[key]) for key in KEYS)


@pytest.mark.usefixtures("threads_restored")
def test_jobs_of_a_thread_that_shares_the_cores_take_its_share():
    torch.set_num_threads(4)
    used = []

    def threads_of(sharing: int) -> set[int]:
        meeting = threading.Barrier(max(1, 4 // sharing))

        def job() -> None:
            meeting.wait(60)
            used.append(threading.get_ident())

        used.clear()
        with sharing_cores(sharing):
            run_jobs([job] * 4)
        return set(used)

    assert len(threads_of(1)) == 4
    assert len(threads_of(2)) == 2
    assert threads_of(4) == threads_of(9) == {threading.get_ident()}


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_thread_reaches_the_caller(threads):
    torch.set_num_threads(threads)
    with pytest.raises(ZeroDivisionError):
        run_jobs([lambda: None, lambda: 1 / 0, lambda: None])


def test_a_kept_result_is_not_overwritten_by_later_ones():
    """Large results, of which only views are kept."""
    batch = noisy_batch(LAYOUT, "runs")
    options = {"steps": [RandomHorizontalFlip()], "size": 640, "mask_size": 640}
    pipeline = Pipeline(dataset(LAYOUT), **options)
    kept = []
    for epoch in range(5):
        done = pipeline(batch, epoch)
        kept.append((done["images"][1:3, 0], done["masks"][2:]))
        del done
    for epoch, (images, masks) in enumerate(kept):
        fresh = Pipeline(dataset(LAYOUT), **options)(batch, epoch)
        assert torch.equal(images, fresh["images"][1:3, 0])
        assert torch.equal(masks, fresh["masks"][2:])
