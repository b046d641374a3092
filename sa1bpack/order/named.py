"""From the options of a loader to its batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.order.batches import OrderedBatches
from sa1bpack.order.buckets import Buckets
from sa1bpack.order.home import HomeShuffleOrder
from sa1bpack.order.orders import (
    LocalShuffleOrder,
    Order,
    Ordered,
    SequentialOrder,
    ShuffleOrder,
    order_seed,
)
from sa1bpack.order.ranks import RankBatches
from sa1bpack.schedules import Schedule, WholeNumbers

ORDERS = ("shuffle", "local", "home", "sequential")


def make_batches(
    ds: Ordered,
    batch_size: WholeNumbers,
    order: str | Order,
    seed: int | None,
    last: str,
    rank: int | None,
    world_size: int | None,
    buckets: str | np.ndarray | Buckets | None = None,
    schedules: Sequence[tuple[str, Schedule]] = (),
) -> OrderedBatches:
    """Return the batches of a dataset.

    Args:
        ds: the dataset.
        batch_size: samples per batch over all ranks together.
        order: one of ORDERS, or an Order of this dataset.
        seed: of a named order; None for 0. With an Order that has a seed: None, or that seed.
        last: what becomes of the samples that do not fill a batch, as in `EpochBatches`.
        rank, world_size: both, or neither for those of torch.distributed when an iteration begins.
        buckets: Buckets, or by what to make them; None for none.
        schedules: see `EpochBatches`.

    Raises:
        OptionError: a value is out of range, or values do not fit together.
    """
    if isinstance(order, OrderedBatches):
        raise OptionError(
            "order is OrderedBatches, which have batch_size, last, rank and world_size already: "
            "pass their order as order=batches.order, and these as options of their own"
        )
    if isinstance(order, str):
        order = _named(order, ds, 0 if seed is None else seed)
    if not isinstance(order, Order):
        raise OptionError(f"order is {order!r}: choose one of {', '.join(ORDERS)}, or an Order")
    _check_order(order, ds, seed)
    if (rank is None) != (world_size is None):
        raise OptionError(
            f"rank is {rank} and world_size is {world_size}: give both or neither, for those of "
            "torch.distributed"
        )
    if buckets is not None and not isinstance(buckets, Buckets):
        buckets = Buckets(ds, buckets)
    more = {"last": last, "buckets": buckets, "schedules": schedules}
    if rank is None or world_size is None:
        return RankBatches(order, batch_size, **more)
    return OrderedBatches(order, batch_size, rank=rank, world_size=world_size, **more)


def _named(name: str, ds: Ordered, seed: int) -> Order:
    if name == "shuffle":
        return ShuffleOrder(ds, seed=seed)
    if name == "local":
        return LocalShuffleOrder(ds, seed=seed)
    if name == "home":
        return HomeShuffleOrder(ds, seed=seed)
    if name == "sequential":
        return SequentialOrder(ds)
    raise OptionError(f"order is {name!r}: choose one of {', '.join(ORDERS)}, or an Order")


def _check_order(order: Order, ds: Any, seed: int | None) -> None:
    if order.size != len(ds) or order.fingerprint != ds.fingerprint:
        raise OptionError(
            f"the order has {order.size} samples with fingerprint {order.fingerprint}, but the "
            f"dataset has {len(ds)} with {ds.fingerprint}; make the order from this dataset"
        )
    own = order_seed(order, seed)
    if seed is not None and seed != own:
        raise OptionError(
            f"seed is {seed}, but the order has the seed {own}: make the order with this seed, or "
            "omit seed here"
        )
