"""Sizes of a pipeline that change: what it makes is what a pipeline of that size makes."""

import pickle

import pytest
import torch
from made_batches import LAYOUT, RECTANGLES, dataset, rectangle_batch, rectangle_runs

from sa1bpack.errors import OptionError
from sa1bpack.schedules import Linear, Steps
from sa1bpack.transforms import Pipeline, RandomHorizontalFlip, RandomResizedCrop

DS = dataset(LAYOUT)
STEPS = [RandomHorizontalFlip(), RandomResizedCrop((0.4, 1.0))]


@pytest.fixture
def batch():
    return rectangle_batch(LAYOUT, RECTANGLES) | {"runs": rectangle_runs(RECTANGLES)}


def equal(found, expected):
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value), key


@pytest.mark.parametrize("steps", [[], STEPS], ids=["none", "crop"])
def test_every_epoch_and_step_has_its_sizes_and_masks_are_drawn_at_them(batch, steps):
    changing = Pipeline(
        DS,
        steps,
        size=Linear(48, 96, epochs=2, multiple=8),
        seed=3,
        mask_size=Steps(24, {2: (32, 40), 4: 96}, by="step"),
    )
    for pipeline in (changing, pickle.loads(pickle.dumps(changing))):
        for epoch, step, size, grid in (
            (0, 0, 48, 24),
            (0, 1, 48, 24),
            (1, 2, 72, (32, 40)),
            (1, 4, 72, 96),
            (7, 9, 96, 96),
            (0, 1, 48, 24),
        ):
            given = batch | {"epoch": epoch, "global_step": step}
            expected = Pipeline(DS, steps, size=size, mask_size=grid, seed=3)(given)
            equal(pipeline(given), expected)
            assert expected["images"].shape[2:] == (size, size)
    text = repr(changing)
    assert "size=Linear(48, 96, epochs=2, multiple=8)" in text
    assert "mask_size=Steps((24, 24), {2: (32, 40), 4: (96, 96)}, by=step)" in text


def test_a_list_is_a_size_per_epoch_a_tuple_is_height_and_width(batch):
    by_epoch, pair = Pipeline(DS, size=[48, 96]), Pipeline(DS, size=(48, 96))
    shapes = [by_epoch(batch, epoch=epoch)["images"].shape[2:] for epoch in (0, 1, 5)]
    assert shapes == [(48, 48), (96, 96), (96, 96)]
    assert by_epoch(batch, epoch=0)["masks"].shape[2:] == (48, 48)  # as many pixels per cell
    assert pair(batch)["images"].shape[2:] == (48, 96)
    pairs = Pipeline(DS, size=[(48, 96), (96, 48)])
    assert pairs(batch, epoch=1)["images"].shape[2:] == (96, 48)


def test_a_batch_without_the_epoch_or_step_that_sizes_need_is_refused(batch):
    with pytest.raises(OptionError, match="sizes by epoch, and the batch has no 'epoch'"):
        Pipeline(DS, size=[48, 96])(batch)
    by_step = Pipeline(DS, size=Steps(48, {3: 96}, by="step"))
    with pytest.raises(OptionError, match="change by step, but the batch has no 'global_step'"):
        by_step(batch | {"epoch": 0})
    assert by_step(batch | {"global_step": 3})["images"].shape[2:] == (96, 96)
