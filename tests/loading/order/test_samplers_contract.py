"""One contract for every order, on 1 to 8 ranks, with every choice for the last batch."""

import json
import pickle
from itertools import chain

import numpy as np
import pytest

from sa1bpack import (
    Extent,
    LocalShuffleOrder,
    NodeShuffleOrder,
    OptionError,
    OrderedBatches,
    SequentialOrder,
    ShuffleOrder,
    WeightedOrder,
)

RANKS = range(1, 9)
BATCH = 840  # a multiple of each
SIZE = 3 * BATCH + 13  # the last batch is short, but has enough for 8 ranks
EXTENT = Extent(SIZE, "0123456789abcdef", np.array([0, 300, 301, 900, 900, 1500, SIZE]))

ORDERS = {
    "sequential": lambda seed=0, extent=EXTENT: SequentialOrder(extent),
    "shuffle": lambda seed=0, extent=EXTENT: ShuffleOrder(extent, seed=seed),
    "local": lambda seed=0, extent=EXTENT: LocalShuffleOrder(extent, window=2, seed=seed),
    "blocks": lambda seed=0, extent=EXTENT: LocalShuffleOrder(extent, window=3, block=4, seed=seed),
    "by_node": lambda seed=0, extent=EXTENT: NodeShuffleOrder(extent, nodes=8, seed=seed),
    "weighted": lambda seed=0, extent=EXTENT: WeightedOrder(extent, range(len(extent)), seed=seed),
}
ONCE = [name for name in ORDERS if name != "weighted"]
LAST = [{}, {"drop_last": True}, {"pad_last": True}]

each_order = pytest.mark.parametrize("make", ORDERS.values(), ids=ORDERS)
each_last = pytest.mark.parametrize("last", LAST)


def flat(batches):
    return list(chain.from_iterable(batches))


def epoch_of(make, epoch=0, seed=0):
    order = make(seed)
    return order.take(epoch, 0, len(order)).tolist()


def on_all_ranks(order, ranks, state=None, batch_size=BATCH, **last):
    """The global batches, joined from what the ranks yield, whose parts are as equal as can be."""
    per_rank = []
    for rank in range(ranks):
        options = {"global_batch_size": batch_size, "rank": rank, "world_size": ranks}
        batches = OrderedBatches(order, **options, **last)
        if state is not None:
            batches.load_state_dict(state)
        per_rank.append(list(batches))
    found = list(zip(*per_rank, strict=True))
    for parts in found:
        sizes = [len(part) for part in parts]
        assert min(sizes) > 0 and max(sizes) - min(sizes) <= (not last)
    return [flat(parts) for parts in found]


# ------------------------------------------------------------------------------------------- orders


@each_order
def test_positions_taken_in_any_pieces_and_any_order_are_the_same(make):
    order, whole = make(), epoch_of(make)
    assert len(whole) == SIZE
    rng = np.random.default_rng(0)
    for start, stop in np.sort(rng.integers(0, SIZE + 1, (60, 2)), axis=1).tolist():
        taken = order.take(0, start, stop)
        assert taken.dtype == np.int64
        assert taken.tolist() == whole[start:stop]
        order.take(int(rng.integers(0, 3)), 0, 5)  # another epoch in between changes nothing


@pytest.mark.parametrize("name", ONCE)
def test_every_epoch_has_every_sample_once(name):
    for epoch in range(4):
        assert sorted(epoch_of(ORDERS[name], epoch)) == list(range(SIZE))


@each_order
def test_an_order_survives_a_pickle_without_its_cached_permutation(make):
    order = make(extent=Extent(50_000, "0" * 16, np.array([0, 20_000, 50_000])))
    before = len(pickle.dumps(order))
    taken = order.take(0, 0, 50_000)
    assert len(pickle.dumps(order)) == before
    assert pickle.loads(pickle.dumps(order)).take(0, 0, 50_000).tolist() == taken.tolist()


@pytest.mark.parametrize(
    ("name", "pinned"),
    [
        ("sequential", [0, 1, 2, 3, 4, 5]),
        ("shuffle", [1204, 1561, 2295, 1712, 940, 2349]),
        ("local", [2404, 2140, 2357, 1768, 1526, 85]),
        ("blocks", [2498, 2499, 2500, 2501, 1534, 1535]),
        ("weighted", [1601, 969, 2415, 1944, 427, 1114]),
    ],
)
def test_the_start_of_epoch_2_is_pinned(name, pinned):
    assert ORDERS[name](5).take(2, 0, 6).tolist() == pinned


# ------------------------------------------------------------------------------------------ batches


@each_last
@each_order
def test_any_number_of_ranks_yields_the_same_global_batches(make, last):
    whole = epoch_of(make)
    parts = np.split(np.array(whole), range(BATCH, SIZE, BATCH))
    expected = [make().arranged(part).tolist() for part in parts]
    if "drop_last" in last:
        del expected[-1]
    if "pad_last" in last:
        expected[-1] += whole[: BATCH - len(expected[-1])]
    for ranks in RANKS:
        assert on_all_ranks(make(), ranks, **last) == expected


@each_order
def test_samples_that_fill_up_the_last_batch_are_marked_on_any_number_of_ranks(make):
    """They are the first ones of the epoch; without `pad_last` there is none."""
    for ranks in RANKS:
        options = {"global_batch_size": BATCH, "world_size": ranks, "pad_last": True}
        parts = [OrderedBatches(make(), rank=rank, **options).current for rank in range(ranks)]
        batches = [part[k] for k in range(len(parts[0])) for part in parts]
        repeated = np.concatenate([batch.indices[batch.repeated] for batch in batches])
        assert sorted(repeated) == sorted(epoch_of(make)[: -SIZE % BATCH])
        assert not any(batch.repeated.any() for batch in batches[:-ranks])
    short = OrderedBatches(make(), BATCH).current
    assert all(batch.repeated is None for batch in short)


# ------------------------------------------------------------------------------------------- states


@each_last
@each_order
def test_a_run_resumed_after_any_batch_yields_the_rest_on_any_number_of_ranks(make, last):
    straight = OrderedBatches(make(), BATCH, **last)
    epochs = [list(straight), list(straight)]
    saved_on = OrderedBatches(make(), global_batch_size=BATCH, rank=1, world_size=2, **last)
    iter(saved_on)
    for k in range(len(epochs[0]) + 1):
        state = json.loads(json.dumps(saved_on.state_after(k)))
        rest = epochs[0][k:] or epochs[1]  # after the last batch comes the next epoch
        for ranks in RANKS:
            assert on_all_ranks(make(), ranks, state, **last) == rest


def test_where_too_few_samples_remain_for_a_batch_the_next_epoch_follows():
    state = OrderedBatches(ORDERS["shuffle"](), BATCH, drop_last=True).state_after(2)
    assert state["samples"] == 1680
    resumed = OrderedBatches(ORDERS["shuffle"](), 900, drop_last=True)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    assert flat(resumed) == epoch_of(ORDERS["shuffle"], 1)[:1800]


@pytest.mark.parametrize(
    ("order", "named"),
    [
        (SequentialOrder(EXTENT), "kind was 'local-shuffle', is 'sequential'"),
        (LocalShuffleOrder(EXTENT, window=2, seed=1), "seed was 0, is 1"),
        (LocalShuffleOrder(EXTENT, window=4), "window was 2, is 4"),
        (LocalShuffleOrder(EXTENT, window=2, block=2), "block was 1, is 2"),
        (LocalShuffleOrder(Extent(SIZE, EXTENT.fingerprint), window=2), "shards was"),
    ],
)
def test_whatever_decides_the_order_must_be_the_same(order, named):
    state = OrderedBatches(ORDERS["local"](), BATCH).state_dict()
    with pytest.raises(OptionError, match=named):
        OrderedBatches(order, BATCH).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "'version': 2.*: this release reads .* version 1"),
        ({"epoch": -1}, "the state's epoch is .*: choose a whole number from 0"),
        ({"epoch": "1"}, "is '1'"),
        ({"samples": SIZE + 1}, f"samples is {SIZE + 1}: .* from 0 to {SIZE}"),
        ({"samples": 2.0}, "is 2.0"),
        ({"order": None}, "'order': None.* a dict as order"),
        ({"more": 1}, "'more'.*: this release reads states with the keys"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change, named):
    batches = OrderedBatches(ORDERS["shuffle"](), BATCH)
    before = batches.state_dict()
    with pytest.raises(OptionError, match=named):
        batches.load_state_dict(before | change)
    with pytest.raises(OptionError, match="the state is None: this release reads"):
        batches.load_state_dict(None)
    assert batches.state_dict() == before
