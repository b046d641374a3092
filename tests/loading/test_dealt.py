"""Batches for a library that deals them out: by Accelerate's rules each rank gets its own part."""

from itertools import chain

import pytest

from sa1bpack import Collate, Extent, LoaderError, OrderedBatches, ShuffleOrder
from sa1bpack.adapters.dataloader import DealtBatches

ORDER = ShuffleOrder(Extent(44, "0123456789abcdef"), seed=3)


def dealt(ranks, batch_size=12, **last):
    ordered = OrderedBatches(ORDER, global_batch_size=batch_size, world_size=ranks, **last)
    return DealtBatches(ordered, Collate())


def test_batch_i_of_n_ranks_is_the_part_of_rank_i_modulo_n():
    for ranks in (1, 2, 3, 4):
        batches = dealt(ranks, pad_last=True)
        assert batches.batch_size == 12 // ranks
        found = list(batches)
        assert len(found) == len(batches) == 4 * ranks
        for rank in range(ranks):
            own = OrderedBatches(
                ORDER, global_batch_size=12, rank=rank, world_size=ranks, pad_last=True
            )
            assert found[rank::ranks] == list(own)


def test_the_short_end_of_an_epoch_is_full_batches_and_one_short_one():
    batches = dealt(3)  # 44 = 3 * 12 + 4 + 4: two full batches of one rank
    assert [len(batch) for batch in batches] == [4] * 11
    assert len(batches) == 11
    batches = dealt(2)  # 44 = 3 * 12 + 6 + 2
    assert [len(batch) for batch in batches] == [6] * 7 + [2]
    assert len(batches) == 8
    assert sorted(chain(*dealt(2))) == list(range(44))


def test_a_state_saved_while_a_library_takes_the_batches_is_refused():
    batches = dealt(1)
    ordered = batches.batches
    next(iter(batches))
    with pytest.raises(LoaderError, match="taken by another library"):
        ordered.state_dict()
    ordered.load_state_dict(ordered.state_after(2))
    assert list(chain(*batches)) == ORDER.take(0, 24, 44).tolist()
    assert len(batches) == 4


def test_batches_cut_for_a_rank_are_not_cut_again():
    """Accelerate reads drop_last where it deals the batches of a sampler out to processes."""
    with pytest.raises(LoaderError, match=r"rank 1 of 2.* a part of its part.*make_dataloader"):
        getattr(
            OrderedBatches(ORDER, global_batch_size=12, rank=1, world_size=2), "drop_last", False
        )
    for uncut in (OrderedBatches(ORDER, 12), dealt(2)):
        assert not hasattr(uncut, "drop_last")
