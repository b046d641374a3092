"""Batches of samples that are alike: still a pure function, the same on any number of ranks."""

import json
import pickle
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sa1bpack import (
    Buckets,
    NodeShuffleOrder,
    OptionError,
    OrderedBatches,
    PiecewiseSchedule,
    ShuffleOrder,
)

SIZE = 500


class Samples:
    """What orders and buckets need of a dataset."""

    fingerprint = "0123456789abcdef"
    layout = SimpleNamespace(fit="pad")

    def __init__(self):
        rng = np.random.default_rng(0)
        heights = rng.choice([683, 1024, 1024, 900], SIZE)
        widths = np.where(heights == 683, 1024, rng.choice([683, 700], SIZE))
        stored = np.stack([heights, widths], 1)
        counts = rng.lognormal(4.4, 0.7, SIZE).astype(np.int64)
        sizes = np.concatenate([2 * stored, stored], 1).astype(np.int32)
        self.columns = {"mask_count": counts, "size": sizes}

    def __len__(self):
        return SIZE

    def column(self, name, missing=None):
        return self.columns[name]

    def shard_bounds(self):
        return np.array([0, SIZE])


DS = Samples()
COUNTS = DS.column("mask_count")
ORDER = ShuffleOrder(DS, seed=1)
SIZES = {
    "constant": 24,
    "epoch": [24, 12],
    "step": PiecewiseSchedule(12, {5: 24, 9: 48}, by="step"),
}
each = pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)


def on_ranks(ranks, sizes, buckets, last=None, state=None, epoch=None, order=ORDER):
    """The global batches, joined from what the ranks yield, and their parts."""
    parts = []
    options = {"global_batch_size": sizes, "world_size": ranks, "bucket_by": buckets}
    for rank in range(ranks):
        batches = OrderedBatches(order, rank=rank, **options, **(last or {}))
        if state is not None:
            batches.load_state_dict(state)
        if epoch is not None:
            batches.set_epoch(epoch)
        parts.append(list(batches))
    parts = list(zip(*parts, strict=True))
    return [list(chain.from_iterable(batch)) for batch in parts], parts


def flat(batches):
    return sorted(chain.from_iterable(batches))


def waste(batches):
    """The share of mask rows that are padding."""
    used = sum(COUNTS[batch].sum() for batch in batches)
    return 1 - used / sum(len(batch) * COUNTS[batch].max() for batch in batches)


@each
@pytest.mark.parametrize("last", [{}, {"drop_last": True}, {"pad_last": True}])
def test_any_number_of_ranks_yields_the_same_batches_of_the_same_sizes(sizes, last):
    buckets = Buckets(DS, batches=8)
    for epoch in (0, 1):
        expected, _ = on_ranks(1, sizes, buckets, last, epoch=epoch)
        plain, _ = on_ranks(1, sizes, None, last, epoch=epoch)
        assert [len(batch) for batch in expected] == [len(batch) for batch in plain]
        assert flat(expected) == flat(plain)
        # Samples stay in their window, and those that fill no batch in theirs.
        for first in range(0, len(plain), 8):
            own = [flat(found[first : first + 8]) for found in (expected, plain)]
            assert own[0] == own[1]
        assert sorted(expected[-1]) == sorted(plain[-1]) or "drop_last" in last
        assert waste(expected) < 0.6 * waste(plain)
        for ranks in (2, 3, 4, 6):
            assert on_ranks(ranks, sizes, buckets, last, epoch=epoch)[0] == expected


@pytest.mark.parametrize("ranks", [1, 3])
def test_samples_that_fill_up_the_last_batch_are_marked_wherever_they_stand(ranks):
    options = {"global_batch_size": 48, "world_size": ranks, "pad_last": True}
    parts = [
        OrderedBatches(ORDER, rank=rank, bucket_by=Buckets(DS, batches=2), **options).current
        for rank in range(ranks)
    ]
    last = [part[len(part) - 1] for part in parts]
    repeated = np.concatenate([batch.indices[batch.repeated] for batch in last])
    assert sorted(repeated) == sorted(ORDER.take(0, 0, -SIZE % 48).tolist())


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_each_rank_has_about_the_same_number_of_masks(ranks):
    """The fullest rank of a batch, over the mean: everyone waits for it."""
    excess = []
    for buckets in (None, Buckets(DS, batches=8)):
        _, parts = on_ranks(ranks, 48, buckets, {"drop_last": True})
        loads = np.array([[COUNTS[part].sum() for part in batch] for batch in parts])
        excess.append((loads.max(1) / loads.mean(1)).mean() - 1)
        per_rank = loads.sum(0)
    assert excess[1] < 0.25 * excess[0]
    assert per_rank.max() < 1.03 * per_rank.mean()  # over the epoch no rank has more


@settings(max_examples=20)
@given(some.integers(0, 2), some.floats(0, 1), some.sampled_from(list(SIZES)))
def test_an_epoch_is_resumed_between_any_two_batches_on_other_ranks(epoch, share, name):
    sizes, buckets = SIZES[name], Buckets(DS, batches=5)
    saved = OrderedBatches(ORDER, global_batch_size=sizes, rank=1, world_size=2, bucket_by=buckets)
    saved.set_epoch(epoch)
    whole, _ = on_ranks(1, sizes, buckets, epoch=epoch)
    done = int(share * (len(whole) - 1))
    state = json.loads(json.dumps(saved.state_after(done)))
    again = pickle.loads(pickle.dumps(Buckets(DS, batches=5)))
    for ranks in (1, 3):
        assert on_ranks(ranks, sizes, again, state=state)[0] == whole[done:]


def test_the_first_bucketed_batches_are_pinned():
    batches = OrderedBatches(ORDER, 6, bucket_by=Buckets(DS, batches=4))
    batches.set_epoch(2)
    found = list(batches)
    assert found[:2] == [[288, 467, 230, 173, 106, 117], [244, 395, 409, 217, 124, 190]]
    assert COUNTS[found[0]].tolist() == [124, 138, 119, 139, 128, 138]


def test_buckets_by_aspect_crop_batches_to_one_shape():
    buckets = Buckets(DS, "aspect", batches=8)
    sizes = DS.column("size")[:, 2:].astype(int)
    shares = []
    for given_buckets in (buckets, None):
        batches, _ = on_ranks(1, 20, given_buckets)
        total = sum(len(batch) * sizes[batch].max(0).prod() for batch in batches)
        shares.append(1 - sizes.prod(1).sum() / total)
    assert shares[0] < 0.3 * shares[1]


def test_buckets_by_numbers_of_ones_own_sort_by_them():
    keys = np.random.default_rng(4).random(SIZE)
    batches, _ = on_ranks(1, 10, Buckets(DS, keys, batches=50))
    spans = [np.ptp(keys[batch]) for batch in batches]
    assert max(spans) < 0.06


def test_a_state_of_other_buckets_or_another_batch_size_is_refused_by_name():
    state = OrderedBatches(ORDER, 24, bucket_by=Buckets(DS)).state_after(1)
    for sizes, buckets, named in (
        (
            24,
            None,
            r"was 'mask_count, windows of 64 batches', is None; glob.*\. Open the same data",
        ),
        (24, Buckets(DS, batches=8), "windows of 8 batches"),
        (24, Buckets(DS, COUNTS * 2), "bucket_by was 'mask_count.*', is 'int64 [0-9a-f]{16}, win"),
        (
            12,
            Buckets(DS),
            r"batch_size was 'PiecewiseSchedule\(24\)', is 'Piece",
        ),
    ):
        with pytest.raises(OptionError, match=named):
            OrderedBatches(ORDER, sizes, bucket_by=buckets).load_state_dict(state)


def of_other_data():
    return Buckets(SimpleNamespace(fingerprint="f" * 16, column=DS.column, layout=DS.layout))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Buckets(DS, "masks"), "bucket_by is 'masks': choose one of mask_count, aspect"),
        (lambda: Buckets(DS, lambda k: k), "bucket_by is <function .*: choose one of mask_c"),
        (lambda: Buckets(DS, np.ones(3)), r"bucket_by is float64 \(3,\): .* \(500,\)"),
        (lambda: Buckets(DS, np.full(SIZE, np.nan)), "finite numbers; sample 0 has nan"),
        (lambda: Buckets(DS, batches=0), "batches is 0"),
        (lambda: Buckets(2), "a int has no fingerprint: choose a dataset of sa1bpack.open"),
        (lambda: OrderedBatches(NodeShuffleOrder(DS), 8, bucket_by=Buckets(DS)), "each rank keeps"),
        (lambda: OrderedBatches(ORDER, 8, bucket_by="aspect"), r"pass Buckets\(ds, 'aspect'"),
        (lambda: OrderedBatches(ORDER, 8, bucket_by=of_other_data()), "with fingerprint ffff"),
    ],
)
def test_buckets_that_cannot_be_used_are_refused(make, named):
    with pytest.raises(OptionError, match=named):
        make()
