"""The share of one of several processes that make a feature: its shards, and its device."""

import os
from collections.abc import Sequence
from typing import Any

from sa1bpack.arguments import part_of_job, whole_number
from sa1bpack.deriving.target import ShardToDo
from sa1bpack.errors import OptionError
from sa1bpack.loading.cuda import CUDA
from sa1bpack.loading.order.batches import process_group
from sa1bpack.wording import brief, counted


def share(shards: Sequence[ShardToDo], part: Any) -> Sequence[ShardToDo]:
    """The shards of one part of a job: every N-th, from the K-th on.

    Args:
        part: (K, N) with K from 1 to N. None: rank and world size of torch.distributed if it is
            initialized, otherwise of the environment (RANK and WORLD_SIZE, which torchrun sets),
            otherwise all.
    """
    group = process_group()
    if part is not None:
        number, count = part_of_job(part)
    elif group is not None:
        number = group.get_rank() + 1
        count = group.get_world_size()
    else:
        rank = os.environ.get("RANK") or "0"
        world = os.environ.get("WORLD_SIZE") or "1"
        try:
            count = int(world)
            number = whole_number("RANK", int(rank), 0, count - 1) + 1
        except ValueError:
            raise OptionError(
                f"RANK is {brief(rank)} and WORLD_SIZE is {brief(world)} in the environment: set "
                "both, or pass part=(K, N)"
            ) from None
    return shards[number - 1 :: count]


def use_device_of_local_rank(device: str) -> None:
    """Make the device of LOCAL_RANK the current one, which "cuda" stands for; otherwise nothing.

    torchrun starts a process for each device of a machine, and numbers them. With a single device
    each process may see another one, and uses it.

    Args:
        device: the device that was asked for, as it was named.

    Raises:
        OptionError: LOCAL_RANK is not that of one of the devices.
    """
    text = os.environ.get("LOCAL_RANK")
    if device != "cuda" or text is None:
        return
    count = CUDA.count()
    if count < 2:
        return
    if not text.isdecimal() or int(text) >= count:
        raise OptionError(
            f"device is 'cuda', but LOCAL_RANK is {brief(text)} in the environment, and there are "
            f"{counted(count, 'CUDA device')}: start a process for each device (torchrun "
            f"--nproc-per-node {count}), or name the device, such as cuda:0"
        )
    CUDA.set_device(int(text))
