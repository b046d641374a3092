"""Orders and OrderedBatches, each on its own; and from the options of a loader."""

import numpy as np
import pytest
import torch

from sa1bpack import (
    Extent,
    LocalShuffleOrder,
    NodeShuffleOrder,
    OptionError,
    OrderedBatches,
    ReadingOptions,
    SequentialOrder,
    ShuffleOrder,
    WeightedOrder,
)

EXTENT = Extent(20, "0123456789abcdef", np.array([0, 12, 20]))


# ------------------------------------------------------------------------------------------- orders


def weighted(weights, **options):
    return WeightedOrder(EXTENT, weights, **options)


def local(bounds=None, **options):
    return LocalShuffleOrder(Extent(20, "0" * 16, bounds), **options)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: weighted(np.ones(19)), r"float64 \(19,\): .*per sample, \(20,\)"),
        (lambda: weighted(np.r_[np.ones(19), -1]), "sample 19 has -1.0"),
        (lambda: weighted(np.r_[1, np.nan, np.ones(18)]), "sample 1 has nan"),
        (lambda: weighted(np.r_[np.inf, np.ones(19)]), "sample 0 has inf"),
        (lambda: weighted(np.zeros(20)), "a finite sum above 0, their sum is 0.0"),
        (lambda: weighted(np.full(20, 1e308)), "a finite sum above 0, their sum is inf"),
        (lambda: weighted(np.ones(20), samples=0), "samples is .*: choose a whole number"),
        (lambda: local([0, 19]), "shard bounds must"),
        (lambda: local([1, 20]), "shard bounds must"),
        (lambda: local([0]), "shard bounds must"),
        (lambda: local([[0, 20]]), "shard bounds must"),
        (lambda: local([0, 12, 11, 20]), "shard bounds must"),
        (lambda: local(window=0), "window is .*: choose a whole number from 1"),
        (lambda: local(block=0), "block is .*: choose a whole number from 1"),
        (lambda: ShuffleOrder(EXTENT, seed=-1), "seed is .*: choose a whole number from 0"),
        (lambda: SequentialOrder(Extent(0, "0" * 16)), "the dataset has no samples"),
        (lambda: Extent(-1, "0" * 16), "size is -1: choose a whole number from 0"),
        (lambda: Extent(2.5, "0" * 16), "size is 2.5: choose a whole number from 0"),
        (lambda: SequentialOrder(Extent(5, "pack")), "a fingerprint must be 16"),
        (lambda: SequentialOrder(range(5)), "a range has no fingerprint: choose .* by an Extent"),
        (lambda: SequentialOrder(EXTENT).take(0, 3, 21), "positions 3 to 21 are not in an epoch"),
        (lambda: SequentialOrder(EXTENT).take(0, 3, 2), "positions 3 to 2"),
        (lambda: SequentialOrder(EXTENT).take(-1, 0, 2), "epoch is"),
    ],
)
def test_an_order_with_impossible_values_is_refused(make, named):
    with pytest.raises(OptionError, match=named):
        make()


# ------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 4, "global_batch_size": 8}, "global_batch_size 8: give one of them"),
        ({}, "batch_size is None and .* None: give one"),
        ({"batch_size": 0}, "batch_size is .*: choose a whole number from 1"),
        ({"global_batch_size": 6, "world_size": 4}, "size 6 .* multiple of world_size 4"),
        ({"batch_size": 6, "rank": 2, "world_size": 2}, "rank is 2: .* from 0 to 1"),
        ({"batch_size": 6, "world_size": 0}, "world_size is"),
        ({"batch_size": 6, "drop_last": True, "pad_last": True}, "drop_last and pad_last are True"),
        ({"batch_size": 6, "drop_last": "yes"}, "drop_last is 'yes'"),
        ({"batch_size": 21, "drop_last": True}, "20 samples has no full batch of 21"),
        ({"batch_size": 3, "world_size": 3}, "the last batch has 2 samples for 3 ranks"),
    ],
)
def test_batches_with_impossible_values_are_refused(options, named):
    with pytest.raises(OptionError, match=named):
        OrderedBatches(SequentialOrder(EXTENT), **options)


@pytest.mark.parametrize(("size", "numbers"), [(8, [1, 2]), (6, [2, 3]), (12, [1]), (4, [2, 3, 4])])
def test_batches_are_numbered_from_the_first_sample_of_the_epoch(size, numbers):
    state = OrderedBatches(SequentialOrder(EXTENT), 8).state_after(1)
    resumed = OrderedBatches(SequentialOrder(EXTENT), size)
    resumed.load_state_dict(state)
    rest = resumed.current
    assert [batch.number for batch in rest] == numbers
    with pytest.raises(IndexError, match=f"batch {len(rest)} of {len(rest)}"):
        rest[len(rest)]
    whole = OrderedBatches(SequentialOrder(EXTENT), size).current
    assert [batch.number for batch in whole] == [*range(len(whole))]


def test_the_record_of_a_batch_says_which_one_it_is_and_what_comes_after_it():
    """Also of a batch that has lost samples, and after a start between two batches."""
    for start in (0, 5, 20):
        batches = OrderedBatches(SequentialOrder(EXTENT), 8, pad_last=True)
        batches.load_state_dict(batches.state_dict() | {"epoch": 2, "samples": start})
        current = batches.current
        for count, (indices, batch) in enumerate(zip(batches, current, strict=True), 1):
            assert batch.indices.tolist() == indices
            assert batch.is_last == (count == len(current))
            state = batches.state_dict()
            assert state == current.state_after(count)
            assert (state["epoch"], state["samples"]) == batch.after
            rest = batch.take(np.array([True, False] * 4))
            assert rest.indices.tolist() == indices[::2]
            assert rest.repeated.tolist() == batch.repeated[::2].tolist()
            named = ("epoch", "number", "step", "after")
            assert all(getattr(rest, name) == getattr(batch, name) for name in named)


# ------------------------------------------------------------------- from the options of a loader


def made(batch_size=4, **options):
    return ReadingOptions(**options).batches(EXTENT, batch_size)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"shuffle": True}, ShuffleOrder),
        ({"order": "local"}, LocalShuffleOrder),
        ({"order": "by_node"}, NodeShuffleOrder),
        ({"shuffle": False, "order": "local"}, LocalShuffleOrder),
        ({"shuffle": False}, SequentialOrder),
        ({}, SequentialOrder),
    ],
)
def test_shuffle_and_names_stand_for_an_order_with_the_seed(given, kind):
    batches = made(**given, seed=7)
    same = SequentialOrder(EXTENT) if kind is SequentialOrder else kind(EXTENT, seed=7)
    assert type(batches.order) is kind
    assert batches.order.identity() == same.identity()
    assert made(**given).order.identity() == made(**given, seed=0).order.identity()
    assert list(batches) == list(made(order=same))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"order": "random"}, "order is 'random': choose one of local, by_node, or an"),
        ({"order": "shuffle"}, "order is 'shuffle': choose .*; or shuffle=True in its place"),
        ({"shuffle": 1}, "shuffle is 1: choose True or False"),
        ({"shuffle": True, "order": "local"}, "shuffle is True, and an order is given"),
        ({"shuffle": True, "order": SequentialOrder(EXTENT)}, "shuffle is True, and an order is"),
        ({"order": OrderedBatches(ShuffleOrder(EXTENT), 4)}, "such as batches.order"),
        ({"order": ShuffleOrder(Extent(19, "0" * 16))}, "has 19 samples .* make the order from"),
        ({"order": ShuffleOrder(Extent(20, "0" * 16))}, "fingerprint 0{16}, but the dataset"),
        ({"order": ShuffleOrder(EXTENT, seed=1), "seed": 3}, "is 3, but the order has the seed 1"),
        ({"world_size": 2}, "rank is None: choose a whole number from 0 to 1"),
        ({"rank": 1}, "world_size is None: choose a whole number from 1"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_name(options, named):
    with pytest.raises(OptionError, match=named):
        made(**options)


# ----------------------------------------------------------------------------------- torch's loader


class Squares(torch.utils.data.Dataset):
    fingerprint = "0" * 16

    def __len__(self):
        return 20

    def __getitem__(self, i):
        return i * i


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_dataloader_resumes_where_the_consumer_was(workers):
    own = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}

    def loader_of(batches):
        loader = torch.utils.data.DataLoader
        return loader(Squares(), batch_sampler=batches, num_workers=workers, **own)

    order, used = ShuffleOrder(Squares()), []
    squares = [(order.take(epoch, 0, 20) ** 2).tolist() for epoch in (0, 1)]
    batches, resumed = OrderedBatches(order, 4), OrderedBatches(order, 4)
    loader = loader_of(batches)
    assert len(loader) == 5
    for done, batch in enumerate(loader, 1):
        used += batch.tolist()
        if done == 2:
            break
    resumed.load_state_dict(batches.state_after(done))
    rest = loader_of(resumed)
    assert used + torch.cat([*rest]).tolist() == squares[0]
    assert torch.cat([*rest]).tolist() == squares[1]
