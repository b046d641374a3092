"""A worker process: makes samples of the pairs that it is sent, and lays them beside the pairs.

Run as `python -m sa1bpack.packing.engines.worker SOCKET ARENA SLOTS`, the first two inherited
descriptors. A fresh interpreter rather than a fork: the parent has threads, and a fork copies their
locks. SIGINT and SIGTERM are blocked here: they are the parent's, which closes the socket.

Messages to the worker: first the PackOptions, then (number, slot, jpeg bytes, json bytes, file
name) for each job. From it: ("ready",), ("resolved", number, Outcome), ("failed", number, error).
The rows of a Packed are not in the message but in the slot. The end of the socket is the end of the
worker.
"""

import os
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

from sa1bpack.packing.engines.arena import Arena
from sa1bpack.packing.engines.work import attempt
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Packed, warm_up

# Jobs a worker is sent at once: one in work and one that follows.
JOBS_IN_HAND = 2


def main(descriptor: int, arena_descriptor: int, slots: int) -> None:
    """Serve one parent until it closes the socket."""
    parent = Connection(descriptor)
    try:
        options = parent.recv()
        _serve(parent, Arena(slots, options, arena_descriptor), options)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent has ended or is done with us: nothing here needs an orderly end


def _serve(parent: Connection, arena: Arena, options: PackOptions) -> None:
    warm_up(options)
    parent.send(("ready",))
    while True:
        number, slot, jpeg_bytes, json_bytes, file_name = parent.recv()
        pair = arena.pair(slot, jpeg_bytes, json_bytes)
        try:
            outcome = attempt(file_name, *pair, options, arena.buffers(slot))
            if isinstance(outcome, Packed):
                arena.lay(slot, outcome)
                outcome = replace(outcome, rows={})
        except (MemoryError, OSError) as error:  # not the sample's fault: the run ends
            if isinstance(error, MemoryError):
                error = MemoryError(f"{file_name}: {error}")
            parent.send(("failed", number, error))
        else:
            parent.send(("resolved", number, outcome))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
