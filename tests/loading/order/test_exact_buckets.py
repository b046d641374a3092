"""Batches of one class each: on any number of ranks, resumable, compared with a plain loop."""

import json
import logging
import pickle
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sa1bpack import (
    Buckets,
    LocalShuffleOrder,
    OptionError,
    OrderedBatches,
    PiecewiseSchedule,
    SequentialOrder,
    ShuffleOrder,
    WeightedOrder,
)

SIZE = 300
RATIOS = [0.5, 0.75, 1.0, 1.5, 2.0]


class Samples:
    """What orders and buckets need of a dataset."""

    fingerprint = "0123456789abcdef"
    layout = SimpleNamespace(fit="pad", image_size=1024)

    def __init__(self, size=SIZE):
        rng = np.random.default_rng(3)
        source = rng.integers(1000, 3000, (size, 2))
        scale = 1024 / source.max(1, keepdims=True)
        stored = np.floor(source * scale + 0.5).astype(np.int64)
        self.source = source
        self.stored = stored
        self.columns = {
            "mask_count": rng.integers(0, 200, size),
            "size": np.concatenate([source, stored], 1).astype(np.int32),
        }

    def __len__(self):
        return len(self.source)

    def column(self, name, missing=None):
        return self.columns[name]

    def shard_bounds(self):
        return np.array([0, 80, 200, SIZE])


DS = Samples()
CLASSES = np.array(
    [min(range(5), key=lambda k: abs(RATIOS[k] - height / width)) for height, width in DS.source]
)
ORDERS = {
    "sequential": SequentialOrder(DS),
    "shuffle": ShuffleOrder(DS, seed=1),
    "local": LocalShuffleOrder(DS, window=2, seed=1),
    "weighted": WeightedOrder(DS, np.arange(SIZE), seed=1),
}
LAST = [{}, {"drop_last": True}, {"pad_last": True}, {"pad_last": "ranks"}]


def exact(aspects=RATIOS, **options):
    return Buckets(DS, aspects=aspects, exact=True, **options)


def plain_batches(order, epoch, size, ranks, last):
    """The sets of samples of the batches, by a loop over the order: (samples, those repeated)."""
    of_class = {}
    pending = {}
    batches = []
    for position, sample in enumerate(order.take(epoch, 0, len(order)).tolist()):
        number = CLASSES[sample]
        of_class.setdefault(number, []).append(sample)
        pending.setdefault(number, []).append((position, sample))
        if len(pending[number]) == size:
            batches.append((sorted(sample for _, sample in pending.pop(number)), []))
    if "drop_last" in last:
        return batches
    for number, rest in sorted(pending.items(), key=lambda item: item[1][-1]):
        missing = 0
        if last.get("pad_last") is True:
            missing = size - len(rest)
        if last.get("pad_last") == "ranks":
            missing = max(0, ranks - len(rest))
        first = (of_class[number] * (1 + missing))[:missing]
        samples = [sample for _, sample in rest]
        batches.append((sorted(samples + first), sorted(first)))
    return batches


def on_ranks(order, ranks, size, last, epoch=0, state=None, buckets=None):
    """The parts of each batch on each rank."""
    parts = []
    for rank in range(ranks):
        batches = OrderedBatches(
            order,
            global_batch_size=size,
            rank=rank,
            world_size=ranks,
            bucket_by=buckets or exact(),
            **last,
        )
        if state is None:
            batches.set_epoch(epoch)
        else:
            batches.load_state_dict(state)
        expected_length = len(batches)
        current = batches.current
        found = [current[k] for k in range(len(current))]
        assert state is not None or len(found) == expected_length
        parts.append(found)
    return list(zip(*parts, strict=True))


def samples_of(parts):
    return [list(chain.from_iterable(part.indices.tolist() for part in batch)) for batch in parts]


def comparable(parts, last):
    """What is the same on any number of ranks: with "ranks", more of them may repeat more."""
    if last != {"pad_last": "ranks"}:
        return samples_of(parts)
    return [
        sorted(chain.from_iterable(part.indices[~part.repeated].tolist() for part in batch))
        for batch in parts
    ]


# ------------------------------------------------------------------------------------------ batches


@settings(max_examples=60, deadline=None)
@given(
    some.sampled_from(sorted(ORDERS)),
    some.integers(0, 3),
    some.sampled_from([(1, 7), (1, 24), (2, 24), (3, 12), (4, 8), (2, 600)]),
    some.sampled_from(LAST[1:]),
)
def test_batches_are_those_of_a_plain_loop_over_the_order(name, epoch, ranks_and_size, last):
    order = ORDERS[name]
    ranks, size = ranks_and_size
    expected = plain_batches(order, epoch, size, ranks, last)
    if not expected:
        return
    parts = on_ranks(order, ranks, size, last, epoch)
    assert [sorted(samples) for samples in samples_of(parts)] == [batch for batch, _ in expected]
    for batch, (_, repeated) in zip(parts, expected, strict=True):
        sizes = [len(part.indices) for part in batch]
        assert min(sizes) > 0 and max(sizes) - min(sizes) <= 1
        [number] = {part.sample_class.number for part in batch}
        assert {*CLASSES[np.concatenate([part.indices for part in batch])]} == {number}
        if "pad_last" in last:
            marked = [part.indices[part.repeated] for part in batch]
            assert sorted(np.concatenate(marked).tolist()) == repeated


@pytest.mark.parametrize("name", ["sequential", "shuffle", "local"])
def test_every_sample_comes_once_and_each_class_may_end_with_a_short_batch(name):
    order = ORDERS[name]
    expected = plain_batches(order, 2, 16, 1, {})
    found = samples_of(on_ranks(order, 1, 16, {}, epoch=2))
    assert [sorted(samples) for samples in found] == [batch for batch, _ in expected]
    assert sorted(chain.from_iterable(found)) == list(range(SIZE))


@pytest.mark.parametrize("last", LAST[1:], ids=str)
@pytest.mark.parametrize("name", ["shuffle", "local"])
def test_any_number_of_ranks_yields_the_same_global_batches(name, last):
    expected = comparable(on_ranks(ORDERS[name], 1, 24, last), last)
    for ranks in (2, 3, 4, 6, 8):
        assert comparable(on_ranks(ORDERS[name], ranks, 24, last), last) == expected


def test_ranks_have_about_the_same_number_of_masks():
    counts = DS.column("mask_count")
    parts = on_ranks(ORDERS["shuffle"], 4, 24, {"drop_last": True})
    loads = np.array([[counts[part.indices].sum() for part in batch] for batch in parts])
    assert (loads.max(1) / loads.mean(1)).mean() < 1.15


def test_samples_that_a_weighted_order_draws_again_are_told_apart():
    parts = on_ranks(ORDERS["weighted"], 2, 24, {"pad_last": True}, epoch=1)
    seen = set()
    for batch in parts:
        for part in batch:
            for sample, repetition in zip(part.indices, part.repetitions, strict=True):
                assert (sample, repetition) not in seen
                seen.add((sample, repetition))
    order = ORDERS["weighted"]
    drawn = order.take(1, 0, SIZE)
    draws = {*zip(drawn, order.repetitions(1, 0, SIZE), strict=True)}
    assert draws <= seen


# ------------------------------------------------------------------------------------------- states


@settings(max_examples=30, deadline=None)
@given(
    some.sampled_from(sorted(ORDERS)),
    some.integers(0, 2),
    some.floats(0, 1),
    some.sampled_from(LAST[1:]),
)
def test_an_epoch_is_resumed_after_any_batch_on_other_ranks(name, epoch, share, last):
    order = ORDERS[name]
    whole = comparable(on_ranks(order, 1, 24, last, epoch), last)
    following = comparable(on_ranks(order, 1, 24, last, epoch + 1), last)
    saved = OrderedBatches(
        order, global_batch_size=24, rank=1, world_size=2, bucket_by=exact(), **last
    )
    saved.set_epoch(epoch)
    done = int(share * len(whole))
    state = json.loads(json.dumps(saved.state_after(done)))
    again = pickle.loads(pickle.dumps(exact()))
    for ranks in (1, 3):
        parts = on_ranks(order, ranks, 24, last, state=state, buckets=again)
        assert comparable(parts, last) == (whole[done:] or following)


def test_steps_go_on_through_epochs_of_different_lengths():
    sizes = [24, 12, 8]
    for order in (ORDERS["shuffle"], ORDERS["weighted"]):
        batches = OrderedBatches(order, sizes, bucket_by=exact(), pad_last=True)
        steps = []
        for epoch in range(4):
            batches.set_epoch(epoch)
            steps += [batch.step for batch in batches.current]
        assert steps == list(range(len(steps)))
        assert batches.first_step(4) == len(steps)


def test_a_state_of_other_classes_or_another_batch_size_is_refused_by_name():
    state = OrderedBatches(ORDERS["shuffle"], 24, bucket_by=exact()).state_after(3)
    for size, buckets, named in (
        (24, exact(RATIOS[:4]), "bucket_by was '5 aspects, exactly one of 5, .* is '4 aspects"),
        (24, Buckets(DS, aspects=RATIOS), "is '5 aspects [0-9a-f]{16}, windows of 64 batches'"),
        (12, exact(), r"global_batch_size was 'PiecewiseSchedule\(24\)'"),
    ):
        with pytest.raises(OptionError, match=named):
            OrderedBatches(ORDERS["shuffle"], size, bucket_by=buckets).load_state_dict(state)
    with pytest.raises(OptionError, match="no place between two of its batches"):
        OrderedBatches(ORDERS["shuffle"], 24, bucket_by=exact()).load_state_dict(
            state | {"samples": 25}
        )


# ------------------------------------------------------------------------------------------ classes


@settings(max_examples=60, deadline=None)
@given(some.lists(some.floats(0.1, 10), min_size=1, max_size=40, unique=True))
def test_the_class_of_an_image_is_the_ratio_nearest_to_its_own(ratios):
    buckets = exact(ratios)
    aspects = DS.source[:, 0] / DS.source[:, 1]
    least = np.abs(np.array(ratios)[:, None] - aspects).min(0)
    chosen = np.abs(np.array(ratios)[buckets.classes.numbers] - aspects)
    np.testing.assert_allclose(chosen, least, rtol=0, atol=1e-12)
    assert buckets.class_counts.sum() == SIZE


def test_the_canvas_of_a_class_is_the_smallest_that_holds_its_stored_images():
    for multiple in (1, 16, 100):
        buckets = exact(multiple=multiple)
        for number, canvas in enumerate(buckets.canvases):
            largest = DS.stored[number == CLASSES].max(0)
            ceiling = np.minimum(-(-largest // multiple) * multiple, 1024)
            assert canvas == tuple(ceiling.tolist())


def test_sizes_of_classes_are_pairs_or_a_table_with_ratios_as_text():
    table = {"0.5": [704.0, 1408.0], "0.78": [896.0, 1152.0], "1.0": [1024.0, 1024.0]}
    buckets = exact(table)
    assert buckets.aspects == (0.5, 0.78, 1.0)
    assert buckets.sizes == ((704, 1408), (896, 1152), (1024, 1024))
    pairs = exact([(704, 1408), (1024, 1024)])
    assert pairs.aspects == (0.5, 1.0)
    assert pairs.sizes == ((704, 1408), (1024, 1024))
    assert exact().sizes is None


def test_classes_of_equal_keys_have_no_canvas():
    keys = np.arange(SIZE) % 3 - 1
    buckets = Buckets(DS, keys, exact=True)
    batches = OrderedBatches(ORDERS["shuffle"], 10, bucket_by=buckets)
    assert all(len({*keys[batch]}) == 1 for batch in batches)
    assert buckets.canvases is None
    assert buckets.class_counts.tolist() == [100, 100, 100]


def test_aspects_that_are_not_exact_are_sorted_in_windows():
    batches = list(OrderedBatches(ORDERS["shuffle"], 20, bucket_by=Buckets(DS, aspects=RATIOS)))
    assert [len(batch) for batch in batches] == [20] * 15
    assert np.mean([len({*CLASSES[batch]}) for batch in batches]) < 2


def test_classes_that_never_fill_a_batch_are_named_when_the_rest_is_dropped(caplog):
    keys = (np.arange(SIZE) < 5).astype(int)
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        OrderedBatches(
            ORDERS["shuffle"], 10, bucket_by=Buckets(DS, keys, exact=True), drop_last=True
        )
    assert "fewer samples than a batch of 10 never come: 1, with 5 samples (['1'])" in caplog.text


def ordered(**options):
    options = {"global_batch_size": 24, "world_size": 8, "bucket_by": exact()} | options
    return OrderedBatches(options.pop("order", ORDERS["shuffle"]), **options)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: exact([]), "aspects has 0 classes"),
        (lambda: exact("0.5"), "aspects is '0.5': give a list of ratios"),
        (lambda: exact([0.5, -1]), r"aspects is \[0.5, -1\]: give a list of ratios"),
        (lambda: exact([0.5, 0.5]), "a ratio of height / width comes twice"),
        (lambda: exact([(512, 0)]), "a side of a size of aspects is 0"),
        (
            lambda: exact([(2, 1), (1, 2)]),
            r"has \(2, 1\), which is a size in pixels, .*ratio is one",
        ),
        (lambda: exact([(512, 512, 3)]), r"aspects has the size \(512, 512, 3\)"),
        (lambda: exact({"a": (512, 768)}), "aspects is {'a'.*: give a list"),
        (lambda: exact(multiple=0), "multiple is 0"),
        (lambda: Buckets(DS, "aspect", exact=True), r"say what the classes are by aspects=\[...\]"),
        (lambda: Buckets(DS, "aspect", aspects=RATIOS), "by is 'aspect', and aspects are given"),
        (
            lambda: Buckets(DS, exact=1),
            "exact is 1",
        ),
        (lambda: ordered(), r"the last batch of class [0-9.]+ has \d samples? for 8 ranks; choose"),
        (lambda: ordered(order=ORDERS["weighted"]), "in some epoch fewer of a class may be left"),
        (
            lambda: ordered(global_batch_size=PiecewiseSchedule(24, {5: 48}, by="step")),
            "changes by step, but with exact classes an epoch is cut as a whole",
        ),
        (
            lambda: ordered(global_batch_size=296, drop_last=True),
            "the largest class has .* less than a batch of 296",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(make, named):
    with pytest.raises(OptionError, match=named):
        make()


def test_the_first_exact_batches_are_pinned():
    batches = OrderedBatches(ORDERS["shuffle"], 6, bucket_by=exact())
    batches.set_epoch(2)
    assert list(batches)[:2] == [[180, 190, 139, 244, 217, 173], [161, 166, 170, 288, 258, 230]]
