"""What Loader and make_dataloader share: checks, and defaults of where a program runs."""

import os
import threading
from math import isfinite
from numbers import Real
from typing import Any

import torch.distributed

from sa1bpack.data.dataset import Dataset
from sa1bpack.data.ordered_batches import OrderedBatches
from sa1bpack.data.samplers import LocalShuffleOrder, Order, SequentialOrder, ShuffleOrder
from sa1bpack.environment import available_cpus
from sa1bpack.errors import OptionError

# More threads than this do not copy faster than a few memory channels allow.
MOST_THREADS = 12

# Seconds, 23 days: a queue between processes waits with poll(), whose milliseconds have 31 bits.
_LONGEST_TIMEOUT = min(2_000_000, threading.TIMEOUT_MAX)

_ORDERS = ("shuffle", "local", "sequential")


def cores() -> int:
    """Cores that this process may use: those of its affinity, shared with its node's other ranks.

    The number of ranks on the node is LOCAL_WORLD_SIZE, which torchrun sets.
    """
    try:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        ranks = 1
    return max(1, available_cpus() // max(1, ranks))


def default_threads() -> int:
    """Threads of a Loader that was not told how many."""
    return min(cores(), MOST_THREADS)


def check_reads(reader: str, ds: Any) -> None:
    """Raise OptionError unless `ds` is a dataset; `reader` is what was to read it."""
    if not isinstance(ds, Dataset):
        raise OptionError(f"{reader} reads a dataset of sa1bpack.open, not {type(ds).__name__}")


def timeout_seconds(value: Any) -> float:
    """A timeout as a float.

    Raises OptionError unless it is a finite number above 0 that every kind of wait can take.
    """
    number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if not number or not 0 < value <= _LONGEST_TIMEOUT:
        raise OptionError(
            f"timeout is {value!r}: choose a number of seconds above 0, {_LONGEST_TIMEOUT} at most"
        )
    return float(value)


def rank_and_world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The two as given, or those of torch.distributed if it is initialized, else 0 of 1.

    Raises OptionError if only one is given.
    """
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank is {rank} and world_size is {world_size}: give both or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def make_batches(
    ds: Dataset, batch_size: int | None, order: str | Order | OrderedBatches, seed: int,
    drop_last: bool, pad_last: bool, rank: int | None, world_size: int | None,
) -> OrderedBatches:  # fmt: skip
    """The batches of a dataset.

    Raises OptionError for an order that is none of the choices or of another dataset, or options
    that OrderedBatches were given already.
    """
    if isinstance(order, OrderedBatches):
        given = {"batch_size": batch_size, "rank": rank, "world_size": world_size,
                 "drop_last": drop_last or None, "pad_last": pad_last or None}  # fmt: skip
        both = [name for name, value in given.items() if value is not None]
        if both:
            raise OptionError(f"order is OrderedBatches, which have {', '.join(both)} already; "
                              "give these only once")  # fmt: skip
        _check_dataset(order.order, ds)
        return order
    if batch_size is None:
        raise OptionError("batch_size is missing: samples of a batch over all ranks together")
    if isinstance(order, str):
        order = _named(order, ds, seed)
    if not isinstance(order, Order):
        raise OptionError(
            f"order is {order!r}: choose one of {', '.join(_ORDERS)}, an Order, or OrderedBatches"
        )
    _check_dataset(order, ds)
    rank, world_size = rank_and_world(rank, world_size)
    return OrderedBatches(
        order, batch_size, rank=rank, world_size=world_size, drop_last=drop_last, pad_last=pad_last
    )


def _named(name: str, ds, seed: int) -> Order:
    if name == "shuffle":
        return ShuffleOrder(ds, seed=seed)
    if name == "local":
        return LocalShuffleOrder(ds, seed=seed)
    if name == "sequential":
        return SequentialOrder(ds)
    raise OptionError(f"order is {name!r}: choose one of {', '.join(_ORDERS)}")


def _check_dataset(order: Order, ds) -> None:
    if order.size != len(ds) or order.fingerprint != ds.fingerprint:
        raise OptionError(
            f"the order is of {order.size} samples with fingerprint {order.fingerprint}, but the "
            f"dataset has {len(ds)} with {ds.fingerprint}; make the order of this dataset"
        )
