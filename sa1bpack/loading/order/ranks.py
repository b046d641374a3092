"""The rank of this process in torch.distributed, and the cores that it may use."""

import os
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

from sa1bpack.environment import available_cpus
from sa1bpack.errors import LoaderError
from sa1bpack.loading.order.batches import OrderedBatches
from sa1bpack.loading.order.epoch import EpochBatches
from sa1bpack.loading.order.orders import Order
from sa1bpack.schedules import WholeNumbers


def cores() -> int:
    """Cores that this process may use: those of its affinity, shared with its node's other ranks.

    The number of ranks on the node is LOCAL_WORLD_SIZE, which torchrun sets.
    """
    try:
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except ValueError:
        ranks = 1
    return max(1, available_cpus() // max(1, ranks))


class RankBatches(OrderedBatches):
    """OrderedBatches for the rank that this process has when an iteration begins.

    So a loader may be made before the process group is. Rank and world size are those of
    torch.distributed, or 0 of 1 until it is initialized.

    Beginning an iteration raises LoaderError where the environment announces several ranks but
    there is no process group: each would get all samples. It raises OptionError if the batches
    cannot be cut for so many ranks.
    """

    def __init__(self, order: Order, batch_size: WholeNumbers, **options: Any):
        """As OrderedBatches, without rank and world_size."""
        super().__init__(order, batch_size, **options)
        _with_rank(self.cursor.batches)  # raises where they cannot be cut

    @staticmethod
    def _join(batches: EpochBatches) -> EpochBatches:
        announced = os.environ.get("WORLD_SIZE", "1")
        if announced not in ("", "1") and process_group() is None:
            raise LoaderError(
                f"WORLD_SIZE is {announced}, but torch.distributed is not initialized: every rank "
                "would get all samples. Call init_process_group before the first batch, or pass "
                "rank and world_size: 0 and 1 if each process is to have all samples"
            )
        return _with_rank(batches)

    @property
    def current(self) -> EpochBatches:
        """Like OrderedBatches.current, for the rank that this process has now."""
        return _with_rank(self.cursor.batches)


def _with_rank(batches: EpochBatches) -> EpochBatches:
    group = process_group()
    if group is None:
        return batches
    rank, world_size = group.get_rank(), group.get_world_size()
    if (rank, world_size) == (batches.rank, batches.world_size):
        return batches
    return replace(batches, rank=rank, world_size=world_size).check_epochs()


def process_group() -> ModuleType | None:
    """Return torch.distributed if it is initialized; a program without torch has no group."""
    found = sys.modules.get("torch.distributed")
    ready = found is not None and found.is_available() and found.is_initialized()
    return found if ready else None
