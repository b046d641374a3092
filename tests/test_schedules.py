"""Schedules are pure functions of the epoch or the step, and known before training begins."""

import pickle

import numpy as np
import pytest
from reading_packs import ds, packed  # noqa: F401 - fixtures

from sa1bpack import (
    CosineSchedule,
    FunctionSchedule,
    LinearSchedule,
    Loader,
    OptionError,
    PiecewiseSchedule,
)


def values(schedule, count):
    return [schedule(number) for number in range(count)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (PiecewiseSchedule(20, {1: 30, 4: 5}), [20, 30, 30, 30, 5, 5, 5]),
        (LinearSchedule(20, 100, epochs=8), [20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100]),
        (LinearSchedule(8, 2, epochs=4), [8, 7, 5, 4, 2, 2]),  # 6.5 and 3.5: halves up
        (LinearSchedule(512, 1024, epochs=4, multiple=256), [512, 768, 768, 1024, 1024, 1024]),
        (CosineSchedule(0, 100, epochs=4), [0, 15, 50, 85, 100, 100]),
        (FunctionSchedule(lambda n: n * n, epochs=4), [0, 1, 4, 9, 9, 9]),
    ],
)
def test_values_are_those_of_the_epochs(schedule, expected):
    found = pickle.loads(pickle.dumps(schedule))  # the function is not in it
    assert values(schedule, len(expected)) == values(found, len(expected)) == expected
    assert [schedule.at(number, None) for number in range(len(expected))] == expected
    assert schedule.largest == max(expected)
    assert found == schedule and found.text == schedule.text
    assert schedule(2**63) == schedule(schedule.until)


def test_a_schedule_by_step_has_the_value_of_the_step():
    for made in (LinearSchedule(10, 20, steps=100), CosineSchedule(10, 20, steps=100)):
        assert made.by == "step" and made.at(0, 100) == made.at(7, 5000) == 20
        exact = np.array([made.at(0, step) for step in range(101)])
        assert (np.diff(exact) >= 0).all() and exact[50] == 15
    assert PiecewiseSchedule("largest", {3: "random"}, by="step").at(99, 2) == "largest"


def test_equal_schedules_are_equal_however_they_were_written():
    one = PiecewiseSchedule(20, {1: 30, 2: 40})
    other = LinearSchedule(20, 40, epochs=2)
    assert other == one and other.text == "PiecewiseSchedule(20, {1: 30, 2: 40})"
    assert repr(one) == "PiecewiseSchedule(20, {1: 30, 2: 40})"
    assert repr(other) == "LinearSchedule(20, 40, epochs=2)"
    assert PiecewiseSchedule(20, {1: 30, 2: 40}, by="step") != one
    long, longer = LinearSchedule(0, 50, steps=50), LinearSchedule(0, 51, steps=51)
    assert "50 changes" in long.text and long != longer
    weights = np.ones(3)
    weighted = PiecewiseSchedule("largest", {1: weights})
    assert weighted == PiecewiseSchedule("largest", {1: weights.copy()})
    assert weighted != PiecewiseSchedule("largest", {1: 2 * weights})


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LinearSchedule(1, 2), "LinearSchedule has epochs=None and steps=None: give one"),
        (lambda: CosineSchedule(1, 2, epochs=1, steps=1), "give one of them"),
        (lambda: LinearSchedule(1, 2, epochs=0), "epochs is 0: choose a whole number from 1"),
        (lambda: LinearSchedule(True, 2, epochs=1), "first is True: choose a number"),
        (lambda: LinearSchedule(1, float("inf"), epochs=1), "last is inf"),
        (lambda: LinearSchedule(0.9, 0.1, epochs=8), "first is 0.9: choose a whole number.*90 and"),
        (lambda: CosineSchedule(1, 0.5, steps=8), "last is 0.5: choose a whole number"),
        (lambda: PiecewiseSchedule(1, [2]), r"changes is \[2\]: pass a dict"),
        (lambda: PiecewiseSchedule(1, {0: 2}), "a key of changes is 0"),
        (lambda: PiecewiseSchedule(1, {1: 2}, by="batch"), "by is 'batch': choose one of epoch,"),
        (lambda: FunctionSchedule(3, epochs=1), "function is 3"),
        (lambda: FunctionSchedule([3, 4].__getitem__, steps=9), r"step 2: IndexError: .*steps=2\)"),
    ],
)
def test_what_cannot_be_used_is_named(make, named):
    with pytest.raises(OptionError, match=named):
        make()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([3, 1, 2], "PiecewiseSchedule(3, {1: 1, 2: 2})"),
        ([20, 30, 40, 40], "PiecewiseSchedule(20, {1: 30, 2: 40})"),
        (lambda epoch: max(8 - epoch // 5, 6), "PiecewiseSchedule(8, {5: 7, 10: 6})"),
        (7, "7"),
    ],
)
def test_an_option_may_be_a_list_or_a_function_of_the_epoch(ds, value, shown):  # noqa: F811
    with Loader(ds, 2, max_masks=value) as loader:
        assert f" max_masks {shown} padded" in repr(loader)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ([2, 3, 4].__getitem__, r"epoch 3: .*FunctionSchedule\(f, epochs=3\)"),
        (lambda: 20, r"epoch 0: TypeError.*with each epoch from 0"),
        ([], "batch_size is an empty list"),
        (lambda n: 1 + n % 2, r"still changes in epoch 999.*FunctionSchedule\("),
        ([4, 0], "from epoch 1 on, batch_size is 0: choose a whole number"),
        ([4, 2.5], "from epoch 1 on, batch_size is 2.5"),
        (0, "^batch_size is 0: choose"),
    ],
)
def test_an_option_that_no_schedule_can_be_made_of_is_named(ds, value, named):  # noqa: F811
    with pytest.raises(OptionError, match=named):
        Loader(ds, value)
