"""Ranks of torch.distributed that are forks of one program, which imports torch and numba once for
all.

The program calls `fork_ranks`, and each rank prints what it found as a line of JSON.
"""

import atexit
import json
import os
import socket
from pathlib import Path
from typing import Any

import numba
from commands import python

HELPERS = Path(__file__).parent
SECONDS = 240  # for all ranks; who needs more has hung


def fork_ranks(world_size: int) -> int:
    """Fork this process into so many ranks, each with a rank's environment.

    Returns:
        The rank of the process that returns. Rank 0 ends last, and fails if another one does.
    """
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    numba.njit(lambda: 0)()  # loads the compiler
    children: list[int] = []
    rank = 0
    for number in range(1, world_size):
        child = os.fork()
        if child == 0:
            rank = number
            children.clear()
            break
        children.append(child)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "TORCHELASTIC_RUN_ID": "forked",
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
    }
    atexit.register(_wait_for, children)
    return rank


def _wait_for(children: list[int]) -> None:
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            os._exit(1)


def outputs_of_ranks(*arguments: object, folder: Path = HELPERS) -> list[Any]:
    """What the ranks of a program print, a line of JSON each; it finds the modules of a folder.

    Raises AssertionError with what they say if one fails.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(HELPERS)]),
        "OMP_NUM_THREADS": "1",
    }
    output = python(*arguments, quiet=False, env=environment, timeout=SECONDS)
    return [json.loads(line) for line in output.splitlines()]
