"""A worker process: decodes the pairs it is sent, and writes each where it is told.

Run as `python -m sa1bpack.packing.engines.worker SOCKET ARENA SLOTS`, the first two inherited
descriptors. A fresh interpreter rather than a fork: the parent may have threads, and a fork copies
their locks. SIGINT and SIGTERM are blocked here: they are the parent's, which closes the socket.

Messages to the worker: first the PackOptions, then ("job", number, slot, jpeg bytes, json bytes,
file name), ("write", number, folder, Extent) and ("drop", number). From it: ("ready",),
("resolved", number, Outcome), ("written", number), ("failed", number, error). A sample keeps its
buffers from its job to its write; the parent sends no more jobs than there are buffers. The end of
the socket is the end of the worker.
"""

import os
import sys
from collections import deque
from multiprocessing.connection import Connection

from sa1bpack.packing.engines.arena import Arena
from sa1bpack.packing.engines.work import RowWriter, attempt
from sa1bpack.packing.sample import Buffers, Packed, warm_up

# Jobs a worker holds at once: one in work, one that follows, one that waits for its turn to be
# written. Each has buffers of its own.
JOBS_IN_HAND = 3


def main(descriptor: int, arena_descriptor: int, slots: int) -> None:
    """Serve one parent until it closes the socket."""
    parent = Connection(descriptor)
    arena = Arena(slots, arena_descriptor)
    try:
        _serve(parent, arena)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent has ended or is done with us: nothing here needs an orderly end


def _serve(parent: Connection, arena: Arena) -> None:
    options = parent.recv()
    warm_up(options)
    writer = RowWriter(options.layout)
    free = [Buffers(options) for _ in range(JOBS_IN_HAND)]
    held: dict[int, tuple[Packed, Buffers]] = {}
    jobs: deque[tuple] = deque()
    parent.send(("ready",))
    while True:
        while not jobs or parent.poll():
            kind, number, *message = parent.recv()
            if kind == "job":
                jobs.append((number, *message))
                continue
            packed, buffers = held.pop(number)
            if kind == "write":
                try:
                    writer.write(packed, *message)
                except OSError as error:
                    parent.send(("failed", number, error))
                else:
                    parent.send(("written", number))
            free.append(buffers)
        number, slot, jpeg_bytes, json_bytes, file_name = jobs.popleft()
        buffers = free.pop()
        pair = arena.get(slot, jpeg_bytes, json_bytes)
        try:
            outcome, packed = attempt(file_name, *pair, options, buffers)
        except (MemoryError, OSError) as error:  # not the sample's fault: the run ends
            if isinstance(error, MemoryError):
                error = MemoryError(f"{file_name}: {error}")
            parent.send(("failed", number, error))
            free.append(buffers)
            continue
        if packed is None:
            free.append(buffers)
        else:
            held[number] = packed, buffers
        parent.send(("resolved", number, outcome))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
