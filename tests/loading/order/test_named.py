"""From the options of a loader to its batches: orders by name, seeds, and what does not fit."""

import numpy as np
import pytest

from sa1bpack.errors import OptionError
from sa1bpack.loading.options import ReadingOptions
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.orders import (
    Extent,
    LocalShuffleOrder,
    NodeShuffleOrder,
    SequentialOrder,
    ShuffleOrder,
)

ORDERS = "local, by_node"
DS = Extent(20, "0123456789abcdef", np.array([0, 12, 20]))


def make(batch_size=4, **options):
    return ReadingOptions(**options).batches(DS, batch_size)


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
    batches = make(**given, seed=7)
    same = SequentialOrder(DS) if kind is SequentialOrder else kind(DS, seed=7)
    assert type(batches.order) is kind
    assert batches.order.identity() == same.identity()
    assert make(**given).order.identity() == make(**given, seed=0).order.identity()
    assert list(batches) == list(make(order=same))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"order": "random"}, f"order is 'random': choose one of {ORDERS}, or an"),
        ({"order": "shuffle"}, "order is 'shuffle': choose .*; or shuffle=True in its place"),
        ({"shuffle": 1}, "shuffle is 1: choose True or False"),
        ({"shuffle": True, "order": "local"}, "shuffle is True, and an order is given"),
        ({"shuffle": True, "order": SequentialOrder(DS)}, "shuffle is True, and an order is"),
        ({"order": OrderedBatches(ShuffleOrder(DS), 4)}, "such as batches.order"),
        ({"order": ShuffleOrder(Extent(19, "0" * 16))}, "has 19 samples .* make the order from"),
        ({"order": ShuffleOrder(Extent(20, "0" * 16))}, "fingerprint 0{16}, but the dataset"),
        ({"order": ShuffleOrder(DS, seed=1), "seed": 3}, "seed is 3, but the order has the seed 1"),
        ({"world_size": 2}, "rank is None: choose a whole number from 0 to 1"),
        ({"rank": 1}, "world_size is None: choose a whole number from 1"),
    ],
)
def test_options_that_cannot_be_used_are_refused_by_name(options, named):
    with pytest.raises(OptionError, match=named):
        make(**options)
