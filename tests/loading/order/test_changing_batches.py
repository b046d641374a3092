"""Batch sizes that change by epoch or step: one cut of one order, on any number of ranks."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sa1bpack import (
    Extent,
    OptionError,
    OrderedBatches,
    PiecewiseSchedule,
    ShuffleOrder,
    WeightedOrder,
)

SIZE = 53
EXTENT = Extent(SIZE, "0123456789abcdef")
ORDER = ShuffleOrder(EXTENT, seed=3)

SCHEDULES = {
    "epoch": PiecewiseSchedule(12, {1: 6, 3: 24}),
    "step": PiecewiseSchedule(6, {3: 12, 17: 24, 19: 6, 20: 12}, by="step"),
    "list": [24, 12],
    "function": lambda epoch: 6 * (1 + epoch // 2) if epoch < 6 else 18,
}
each = pytest.mark.parametrize("sizes", SCHEDULES.values(), ids=SCHEDULES)


def size_at(sizes, epoch, step):
    if isinstance(sizes, list):
        return sizes[min(epoch, len(sizes) - 1)]
    return sizes(step if isinstance(sizes, PiecewiseSchedule) and sizes.by == "step" else epoch)


def reference(sizes, last, epochs):
    """Batches of several epochs, cut one after the other, and the step of the first of each."""
    found, firsts, step = [], [], 0
    for epoch in range(epochs):
        whole, batches = ORDER.take(epoch, 0, SIZE).tolist(), []
        firsts.append(step)
        position = 0
        while position < SIZE:
            size = size_at(sizes, epoch, step)
            batch = whole[position : position + size]
            position += size
            if len(batch) < size and "drop_last" in last:
                break
            if len(batch) < size and "pad_last" in last:
                batch += whole[: size - len(batch)]
            batches.append(batch)
            step += 1
        found.append(batches)
    return found, firsts


LAST = [{}, {"drop_last": True}, {"pad_last": True}]


def joined(parts):
    return [[index for part in batch for index in part] for batch in zip(*parts, strict=True)]


@each
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_epoch_is_the_same_order_cut_otherwise(sizes, last, ranks):
    expected, firsts = reference(sizes, last, 8)
    per_rank = [
        OrderedBatches(ORDER, global_batch_size=sizes, rank=rank, world_size=ranks, **last)
        for rank in range(ranks)
    ]
    for epoch in range(8):
        assert joined([list(batches) for batches in per_rank]) == expected[epoch]
        for batches in per_rank:
            assert len(batches) == len(expected[epoch])
            assert batches.first_step(epoch) == firsts[epoch]
            steps = [batch.step for batch in batches.current]
            assert steps == [*range(firsts[epoch], firsts[epoch] + len(steps))]
    assert per_rank[0].most_samples == 24 // ranks or sizes is SCHEDULES["function"]


@settings(max_examples=25)
@given(
    some.lists(some.tuples(some.integers(1, 40), some.integers(1, 9)), max_size=4),
    some.sampled_from(["epoch", "step"]),
    some.sampled_from(LAST),
    some.data(),
)
def test_a_run_that_is_resumed_anywhere_on_other_ranks_is_the_same_run(changes, by, last, data):
    sizes = PiecewiseSchedule(6, {at: 6 * size for at, size in changes}, by=by)
    last = {"pad_last": True} if "drop_last" in last and sizes.largest > SIZE else last
    expected, firsts = reference(sizes, last, 4)
    epoch = data.draw(some.integers(0, 2))
    done = data.draw(some.integers(0, len(expected[epoch])))
    saved = OrderedBatches(ORDER, global_batch_size=sizes, rank=1, world_size=2, **last)
    saved.set_epoch(epoch)
    state = json.loads(json.dumps(saved.state_after(done)))
    rest = expected[epoch][done:] or expected[epoch + 1]
    for ranks in (1, 3):
        parts = []
        for rank in range(ranks):
            options = {"global_batch_size": sizes, "world_size": ranks, **last}
            batches = pickle.loads(pickle.dumps(OrderedBatches(ORDER, rank=rank, **options)))
            batches.load_state_dict(state)
            begun = firsts[epoch] + done if done < len(expected[epoch]) else firsts[epoch + 1]
            assert batches.current[0].step == begun
            parts.append(list(batches))
        assert joined(parts) == rest


@pytest.mark.parametrize(
    ("sizes", "options", "named"),
    [
        ([8, 7], {"world_size": 2}, r"size 7 \(from epoch 1 on\) counts .* of world_size 2"),
        ([8, 64], {"drop_last": True}, r"full batch of 64 \(from epoch 1 on\)"),
        ([8, 0], {}, "from epoch 1 on, global_batch_size is 0"),
        ([4, 26], {"world_size": 2}, "last batch of epoch 0 has 1 sample for 2 ranks"),
        ([6, 26], {"world_size": 2}, "last batch of epoch 1 has 1 sample for 2 ranks"),
        (
            PiecewiseSchedule(6, {20: 26}, by="step"),
            {"world_size": 2},
            "last batch of epoch 3 has 1 sample ",
        ),
    ],
)
def test_sizes_that_cannot_be_cut_in_a_later_epoch_are_refused_at_once(sizes, options, named):
    with pytest.raises(OptionError, match=named):
        OrderedBatches(ORDER, global_batch_size=sizes, **options)


def test_weights_of_images_may_change_by_epoch():
    first, second = np.arange(SIZE), np.arange(SIZE)[::-1] ** 2
    by_epoch = WeightedOrder(EXTENT, [first, second], seed=1)
    scheduled = WeightedOrder(EXTENT, PiecewiseSchedule(first, {1: second}), seed=1)
    for changing in (by_epoch, scheduled):
        assert changing.identity() == by_epoch.identity()
        for epoch, weights in enumerate([first, second, second]):
            plain = WeightedOrder(EXTENT, weights, seed=1)
            assert np.array_equal(changing.take(epoch, 3, SIZE), plain.take(epoch, 3, SIZE))
    assert (
        WeightedOrder(EXTENT, first.tolist()).identity() == WeightedOrder(EXTENT, first).identity()
    )
    state = OrderedBatches(by_epoch, 6).state_after(2)
    with pytest.raises(OptionError, match=r"weights was '[0-9a-f]{16}, 1: [0-9a-f]{16}', is "):
        OrderedBatches(WeightedOrder(EXTENT, first, seed=1), 6).load_state_dict(state)
    with pytest.raises(OptionError, match=r"from epoch 1 on, weights .* one number per samp"):
        WeightedOrder(EXTENT, [first, first[1:]])
    with pytest.raises(OptionError, match="weights is <U1"):
        WeightedOrder(EXTENT, np.array(["a"] * len(first)))
    with pytest.raises(OptionError, match="weights change by step, but"):
        WeightedOrder(EXTENT, PiecewiseSchedule(first, {1: second}, by="step"))
