"""What Loader and make_dataloader share: checks, and where and among how many a program runs."""

import os
from dataclasses import replace
from typing import Any

import torch.distributed

from sa1bpack.dataset.dataset import Dataset
from sa1bpack.environment import available_cpus
from sa1bpack.errors import LoaderError, OptionError, ReadError
from sa1bpack.order.batches import EpochBatches, OrderedBatches
from sa1bpack.order.orders import LocalShuffleOrder, Order, SequentialOrder, ShuffleOrder

# More threads than this do not copy faster than a few memory channels allow.
MOST_THREADS = 12

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


class RankBatches(OrderedBatches):
    """OrderedBatches for the rank that this process has when an iteration begins.

    So a loader may be made before the process group is. Rank and world size are those of
    torch.distributed, or 0 of 1 as long as it is not initialized.
    """

    def __init__(self, order: Order, batch_size: int, *, drop_last: bool, pad_last: bool):
        super().__init__(order, batch_size, drop_last=drop_last, pad_last=pad_last)
        self._join_ranks()

    def begin(self) -> EpochBatches:
        """As of OrderedBatches.

        Raises LoaderError where the environment announces ranks, but they have no process group:
        each would be given all samples. OptionError if batches cannot be cut for so many ranks.
        """
        super().begin()
        announced = os.environ.get("WORLD_SIZE", "1")
        if announced not in ("", "1") and not _is_distributed():
            raise LoaderError(
                f"WORLD_SIZE is {announced}, but torch.distributed is not initialized: every rank "
                "would be given all samples. Call init_process_group before the first batch, or "
                "give rank and world_size: 0 and 1 if each process is to have all"
            )
        self._join_ranks()
        return self.current

    def _join_ranks(self) -> None:
        if _is_distributed():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
            if (rank, world_size) != (self.rank, self.world_size):
                self._current = replace(self._current, rank=rank, world_size=world_size)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def make_batches(
    ds: Dataset, batch_size: int | None, order: str | Order | OrderedBatches, seed: int | None,
    drop_last: bool, pad_last: bool, rank: int | None, world_size: int | None,
) -> OrderedBatches:  # fmt: skip
    """The batches of a dataset.

    Raises OptionError for an order that is none of the choices or of another dataset, and for
    options that the order or OrderedBatches were given already.
    """
    if isinstance(order, OrderedBatches):
        given = {"batch_size": batch_size, "rank": rank, "world_size": world_size,
                 "drop_last": drop_last or None, "pad_last": pad_last or None}  # fmt: skip
        both = [name for name, value in given.items() if value is not None]
        if both:
            raise OptionError(f"order is OrderedBatches, which have {', '.join(both)} already; "
                              "give these only once")  # fmt: skip
        _check_order(order.order, ds, seed)
        return order
    if batch_size is None:
        raise OptionError("batch_size is missing: samples of a batch over all ranks together")
    if isinstance(order, str):
        order = _named(order, ds, 0 if seed is None else seed)
    if not isinstance(order, Order):
        raise OptionError(
            f"order is {order!r}: choose one of {', '.join(_ORDERS)}, an Order, or OrderedBatches"
        )
    _check_order(order, ds, seed)
    last = {"drop_last": drop_last, "pad_last": pad_last}
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank is {rank} and world_size is {world_size}: give both or neither")
    if rank is None or world_size is None:
        return RankBatches(order, batch_size, **last)
    return OrderedBatches(order, batch_size, rank=rank, world_size=world_size, **last)


def _named(name: str, ds, seed: int) -> Order:
    if name == "shuffle":
        return ShuffleOrder(ds, seed=seed)
    if name == "local":
        return LocalShuffleOrder(ds, seed=seed)
    if name == "sequential":
        return SequentialOrder(ds)
    raise OptionError(f"order is {name!r}: choose one of {', '.join(_ORDERS)}")


def _check_order(order: Order, ds, seed: int | None) -> None:
    if order.size != len(ds) or order.fingerprint != ds.fingerprint:
        raise OptionError(
            f"the order is of {order.size} samples with fingerprint {order.fingerprint}, but the "
            f"dataset has {len(ds)} with {ds.fingerprint}; make the order of this dataset"
        )
    own = order_seed(order, seed)
    if seed is not None and seed != own:
        raise OptionError(
            f"seed is {seed}, but the order has the seed {own}: make the order with this seed, or "
            "leave seed out here"
        )


def order_seed(order: Order, seed: int | None) -> int:
    """The seed of an order, for all else that is random; of an order without one, `seed` or 0."""
    return getattr(order, "seed", 0 if seed is None else seed)


def ended_by(error: BaseException) -> str:
    """What an iteration says when it is asked to go on after an error."""
    text = f"this iteration was ended by {type(error).__name__}: {error}. Begin a new one"
    if isinstance(error, ReadError):
        text += "; with on_error='drop' samples that cannot be read end none"
    return text
