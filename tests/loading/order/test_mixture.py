"""Which source a batch of a mix is from: a pure function, which has the weights."""

from bisect import bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sa1bpack
from sa1bpack import Extent, OptionError, OrderedBatches, SequentialOrder
from sa1bpack.loading.order.class_batches import batches_from
from sa1bpack.loading.order.epoch import Position
from sa1bpack.loading.order.mixture import Mixture, advanced

THREE = {"a": 6, "b": 3, "c": 1}
# Pinned: a run that resumes with another release has the same sequence.
GOLDEN = "cabaaaaaabcabaaaabbaaaaacabbccab"


def drawn(mixture: Mixture, epoch: int = 0, *, first: int = 0, step: int = 0, count: int) -> str:
    sources = mixture.draws(epoch, first, step, count=count, remaining=())
    return "".join(mixture.names[source] for source in sources)


def test_the_draws_of_a_seed_stay_what_they_are():
    mixture = Mixture.of(THREE, 0, "restart")
    assert drawn(mixture, count=32) == GOLDEN
    assert drawn(Mixture.of(THREE, 1, "restart"), count=32) != GOLDEN
    assert drawn(mixture, 1, count=32) != GOLDEN


def test_sources_have_their_weights():
    """Of 200,000 draws, each share is within four standard deviations of its weight."""
    draws = 200_000
    sources = Mixture.of(THREE, 0, "restart").draws(0, 0, 0, count=draws, remaining=())
    shares = np.bincount(sources) / draws
    for share, weight in zip(shares, (0.6, 0.3, 0.1), strict=True):
        assert abs(share - weight) < 4 * np.sqrt(weight * (1 - weight) / draws)
    pairs = np.bincount(3 * sources[:-1] + sources[1:], minlength=9).reshape(3, 3) / (draws - 1)
    assert abs(pairs - np.outer(shares, shares)).max() < 0.005  # neighbours are independent


def test_draws_depend_on_their_place_alone():
    mixture = Mixture.of(THREE, 7, "restart")
    whole = drawn(mixture, 3, count=70_000)  # more than are drawn at once
    for first in (0, 1, 65_535, 65_536, 69_999):
        assert drawn(mixture, 3, first=first, step=first, count=70_000 - first) == whole[first:]


def test_names_decide_and_not_their_order():
    turned = dict(reversed(THREE.items()))
    one, other = (Mixture.of(weights, 0, "restart") for weights in (THREE, turned))
    assert drawn(one, count=100) == drawn(other, count=100)


def test_a_weight_of_zero_and_schedules():
    weights = {
        "a": sa1bpack.PiecewiseSchedule(1, {50: 0}, by="step"),
        "b": [0, 0, 5],
        "c": sa1bpack.PiecewiseSchedule(0, {50: 1}, by="step"),
    }
    mixture = Mixture.of(weights, 0, "restart")
    assert drawn(mixture, count=100) == 50 * "a" + 50 * "c"
    late = drawn(mixture, 2, step=200, count=600)
    assert set(late) == {"b", "c"} and 430 < late.count("b") < 570
    growing = {"a": sa1bpack.FunctionSchedule(lambda step: step / 1e5, steps=100_001), "b": 1}
    shares = drawn(Mixture.of(growing, 0, "restart"), count=100_000)
    assert shares[:10_000].count("a") < 700  # 1 / 20 of them
    assert 4600 < shares[-10_000:].count("a") < 5200


@given(
    weights=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    lengths=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    at_end=st.sampled_from(["stop", "skip"]),
    seed=st.integers(0, 20),
    epoch=st.integers(0, 3),
)
@settings(max_examples=200)
def test_an_epoch_ends_with_the_first_or_the_last_of_its_sources(
    weights, lengths, at_end, seed, epoch
):
    """Compared with draws one by one; a source that has ended is left out of the next draw."""
    names = "abcd"[: len(weights)]
    mixture = Mixture.of(dict(zip(names, weights, strict=True)), seed, at_end)
    left = lengths[: len(weights)]
    expected = []
    while any(left) and (at_end == "skip" or all(left)):
        now = [weight * (count > 0) for weight, count in zip(weights, left, strict=True)]
        if not any(now):
            break
        alone = Mixture.of(dict(zip(names, now, strict=True)), seed, "restart")
        number = len(expected)
        (source,) = alone.draws(epoch, number, number, count=1, remaining=())
        expected.append(source)
        left[source] -= 1
    found = mixture.draws(epoch, 0, 0, count=None, remaining=lengths[: len(weights)])
    assert found.tolist() == expected


@given(
    samples=st.integers(1, 30),
    size=st.one_of(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=2, max_size=4)),
    end=st.sampled_from([{}, {"drop_last": True}, {"pad_last": True}]),
    begin=st.integers(0, 60),
    count=st.integers(0, 60),
)
@settings(max_examples=200)
def test_a_source_is_where_so_many_batches_bring_it(samples, size, end, begin, count):
    order = SequentialOrder(Extent(samples, "0123456789abcdef"))
    if "drop_last" in end:
        size = 1 + np.array(size) % samples
        size = size.tolist()
    rules = OrderedBatches(order, size, **end).current.rules
    places = [Position(0, 0)]
    while len(places) <= begin + count:
        rest = batches_from(rules, *places[-1])
        places += [batch.after for batch in rest]
    assert advanced(rules, places[begin], count) == places[begin + count]
    firsts = [rules.cut.first_step(epoch) for epoch in range(places[-1].epoch + 1)]
    assert places[begin].epoch == bisect_right(firsts, begin) - 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 0, "b": 0}, "weights are all 0 from epoch 0 on: one source at least"),
        ({"a": [1, 0], "b": [2, 0, 1]}, "all 0 from epoch 1 on"),
        ({"a": -1}, r"weights\['a'\] is -1: choose a number from 0 to"),
        ({"a": [1, float("nan")]}, r"from epoch 1 on, weights\['a'\] is nan"),
        ({"a": "much"}, r"weights\['a'\] is 'much': choose a number"),
        ({"a": 1e-12}, "choose 0, or at least 1e-09"),
        (
            {"a": sa1bpack.PiecewiseSchedule(1, {9: 0}, by="step"), "b": [1, 0]},
            "all 0 from epoch 1 on and from step 9 on",
        ),
    ],
)
def test_weights_that_cannot_be_used(weights, message):
    with pytest.raises(OptionError, match=message):
        Mixture.of(weights, 0, "restart")


def test_ends_and_seeds_that_cannot_be_used():
    with pytest.raises(OptionError, match="at_end is 'never': choose one of restart, stop, skip"):
        Mixture.of(THREE, 0, "never")
    with pytest.raises(OptionError, match="seed is -1"):
        Mixture.of(THREE, -1, "stop")
