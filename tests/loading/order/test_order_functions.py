"""The pure functions: permutations, windows, draws, and the values they are pinned to; and by node:
each reads the same part of the pack in every epoch."""

from bisect import bisect_right
from types import SimpleNamespace

import numpy as np
import pytest
import xxhash
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sa1bpack import (
    Extent,
    LocalShuffleOrder,
    NodeShuffleOrder,
    OrderedBatches,
    ShuffleOrder,
    WeightedOrder,
)
from sa1bpack.loading.order.orders import permutation, weighted_draws

FINGERPRINT = "0123456789abcdef"


def words(seed: int, epoch: int, purpose: int, number: int, count: int) -> list[int]:
    """The random words of a use: each number of the key as two 32-bit words, the low one first."""
    parts = (seed, epoch, int(FINGERPRINT, 16), purpose, number)
    entropy = [half for part in parts for half in (part & 0xFFFFFFFF, part >> 32)]
    return np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(count).tolist()


def in_order(words: list[int]) -> list[int]:
    """Numbers by their words, whose low bits do not count; of equal ones the lower first."""
    shift = max(len(words) - 1, 0).bit_length()
    return sorted(range(len(words)), key=lambda i: (words[i] >> shift, i))


# ----------------------------------------------------------------------------------- pinned forever


def test_random_words_are_pinned():
    found = [0x2C8FA624F80A0D96, 0x886C5301202D3398, 0x39DD4273CC254BC2]
    assert words(7, 3, 1, 2, 3) == found


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_a_shuffle_sorts_samples_by_their_words(seed, epoch, size):
    order = ShuffleOrder(Extent(size, FINGERPRINT), seed=seed)
    assert order.take(epoch, 0, size).tolist() == in_order(words(seed, epoch, 0, 0, size))


def test_a_full_shuffle_of_all_of_sa_1b_is_pinned():
    order = ShuffleOrder(Extent(11_185_362, FINGERPRINT)).take(0, 0, 11_185_362)
    assert order[:4].tolist() == [10968324, 2007645, 1544213, 1053547]
    assert xxhash.xxh3_64_hexdigest(order.astype("<u4")) == "a9bc252822ffe373"


# ------------------------------------------------------------------------------------------ windows


def test_blocks_stay_together_and_their_cuts_move_from_epoch_to_epoch():
    extent, block, cuts = Extent(80, FINGERPRINT, np.array([0, 40, 80])), 8, set()
    for epoch in range(40):
        order = LocalShuffleOrder(extent, window=2, block=block).take(epoch, 0, 80)
        position = np.empty(80, int)
        position[order] = np.arange(80)
        apart = np.flatnonzero(np.diff(position) != 1) + 1  # sample i does not follow i - 1
        first = apart[apart < 40]
        assert len(set(first % block)) == 1, "the cuts of a shard are multiples of block apart"
        cuts.add(int(first[0] % block))
    assert cuts == set(range(8))


# -------------------------------------------------------------------------------------------- draws


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e-9, 1e9, 3.0]), min_size=1, max_size=20),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=60, deadline=None)
def test_draws_are_the_inverse_of_the_cumulative_weights(weights, seed):
    weights = [*weights, 1.0]
    extent, sums = Extent(len(weights), FINGERPRINT), np.cumsum(weights).tolist()
    draws = WeightedOrder(extent, weights, samples=50, seed=seed).take(0, 0, 50).tolist()
    drawn = [(word >> 11) / 2**53 * sums[-1] for word in words(seed, 0, 3, 0, 50)]
    assert draws == [bisect_right(sums, number) for number in drawn]
    assert all(weights[i] > 0 for i in draws)


def key_of(word):
    """A key whose words are all the same."""
    return SimpleNamespace(words=lambda *_, first: np.full(1, word, np.uint64))


def test_the_smallest_and_the_largest_word_draw_samples_of_positive_weight():
    for total in (1.0, 3.0, 1e-299, 1e300, np.nextafter(1.0, 2), np.nextafter(2.0, 1)):
        cumulative = np.array([0, total / 2, total, total])
        assert weighted_draws(key_of(0), cumulative, 0, 1).tolist() == [1]
        assert weighted_draws(key_of(2**64 - 1), cumulative, 0, 1).tolist() == [2]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=70))
@settings(max_examples=60, deadline=None)
def test_a_permutation_sorts_numbers_by_their_words_and_ties_by_number(words):
    assert permutation(np.array(words, np.uint64)).tolist() == in_order(words)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9),
    st.integers(1, 11),
    st.integers(1, 7),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=80, deadline=None)
def test_a_window_of_shards_is_used_up_before_the_next_begins(sizes, window, block, seed):
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    assume(bounds[-1] > 0)
    extent = Extent(int(bounds[-1]), FINGERPRINT, bounds)
    order = LocalShuffleOrder(extent, window=window, block=block, seed=seed)
    taken = order.take(0, 0, len(order))
    assert sorted(taken.tolist()) == list(range(len(order)))
    shards = (np.searchsorted(bounds, taken, side="right") - 1).tolist()
    last = {shard: place for place, shard in enumerate(shards)}
    for place in range(len(shards)):
        in_use = {shard for shard in shards[: place + 1] if last[shard] >= place}
        assert len(in_use) <= window


@pytest.mark.parametrize(
    ("window", "sizes"), [(5, [3, 4]), (4, [3, 3, 4]), (3, [3, 3, 3]), (8, [5])]
)
def test_windows_are_few_and_differ_by_at_most_one_shard(window, sizes):
    bounds = 100 * np.arange(sum(sizes) + 1)
    order = LocalShuffleOrder(Extent(int(bounds[-1]), FINGERPRINT, bounds), window=window)
    shards = order.take(0, 0, len(order)) // 100
    windows = np.split(shards, 100 * np.cumsum(sizes)[:-1])
    assert [len(np.unique(part)) for part in windows] == sizes


# ----------------------------------------------------------------------------------------- by node

BOUNDS = np.array([0, 100, 100, 350, 700, 760, 1000, 1201])
PARTS, BATCH = 12, 60
SHARDS = [2, 1, 4, 3, 6, 0, 5]  # in the order of the nodes, pinned


def part_of(samples) -> np.ndarray:
    """The part of samples: the first parts have one sample more."""
    sizes = np.full(PARTS, BOUNDS[-1] // PARTS) + (np.arange(PARTS) < BOUNDS[-1] % PARTS)
    in_order = np.concatenate([np.arange(BOUNDS[k], BOUNDS[k + 1]) for k in SHARDS])
    return np.searchsorted(np.cumsum(sizes), np.argsort(in_order)[samples], side="right")


def read_by(nodes, node, epoch=0, seed=0, fingerprint=FINGERPRINT):
    """The full batches of a node."""
    extent = Extent(int(BOUNDS[-1]), fingerprint, BOUNDS)
    order = NodeShuffleOrder(extent, nodes=PARTS, seed=seed)
    size = BATCH // nodes
    batches = OrderedBatches(order, size, rank=node, world_size=nodes, drop_last=True)
    batches.set_epoch(epoch)
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
    order = NodeShuffleOrder(Extent(4000, FINGERPRINT, bounds), nodes=8)
    for node in range(8):
        samples = np.concatenate(list(OrderedBatches(order, 5, rank=node, world_size=8)))
        assert len(np.unique(np.searchsorted(bounds, samples, side="right"))) <= 200 // 8 + 2


def test_parts_are_shuffled_in_every_epoch_and_pinned():
    """Of one shard: its samples are the places."""
    small = NodeShuffleOrder(Extent(11, FINGERPRINT), nodes=3, seed=7)
    assert small.take(3, 0, 11).tolist() == [1, 5, 8, 3, 4, 9, 0, 6, 10, 2, 7]
    order = NodeShuffleOrder(Extent(1000, FINGERPRINT), nodes=4)
    first, second = (order.take(epoch, 0, 1000) for epoch in (0, 1))
    assert np.mean(first == second) < 0.02
    assert all(np.array_equal(np.sort(first[k::4]), np.sort(second[k::4])) for k in range(4))
