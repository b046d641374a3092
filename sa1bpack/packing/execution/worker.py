"""A worker process, and the memory that it shares with the one that reads and writes: it makes
samples of the pairs it is sent, and stores them beside the pairs.

Run as `python -m sa1bpack.packing.execution.worker SOCKET MEMORY COUNT`, the first two
inherited descriptors. A fresh interpreter rather than a fork: the parent has threads, and a fork
copies their locks. SIGINT and SIGTERM are blocked here: the parent handles them, and closes the
socket.

Messages to the worker: first the PackOptions, then (number, slot, jpeg bytes, json bytes, file
name) for each job. From it: ("ready",), ("resolved", number, Outcome), ("failed", number, error).
The rows of a Packed are in the slot, not in the message. The worker ends with the socket.
"""

import mmap
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np

from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import PackError
from sa1bpack.format.files import naming
from sa1bpack.format.layout import Extent, Layout
from sa1bpack.interrupts import SIGNALS
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import MAX_BITS, Buffers, Packed, attempt, most_image_bytes, warm_up
from sa1bpack.source.annotations import MAX_ANNOTATIONS
from sa1bpack.source.pairs import MAX_JPEG_BYTES, MAX_JSON_BYTES

# Memory is allocated a page at a time, when it is first written. What a slot holds beyond this
# (more than any pair of SA-1B needs) is returned.
KEPT_BYTES = 8 << 20
# The largest pair that a source lets through.
PAIR_BYTES = MAX_JPEG_BYTES + MAX_JSON_BYTES
# Offsets in a slot are rounded to this: for direct writes, and for memory that is returned.
PAGE = max(BLOCK, mmap.PAGESIZE)
# An annotation with all of its keys is longer, so JSON of n bytes has fewer than n / 100 masks; and
# every run of a mask takes at least one character.
LEAST_ANNOTATION_BYTES = 100


class SharedSlots:
    """Slots of shared memory, each with a pair at its start and the rows made of it after that.

    They lie in an unnamed file, which the kernel frees with the last process, however that ends.
    """

    def __init__(self, count: int, options: PackOptions, descriptor: int | None = None):
        """Make the slots, or map the one that another process made (`descriptor`)."""
        self.count = count
        self._options, self._layout = options, options.layout
        self._slot_bytes = PAIR_BYTES + self._most_row_bytes(MAX_JSON_BYTES)
        with naming(f"address space for {count} pairs at once"):
            if descriptor is None:
                descriptor = os.memfd_create("sa1bpack", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, count * self._slot_bytes)
            self._map = mmap.mmap(descriptor, count * self._slot_bytes)
        self.descriptor = descriptor
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._lengths = [(0, 0)] * count

    def put(self, slot: int, jpeg, json) -> None:
        """Copy a pair into a slot."""
        self._lengths[slot] = len(jpeg), len(json)
        targets = self.pair(slot, len(jpeg), len(json))
        for target, data in zip(targets, (jpeg, json), strict=True):
            target[:] = data

    def pair(self, slot: int, jpeg_bytes: int, json_bytes: int) -> tuple[memoryview, memoryview]:
        """The JPEG and the JSON in a slot, without a copy."""
        start = slot * self._slot_bytes
        both = memoryview(self._bytes[start : start + jpeg_bytes + json_bytes])
        return both[:jpeg_bytes], both[jpeg_bytes:]

    def buffers(self, slot: int) -> Buffers:
        """Memory for the large rows that are made of the pair in a slot."""
        area, bits = self._row_area(slot), _pages(most_image_bytes(self._layout))
        return Buffers(self._options, area[:bits], area[bits:])

    def store(self, slot: int, packed: Packed) -> None:
        """Copy the rows made of a slot's pair into the slot, except those made there."""
        for name, target in self.rows(slot, packed.extent).items():
            if target.ctypes.data != packed.rows[name].ctypes.data:
                target[...] = packed.rows[name]

    def rows(self, slot: int, extent: Extent) -> dict[str, np.ndarray]:
        """The rows in a slot of a sample of that extent, without a copy."""
        area, (offsets, _) = self._row_area(slot), _row_offsets(self._layout, extent)
        return {
            spec.name: np.ndarray(
                (extent.along(spec.axis), *spec.row_shape), spec.dtype, area, offsets[spec.name]
            )
            for spec in self._layout.arrays
        }

    def _row_area(self, slot: int) -> np.ndarray:
        start = slot * self._slot_bytes + PAIR_BYTES
        return self._bytes[start : (slot + 1) * self._slot_bytes]

    def _most_row_bytes(self, json_bytes: int) -> int:
        """Bytes that the rows of a record of so many bytes can take at most."""
        masks = min(json_bytes // LEAST_ANNOTATION_BYTES, MAX_ANNOTATIONS)
        if self._options.max_masks is not None:
            masks = min(masks, self._options.max_masks)
        if self._layout.bits:
            masks = min(masks, MAX_BITS // self._layout.array("mask_bits").row_bytes)
        return _row_offsets(self._layout, Extent(1, masks, json_bytes))[1]

    def free(self, slot: int) -> None:
        """Pair and rows are no longer needed; memory that only large ones need is returned."""
        jpeg_bytes, json_bytes = self._lengths[slot]
        pair, rows = slot * self._slot_bytes, slot * self._slot_bytes + PAIR_BYTES
        most = {pair: jpeg_bytes + json_bytes, rows: self._most_row_bytes(json_bytes)}
        for start, used in most.items():
            if used > KEPT_BYTES:
                self._map.madvise(mmap.MADV_REMOVE, start + KEPT_BYTES, _pages(used - KEPT_BYTES))

    def close(self) -> None:
        """Unmap the memory and close the file."""
        del self._bytes
        with suppress(BufferError):  # an error's traceback may hold rows, and then the map
            self._map.close()
        os.close(self.descriptor)


def _row_offsets(layout: Layout, extent: Extent) -> tuple[dict[str, int], int]:
    """Byte offset of each array's rows in a row area, and the end of the last, in full pages.

    The image has room for the largest one, and the bits follow, so that both begin with a page and
    can be written from there; then the others, at multiples of 64 bytes.
    """
    offsets, end = {"image": 0}, _pages(most_image_bytes(layout))
    for spec in sorted(layout.arrays, key=lambda spec: spec.name != "mask_bits"):
        if spec.name != "image":
            offsets[spec.name] = end
            end += -(-extent.along(spec.axis) * spec.row_bytes // 64) * 64
    return offsets, _pages(end)


def _pages(nbytes: int) -> int:
    """`nbytes`, rounded up to full pages."""
    return -(-nbytes // PAGE) * PAGE


# Libraries' own threads would only compete with the other workers.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


class WorkerProcess:
    """One worker process, which sends ("ready",) once it takes jobs.

    jobs
        Numbers of the jobs it holds, in the order sent; at most JOBS_PER_WORKER.
    """

    def __init__(self, options: PackOptions, shared_slots: SharedSlots):
        """Start it.

        SIGINT and SIGTERM are blocked meanwhile, which it inherits: terminals and job schedulers
        send them to every process of a run, and only the parent handles them. It closes the
        sockets, which ends the workers.
        """
        self.ready = False
        self.jobs: list[int] = []
        mine, its = socket.socketpair()
        self.connection = Connection(mine.detach())
        self._process = None
        try:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                with its:
                    files = its.fileno(), shared_slots.descriptor
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", __name__, *map(str, (*files, shared_slots.count))],
                        stdin=subprocess.DEVNULL,
                        pass_fds=files,
                        env={
                            **os.environ,
                            **_ONE_THREAD,
                            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                        },
                    )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.connection.send(options)
        except BaseException as error:  # Ctrl-C too, delivered once the process has started
            self.end(kill=True)
            if isinstance(error, OSError):
                raise PackError(f"a worker process could not be started: {error}") from error
            raise

    @property
    def capacity(self) -> int:
        """How many more jobs it may be sent."""
        return JOBS_PER_WORKER - len(self.jobs) if self.ready else 0

    def end(self, kill: bool = False) -> None:
        """Close the socket, which ends the process, and wait for it."""
        self.connection.close()
        if self._process is None:
            return
        if kill:
            self._process.kill()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def exit_text(self) -> tuple[str, bool]:
        """How a process that closed its socket ended; and whether SIGKILL did it, as no crash."""
        self.end()
        code = self._process.returncode
        if code >= 0:
            return f"ended with exit code {code}", False
        killed = code == -signal.SIGKILL
        hint = " (out of memory?)" if killed else ""
        return f"was killed by {signal.Signals(-code).name}{hint}", killed


# Jobs a worker holds: the one being decoded and the next.
JOBS_PER_WORKER = 2


def main(descriptor: int, slots_descriptor: int, count: int) -> None:
    """Serve one parent until it closes the socket."""
    parent = Connection(descriptor)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        options = parent.recv()
        shared_slots = SharedSlots(count, options, slots_descriptor)
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
    os._exit(0)  # the parent has ended or closed the socket: nothing here needs an orderly end


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
