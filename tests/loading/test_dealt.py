"""Batches for a library that deals them out: by Accelerate's rules each rank gets its own part."""

from itertools import chain

import numpy as np
import pytest

from sa1bpack import LoaderError, OrderedBatches, ShuffleOrder, make_dataloader


@pytest.fixture
def order(ds):
    """Of 44 samples."""
    return ShuffleOrder(ds[np.arange(44) % 12], seed=3)


@pytest.fixture
def dealt(ds):
    """dealt(ranks): the batch sampler of a DataLoader over the samples of `order`."""

    def made(ranks, **last):
        options = {"shuffle": True, "seed": 3, "rank": 0, "world_size": ranks, "num_workers": 0}
        given = {"global_batch_size": 12, **options, **last}
        return make_dataloader(ds[np.arange(44) % 12], **given).batch_sampler

    return made


def test_batch_i_of_n_ranks_is_the_part_of_rank_i_modulo_n(dealt, order):
    for ranks in (1, 2, 3, 4):
        batches = dealt(ranks, pad_last=True)
        assert batches.batch_size == 12 // ranks
        found = list(batches)
        assert len(found) == len(batches) == 4 * ranks
        for rank in range(ranks):
            own = OrderedBatches(
                order, global_batch_size=12, rank=rank, world_size=ranks, pad_last=True
            )
            assert found[rank::ranks] == list(own)


def test_the_short_end_of_an_epoch_is_full_batches_and_one_short_one(dealt):
    batches = dealt(3)  # 44 = 3 * 12 + 4 + 4: two full batches of one rank
    assert [len(batch) for batch in batches] == [4] * 11
    assert len(batches) == 11
    batches = dealt(2)  # 44 = 3 * 12 + 6 + 2
    assert [len(batch) for batch in batches] == [6] * 7 + [2]
    assert len(batches) == 8
    assert sorted(chain(*dealt(2))) == list(range(44))


def test_a_state_saved_while_a_library_takes_the_batches_is_refused(dealt, order):
    batches = dealt(1)
    ordered = batches.batches
    next(iter(batches))
    with pytest.raises(LoaderError, match="taken by another library"):
        ordered.state_dict()
    ordered.load_state_dict(ordered.state_after(2))
    assert list(chain(*batches)) == order.take(0, 24, 44).tolist()
    assert len(batches) == 4


def test_batches_cut_for_a_rank_are_not_cut_again(dealt, order):
    """Accelerate reads drop_last where it deals the batches of a sampler out to processes."""
    with pytest.raises(LoaderError, match=r"rank 1 of 2.* a share of its share.*make_dataloader"):
        getattr(
            OrderedBatches(order, global_batch_size=12, rank=1, world_size=2), "drop_last", False
        )
    for uncut in (OrderedBatches(order, 12), dealt(2)):
        assert not hasattr(uncut, "drop_last")
