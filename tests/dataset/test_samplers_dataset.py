"""Orders over an open pack and its subsets."""

import json
import pickle

import numpy as np
import pytest

import sa1bpack
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import OptionError
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.orders import LocalShuffleOrder, ShuffleOrder, WeightedOrder


@pytest.fixture(scope="module")
def dataset(sample_tar, tmp_path_factory):
    """Three samples in two shards."""
    out = tmp_path_factory.mktemp("order") / "pack"
    sa1bpack.pack(str(sample_tar), out, image_size=64, mask_size=32, samples_per_shard=2)
    return open_pack(out)


def test_batches_index_the_dataset(dataset):
    batches = OrderedBatches(ShuffleOrder(dataset, seed=1), 2)
    ids = [sample["image_id"] for batch in batches for sample in dataset.__getitems__(batch)]
    assert sorted(ids) == sorted(dataset.column("image_id").tolist())


def test_a_local_shuffle_uses_up_one_shard_of_a_pack_after_another(dataset):
    for epoch in range(8):
        taken = LocalShuffleOrder(dataset, window=1).take(epoch, 0, 3)
        shards = dataset.locate_many(taken)[0].tolist()
        assert shards in ([0, 0, 1], [1, 0, 0])


def test_weights_are_a_column_of_the_dataset_or_of_a_subset(dataset):
    subset = dataset[[2, 0]]
    for chosen in (dataset, subset):
        weights = chosen.column("mask_count")
        draws = WeightedOrder(chosen, weights, samples=3000).take(0, 0, 3000)
        share = np.bincount(draws, minlength=len(chosen)) / 3000
        assert share == pytest.approx(weights / weights.sum(), abs=0.03)


def test_a_subset_has_an_order_of_its_own_over_its_own_indices(dataset):
    subset = dataset[1:]
    for order in (ShuffleOrder(subset), LocalShuffleOrder(subset, window=2)):
        assert sorted(order.take(0, 0, 2).tolist()) == [0, 1]
    state = OrderedBatches(ShuffleOrder(dataset[:2]), 1).state_after(1)
    with pytest.raises(OptionError, match="fingerprint was"):
        OrderedBatches(ShuffleOrder(subset), 1).load_state_dict(state)


def test_an_order_and_its_state_hold_for_the_pack_opened_again_elsewhere(dataset):
    again = pickle.loads(pickle.dumps(dataset))
    batches = OrderedBatches(ShuffleOrder(dataset), 1)
    rest = OrderedBatches(ShuffleOrder(again), 1)
    rest.load_state_dict(json.loads(json.dumps(batches.state_after(1))))
    assert list(rest) == list(batches)[1:]
