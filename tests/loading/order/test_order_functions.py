"""The pure functions: permutations, windows, draws, and the values they are pinned to."""

from bisect import bisect_right
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import OptionError
from sa1bpack.loading.order.functions import (
    Key,
    permutation,
    shuffle,
    weighted_draws,
    window_order,
    window_plan,
)

FINGERPRINT = "0123456789abcdef"
KEY = Key(7, 3, FINGERPRINT)
BOUNDS = np.array([0, 5, 5, 9, 20, 21])


# ----------------------------------------------------------------------------------- pinned forever


def test_random_words_are_pinned():
    words = KEY.words(1, 2, 3).tolist()
    assert words == [0x2C8FA624F80A0D96, 0x886C5301202D3398, 0x39DD4273CC254BC2]
    # seed, epoch, fingerprint, purpose, number: each as two 32-bit words, the low one first
    entropy = [7, 0, 3, 0, 0x89ABCDEF, 0x01234567, 1, 0, 2, 0]
    assert np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(3).tolist() == words


def test_a_full_shuffle_is_pinned():
    assert shuffle(KEY, 12).tolist() == [1, 11, 4, 3, 0, 7, 6, 10, 2, 8, 9, 5]


def test_a_full_shuffle_of_all_of_sa_1b_is_pinned():
    order = shuffle(Key(0, 0, FINGERPRINT), 11_185_362)
    assert order[:4].tolist() == [10968324, 2007645, 1544213, 1053547]
    assert xxhash.xxh3_64_hexdigest(order.astype("<u4")) == "a9bc252822ffe373"


def test_windows_of_shards_are_pinned():
    shards, cuts, starts = window_plan(KEY, BOUNDS, 2)
    assert shards.tolist() == [0, 4, 2, 3, 1]
    assert cuts.tolist() == [0, 1, 3, 5]
    assert starts.tolist() == [0, 5, 10, 21]
    assert window_order(KEY, BOUNDS, shards[:2], 0, 1).tolist() == [1, 4, 3, 0, 2, 20]
    assert window_order(KEY, BOUNDS, shards[:2], 0, 3).tolist() == [1, 2, 3, 20, 0, 4]


def test_weighted_draws_are_pinned():
    draws = weighted_draws(KEY, np.cumsum([1.0, 0, 3, 4]), 0, 12)
    assert draws.tolist() == [2, 3, 3, 2, 3, 3, 2, 2, 2, 3, 3, 3]


# --------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    "other",
    [Key(3, 7, FINGERPRINT), Key(7, 4, FINGERPRINT), Key(8, 3, FINGERPRINT), Key(7, 3, "0" * 16)],
)
def test_every_part_of_the_key_changes_the_order(other):
    assert shuffle(KEY, 100).tolist() != shuffle(other, 100).tolist()


def test_no_two_keys_are_encoded_alike():
    # With parts of varying width, 2**32 followed by 0 would read like 0 followed by 1.
    keys = [Key(s, e, FINGERPRINT) for s in (0, 1, 2**32, 2**64 - 1) for e in (0, 1, 2**32)]
    assert len({tuple(key.words(0, 0, 4)) for key in keys}) == len(keys)
    uses = {tuple(KEY.words(use, n, 4)) for use in range(4) for n in (0, 1, 2**32)}
    assert len(uses) == 12


def test_words_can_be_read_from_any_position():
    assert KEY.words(0, 0, 5, first=40).tolist() == KEY.words(0, 0, 45)[40:].tolist()


@pytest.mark.parametrize(
    ("seed", "epoch", "fingerprint", "named"),
    [
        (-1, 0, FINGERPRINT, "seed is .*: choose a whole number"),
        (2**64, 0, FINGERPRINT, "is 18446744073709551616"),
        (True, 0, FINGERPRINT, "is True"),
        (0, 1.0, FINGERPRINT, "epoch is .*: choose a whole number"),
        (0, -1, FINGERPRINT, "is -1"),
        (0, 0, "0123456789ABCDEF", "16 lower-case hexadecimal digits, got '0123456789ABCDEF'"),
        (0, 0, "0123", "got '0123'"),
        (0, 0, None, "got None"),
    ],
)
def test_a_key_with_impossible_values_is_refused(seed, epoch, fingerprint, named):
    with pytest.raises(OptionError, match=named):
        Key(seed, epoch, fingerprint)


# ------------------------------------------------------------------------------------- permutations


@given(st.lists(st.integers(0, 2**64 - 1), max_size=70))
@settings(max_examples=60, deadline=None)
def test_a_permutation_sorts_numbers_by_their_words_and_ties_by_number(words):
    shift = max(len(words) - 1, 0).bit_length()
    expected = sorted(range(len(words)), key=lambda i: (words[i] >> shift, i))
    assert permutation(np.array(words, np.uint64)).tolist() == expected


@pytest.mark.parametrize("n", [0, 1, 2, 1 << 20, (1 << 20) + 1])
def test_a_permutation_of_any_length_has_every_number_once(n):
    found = permutation(KEY.words(0, 0, n))
    assert found.dtype == np.uint32
    assert np.array_equal(np.sort(found), np.arange(n))


def test_all_orders_of_four_samples_are_equally_likely():
    trials = 4800
    seen = Counter(tuple(shuffle(Key(seed, 0, FINGERPRINT), 4).tolist()) for seed in range(trials))
    assert set(seen) == set(permutations(range(4)))
    chi_square = sum((count - trials / 24) ** 2 / (trials / 24) for count in seen.values())
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


# ------------------------------------------------------------------------------------------ windows


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9),
    st.integers(1, 11),
    st.integers(1, 7),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=80, deadline=None)
def test_the_windows_of_an_epoch_hold_every_sample_once(sizes, window, block, seed):
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    key = Key(seed, 0, FINGERPRINT)
    shards, cuts, starts = window_plan(key, bounds, window)
    assert sorted(shards.tolist()) == list(range(len(sizes)))
    parts = [
        window_order(key, bounds, shards[cuts[n] : cuts[n + 1]], n, block)
        for n in range(len(starts) - 1)
    ]
    assert [len(part) for part in parts] == np.diff(starts).tolist()
    assert len(parts) == -(-len(sizes) // window)
    assert max(np.diff(cuts)) <= min(window, min(np.diff(cuts)) + 1)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(bounds[-1]))
    for n, part in enumerate(parts):
        chosen = shards[cuts[n] : cuts[n + 1]]
        members = [i for s in chosen for i in range(bounds[s], bounds[s + 1])]
        assert sorted(part.tolist()) == sorted(members)


def test_blocks_stay_together_and_their_cuts_move_from_epoch_to_epoch():
    bounds, block = np.array([0, 40, 80]), 8
    cuts = set()
    for epoch in range(40):
        order = window_order(Key(0, epoch, FINGERPRINT), bounds, np.array([0, 1]), 0, block)
        position = np.empty(80, int)
        position[order] = np.arange(80)
        apart = np.flatnonzero(np.diff(position) != 1) + 1  # sample i does not follow i - 1
        first = apart[apart < 40]
        assert len(set(first % block)) == 1, "the cuts of a shard are multiples of block apart"
        cuts.add(int(first[0] % block))
    assert cuts == set(range(8))


def test_a_window_of_all_shards_and_blocks_of_one_move_every_sample_on_its_own():
    bounds = np.arange(0, 2001, 20)
    shards, _, starts = window_plan(KEY, bounds, 100)
    assert starts.tolist() == [0, 2000]
    order = window_order(KEY, bounds, shards, 0, 1)
    neighbours = np.count_nonzero(np.abs(np.diff(order)) == 1)
    assert neighbours < 10  # 2 expected
    assert abs(np.corrcoef(order, np.arange(2000))[0, 1]) < 0.07  # three standard deviations


def test_windows_of_the_same_shape_are_mixed_differently():
    bounds = np.array([0, 60, 120])
    first = window_order(KEY, bounds, np.array([0]), 0, 1)
    second = window_order(KEY, bounds, np.array([1]), 1, 1)
    assert first.tolist() != (second - 60).tolist()


def test_the_order_of_shards_differs_from_epoch_to_epoch():
    bounds = np.arange(11)
    seen = {tuple(window_plan(Key(0, e, FINGERPRINT), bounds, 1)[0].tolist()) for e in range(50)}
    assert len(seen) == 50


# -------------------------------------------------------------------------------------------- draws


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.5, 1e-9, 1e9, 3.0]), min_size=1, max_size=20),
    st.integers(0, 2**64 - 1),
)
@settings(max_examples=60, deadline=None)
def test_draws_are_the_inverse_of_the_cumulative_weights(weights, seed):
    weights = [*weights, 1.0]
    key = Key(seed, 0, FINGERPRINT)
    cumulative = np.cumsum(weights)
    draws = weighted_draws(key, cumulative, 0, 50).tolist()
    words = [int(word) for word in key.words(3, 0, 50)]
    sums = cumulative.tolist()
    assert draws == [bisect_right(sums, (word >> 11) / 2**53 * sums[-1]) for word in words]
    assert all(weights[i] > 0 for i in draws)


def test_draws_follow_the_weights():
    weights = np.array([1.0, 0, 2, 3, 10])
    draws = weighted_draws(KEY, np.cumsum(weights), 0, 16_000)
    expected = weights * 1000
    seen = np.bincount(draws, minlength=5)
    used = expected > 0
    chi_square = np.sum((seen[used] - expected[used]) ** 2 / expected[used])
    assert seen[1] == 0
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


def test_a_draw_depends_only_on_its_position():
    cumulative = np.cumsum(np.arange(1.0, 100))
    whole = weighted_draws(KEY, cumulative, 0, 300)
    assert weighted_draws(KEY, cumulative, 117, 251).tolist() == whole[117:251].tolist()


class Constant:
    """A key whose words are all the same."""

    def __init__(self, word):
        self.word = word

    def words(self, purpose, number, count, first=0):
        return np.full(count, self.word, np.uint64)


def test_the_smallest_and_the_largest_word_draw_samples_of_positive_weight():
    for total in (1.0, 3.0, 1e-299, 1e300, np.nextafter(1.0, 2), np.nextafter(2.0, 1)):
        cumulative = np.array([0, total / 2, total, total])
        assert weighted_draws(Constant(0), cumulative, 0, 1).tolist() == [1]
        assert weighted_draws(Constant(2**64 - 1), cumulative, 0, 1).tolist() == [2]
