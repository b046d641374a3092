"""HomeShuffleOrder: each node reads the same part of the pack in every epoch."""

import numpy as np
import pytest

from sa1bpack.errors import OptionError
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.buckets import Buckets
from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.order.functions import Key, home_shards, home_shuffle
from sa1bpack.loading.order.orders import Extent, HomeShuffleOrder

FINGERPRINT = "0123456789abcdef"
BOUNDS = np.array([0, 100, 100, 350, 700, 760, 1000, 1201])
HOMES, BATCH = 12, 60


def extent(fingerprint=FINGERPRINT, bounds=BOUNDS):
    return Extent(int(bounds[-1]), fingerprint, bounds)


def places(bounds=BOUNDS) -> np.ndarray:
    """The place of each sample where the shards are in the order of the homes."""
    shards = home_shards(len(bounds) - 1).tolist()
    samples = np.concatenate([np.arange(bounds[k], bounds[k + 1]) for k in shards])
    return np.argsort(samples)


def home_of(samples) -> np.ndarray:
    """The home of samples: the first homes have one sample more."""
    sizes = np.full(HOMES, BOUNDS[-1] // HOMES) + (np.arange(HOMES) < BOUNDS[-1] % HOMES)
    return np.searchsorted(np.cumsum(sizes), places()[samples], side="right")


def read_by(nodes, node, epoch=0, seed=0, fingerprint=FINGERPRINT):
    """The full batches of a node."""
    order = HomeShuffleOrder(extent(fingerprint), homes=HOMES, seed=seed)
    return np.stack(list(EpochBatches(order, BATCH // nodes, node, nodes, "drop", epoch)))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6, 12])
def test_a_node_reads_the_same_homes_in_every_epoch_with_every_seed_and_of_every_subset(nodes):
    share = HOMES // nodes
    for node in range(nodes):
        for epoch, seed, fingerprint in ((0, 0, FINGERPRINT), (3, 0, "f" * 16), (0, 9, "0" * 16)):
            found = home_of(read_by(nodes, node, epoch, seed, fingerprint))
            assert set(found.ravel().tolist()) == set(range(node * share, (node + 1) * share))


def test_every_batch_has_equally_many_samples_of_each_home():
    for batch in home_of(read_by(1, 0)):
        assert np.bincount(batch, minlength=HOMES).tolist() == [BATCH // HOMES] * HOMES


def test_with_a_number_of_nodes_that_does_not_divide_the_homes_neighbours_share_some():
    found = [home_of(read_by(5, node)) for node in range(5)]
    for node, homes in enumerate(found):
        low, high = node * HOMES / 5, (node + 1) * HOMES / 5
        assert homes.min() == int(low) and homes.max() == int(np.ceil(high)) - 1
        assert (np.bincount(homes.ravel(), minlength=HOMES) > 0).sum() <= HOMES // 5 + 2


def test_a_node_opens_its_part_of_the_shards_and_two_more_at_most():
    bounds = np.arange(0, 4001, 20)  # 200 shards
    order = HomeShuffleOrder(extent(bounds=bounds), homes=8)
    for node in range(8):
        samples = np.concatenate(list(EpochBatches(order, 5, node, 8)))
        assert len(np.unique(np.searchsorted(bounds, samples, side="right"))) <= 200 // 8 + 2


def test_homes_are_shuffled_in_every_epoch_and_pinned():
    assert home_shards(7).tolist() == [2, 1, 4, 3, 6, 0, 5]
    found = home_shuffle(Key(7, 3, FINGERPRINT), 11, 3).tolist()
    assert found == [
        1,
        5,
        8,
        3,
        4,
        9,
        0,
        6,
        10,
        2,
        7,
    ]
    first, second = (home_shuffle(Key(0, epoch, FINGERPRINT), 1000, 4) for epoch in (0, 1))
    assert np.mean(first == second) < 0.02
    assert all(np.array_equal(np.sort(first[k::4]), np.sort(second[k::4])) for k in range(4))


def test_more_homes_than_samples_are_one_sample_each():
    order = HomeShuffleOrder(Extent(5, FINGERPRINT), homes=64)
    assert [order.take(epoch, 0, 5).tolist() for epoch in (0, 1)] == [[0, 1, 2, 3, 4]] * 2


def test_samples_that_fill_the_last_batch_stay_at_its_end():
    order = HomeShuffleOrder(Extent(50, FINGERPRINT), homes=4)
    batches = EpochBatches(order, 20, last="pad")
    last = batches.global_batch(2)
    assert last[:10].tolist() == sorted(order.take(0, 40, 50).tolist())
    assert last[10:].tolist() == order.take(0, 0, 10).tolist()


@pytest.mark.parametrize("change", [{"homes": 6}, {"seed": 1}])
def test_another_number_of_homes_is_another_order(change):
    options = {"homes": HOMES, "seed": 0}
    state = OrderedBatches(HomeShuffleOrder(extent(), **options), BATCH).state_after(2)
    [(name, value)] = change.items()
    with pytest.raises(OptionError, match=f"{name} was {options[name]}, is {value}"):
        OrderedBatches(HomeShuffleOrder(extent(), **options | change), BATCH).load_state_dict(state)


def test_no_homes_are_refused():
    with pytest.raises(OptionError, match="homes is 0: choose a whole number"):
        HomeShuffleOrder(extent(), homes=0)


class Counted:
    """A dataset with mask counts."""

    fingerprint = FINGERPRINT

    def __len__(self):
        return int(BOUNDS[-1])

    def column(self, name):
        return np.arange(len(self)) % 7


def test_buckets_are_refused_because_they_exchange_samples():
    with pytest.raises(OptionError, match=r"is home-shuffle.*choose another order, or no"):
        OrderedBatches(HomeShuffleOrder(extent()), BATCH, buckets=Buckets(Counted(), "mask_count"))
