"""NodeShuffleOrder: each node reads the same part of the pack in every epoch."""

import numpy as np
import pytest

from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.order.orders import Extent, Key, NodeShuffleOrder, node_shuffle

FINGERPRINT = "0123456789abcdef"
BOUNDS = np.array([0, 100, 100, 350, 700, 760, 1000, 1201])
PARTS, BATCH = 12, 60
SHARDS = [2, 1, 4, 3, 6, 0, 5]  # in the order of the nodes, pinned


def extent(fingerprint=FINGERPRINT, bounds=BOUNDS):
    return Extent(int(bounds[-1]), fingerprint, bounds)


def part_of(samples) -> np.ndarray:
    """The part of samples: the first parts have one sample more."""
    sizes = np.full(PARTS, BOUNDS[-1] // PARTS) + (np.arange(PARTS) < BOUNDS[-1] % PARTS)
    in_order = np.concatenate([np.arange(BOUNDS[k], BOUNDS[k + 1]) for k in SHARDS])
    return np.searchsorted(np.cumsum(sizes), np.argsort(in_order)[samples], side="right")


def read_by(nodes, node, epoch=0, seed=0, fingerprint=FINGERPRINT):
    """The full batches of a node."""
    order = NodeShuffleOrder(extent(fingerprint), nodes=PARTS, seed=seed)
    batches = EpochBatches(order, BATCH // nodes, node, nodes, drop_last=True, epoch=epoch)
    return np.stack(list(batches))


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6, 12])
def test_a_node_reads_the_same_parts_in_every_epoch_with_every_seed_and_of_every_subset(nodes):
    share = PARTS // nodes
    for node in range(nodes):
        for epoch, seed, fingerprint in ((0, 0, FINGERPRINT), (3, 0, "f" * 16), (0, 9, "0" * 16)):
            found = part_of(read_by(nodes, node, epoch, seed, fingerprint))
            assert set(found.ravel().tolist()) == set(range(node * share, (node + 1) * share))


def test_every_batch_has_equally_many_samples_of_each_part():
    for batch in part_of(read_by(1, 0)):
        assert np.bincount(batch, minlength=PARTS).tolist() == [BATCH // PARTS] * PARTS


def test_a_node_opens_its_part_of_the_shards_and_two_more_at_most():
    bounds = np.arange(0, 4001, 20)  # 200 shards
    order = NodeShuffleOrder(extent(bounds=bounds), nodes=8)
    for node in range(8):
        samples = np.concatenate(list(EpochBatches(order, 5, node, 8)))
        assert len(np.unique(np.searchsorted(bounds, samples, side="right"))) <= 200 // 8 + 2


def test_parts_are_shuffled_in_every_epoch_and_pinned():
    found = node_shuffle(Key(7, 3, FINGERPRINT), 11, 3).tolist()
    assert found == [1, 5, 8, 3, 4, 9, 0, 6, 10, 2, 7]
    first, second = (node_shuffle(Key(0, epoch, FINGERPRINT), 1000, 4) for epoch in (0, 1))
    assert np.mean(first == second) < 0.02
    assert all(np.array_equal(np.sort(first[k::4]), np.sort(second[k::4])) for k in range(4))
