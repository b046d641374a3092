"""A worker process: makes samples of the pairs it is sent, and stores them beside the pairs.

Run as `python -m sa1bpack.packing.execution.worker SOCKET MEMORY COUNT`, the first two
inherited descriptors. A fresh interpreter rather than a fork: the parent has threads, and a fork
copies their locks. SIGINT and SIGTERM are blocked here: the parent handles them, and closes the
socket.

Messages to the worker: first the PackOptions, then (number, slot, jpeg bytes, json bytes, file
name) for each job. From it: ("ready",), ("resolved", number, Outcome), ("failed", number, error).
The rows of a Packed are in the slot, not in the message. The worker ends with the socket.
"""

import os
import sys
from dataclasses import replace
from multiprocessing.connection import Connection

from sa1bpack.packing.execution.attempt import attempt
from sa1bpack.packing.execution.shared_slots import SharedSlots
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import Packed, warm_up

# Jobs a worker holds: the one being decoded and the next.
JOBS_PER_WORKER = 2


def main(descriptor: int, slots_descriptor: int, count: int) -> None:
    """Serve one parent until it closes the socket."""
    parent = Connection(descriptor)
    try:
        options = parent.recv()
        _serve(parent, SharedSlots(count, options, slots_descriptor), options)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(0)  # the parent has ended or closed the socket: nothing here needs an orderly end


def _serve(parent: Connection, shared_slots: SharedSlots, options: PackOptions) -> None:
    warm_up(options)
    parent.send(("ready",))
    while True:
        number, slot, jpeg_bytes, json_bytes, file_name = parent.recv()
        pair = shared_slots.pair(slot, jpeg_bytes, json_bytes)
        try:
            outcome = attempt(file_name, *pair, options, shared_slots.buffers(slot))
            if isinstance(outcome, Packed):
                shared_slots.store(slot, outcome)
                outcome = replace(outcome, rows={})
        except (MemoryError, OSError) as error:  # not the sample's fault: the run ends
            if isinstance(error, MemoryError):
                error = MemoryError(f"{file_name}: {error}")
            parent.send(("failed", number, error))
        else:
            parent.send(("resolved", number, outcome))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
