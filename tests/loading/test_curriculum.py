"""Options that change by epoch or step, and buckets, in Loader and make_dataloader alike."""

import pickle

import numpy as np
import pytest
from batches import BOTH

from sa1bpack import LinearSchedule, Loader, OptionError, PiecewiseSchedule

# Batches of 6, then 4 and 2; 1 mask, then 3 and 5; by size, then drawn.
OPTIONS = {
    "max_masks": LinearSchedule(1, 5, epochs=2),
    "mask_select": ["largest", "random"],
    "shuffle": True,
    "seed": 5,
}
SIZES = PiecewiseSchedule(6, {1: 4, 2: 2})


@BOTH
def test_a_state_of_another_schedule_is_refused_by_name(ds, make):
    state = make(ds, SIZES, **OPTIONS).state_dict()
    for options, named in (
        (
            OPTIONS | {"max_masks": LinearSchedule(1, 9, epochs=2)},
            r"max_masks was 'PiecewiseSchedule\(1, \{1: 3, 2: 5",
        ),
        (
            OPTIONS | {"mask_select": "largest"},
            r"mask_select was \"PiecewiseSchedule\('largest', \{1: 'random'\}\)\", is",
        ),
        (OPTIONS | {"max_masks": None}, "max_masks was .*, is None"),
    ):
        with pytest.raises(OptionError, match=named):
            make(ds, SIZES, **options).load_state_dict(state)
    with pytest.raises(OptionError, match="batch_size was 'PiecewiseSchedule"):
        make(ds, 6, **OPTIONS).load_state_dict(state)
    make(ds, [6, 4, 2], **OPTIONS).load_state_dict(state)
    # What does not change may be another value after every resume, as ever.
    make(ds, 3, max_masks=9).load_state_dict(make(ds, 6, max_masks=1).state_dict())


@BOTH
def test_the_plan_is_of_the_largest_batch_of_all_epochs_and_says_what_changes(ds, make):
    by_step = OPTIONS | {"max_masks": PiecewiseSchedule(1, {2: 5}, by="step")}
    given = [(6, 1), (4, 3), (2, 5), (6, 5)]
    plans = [make(ds, size, max_masks=most).plan() for size, most in given]
    plans += [make(ds, SIZES, **options).plan() for options in (OPTIONS, by_step)]
    assert plans[4].batch_bytes == max(plan.batch_bytes for plan in plans[:3])
    assert plans[5].batch_bytes == plans[3].batch_bytes  # by epoch and by step: any pair
    assert plans[0].schedules == ""
    text = "batch_size=PiecewiseSchedule(6, {1: 4, 2: 2}), max_masks=LinearSchedule(1, 5, epochs=2)"
    assert f"the largest batch with {text}, mask_select=PiecewiseSchedule(" in str(plans[4])


@BOTH
@pytest.mark.parametrize(
    ("sizes", "options", "named"),
    [
        ([4, 0], {}, "from epoch 1 on, batch_size is 0"),
        (4, {"max_masks": [3, -1]}, "from epoch 1 on, max_masks is -1"),
        (4, {"max_masks": [3, None], "pad_to_max": True}, "from epoch 1 on, pad_to_max needs"),
        (4, {"mask_select": ["largest", "lagest"]}, "from epoch 1 on, mask_select is 'lagest'"),
        (
            4,
            {"mask_select": ["largest", np.ones(3)], "max_masks": 2},
            r"from epoch 1 on, mask_select is float64",
        ),
        (4, {"max_masks": lambda epoch: 1 + epoch}, "max_masks is a function that still changes"),
        (4, {"max_masks": "many"}, "max_masks is 'many': choose a whole number"),
        (4, {"bucket_by": "masks"}, "bucket_by is 'masks': choose one of"),
    ],
)
def test_values_that_cannot_be_used_are_refused_before_the_first_epoch(
    ds, make, sizes, options, named
):
    with pytest.raises(OptionError, match=named):
        make(ds, sizes, **options)


@BOTH
def test_a_function_is_called_once_per_epoch_and_need_not_be_picklable(ds, make):
    called = []
    options = {"max_masks": lambda epoch: called.append(epoch) or min(1 + epoch, 3)}
    loader = make(ds, lambda epoch: max(6 - 2 * epoch, 2), pad_to_max=True, **options)
    text = str(loader.plan())
    sent = pickle.loads(pickle.dumps(loader)) if make is Loader else loader
    assert [batch["areas"].shape[1] for _ in range(3) for batch in sent] == [
        *([1] * 2), *([2] * 3), *([3] * 6)
    ]  # fmt: skip
    assert called == list(range(1000))
    assert "batch_size=PiecewiseSchedule(6, {1: 4, 2: 2}), " in text
    assert ", max_masks=PiecewiseSchedule(1, {1: 2, 2: 3})" in text


@BOTH
def test_a_weight_may_depend_on_the_epoch(ds, make):
    """In epoch 0 only the largest masks have a weight, in epoch 1 only the smallest."""

    def weights(columns):
        pick = np.max if columns["epoch"] == 0 else np.min
        return columns["area"] == pick(columns["area"])

    loader = make(ds, 4, max_masks=1, mask_layout="concat", mask_select=weights)
    for pick in (np.max, np.min):
        for batch in loader:
            kept = iter(batch["areas"].tolist())
            for index in batch["indices"].tolist():
                areas = ds[index]["areas"]
                assert not len(areas) or next(kept) == pick(areas)


# ------------------------------------------------------------------------------------------ buckets


def test_a_loader_reads_all_epochs_into_the_buffers_that_were_planned(ds, memory):
    with Loader(ds, [2, 4, 6], max_masks=[9, 3, 1], threads=1) as loader:
        planned = loader.plan()
        assert [len(batch["areas"]) for _ in range(3) for batch in loader] == [
            *([2] * 6), *([4] * 3), *([6] * 2)
        ]  # fmt: skip
        assert [one().nbytes for one in memory] == [planned.batch_bytes] * planned.batches
