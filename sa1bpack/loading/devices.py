"""Where batches go: the CPU, or a CUDA device, by a copy on a separate stream.

Both have the same seven members, so the Loader has one code path:

    enter_thread  at the beginning of a reader thread
    allocate      memory for a buffer
    grow          more memory for one, for a batch that is larger than expected
    wait          until the last copy out of a buffer is done
    stage         start sending a filled buffer, without waiting for it
    deliver       make the batch that the consumer gets
    frees         whether `stage` is the host's last use of a buffer

`open_device` returns a choice; `begin`, in the thread that begins an iteration, turns it into one
of them.
"""

import ctypes
import os
import threading
import time
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from sa1bpack.disk.direct import aligned
from sa1bpack.errors import LoaderError, LoaderTimeout, OptionError
from sa1bpack.loading.batch.spec import BatchSpec, split_regions
from sa1bpack.loading.batch_copy import BatchCopy
from sa1bpack.loading.batch_queue import Buffer, BufferPool
from sa1bpack.loading.cuda_runtime import CUDA
from sa1bpack.loading.finish import Batch, batch_views, finish, host_views
from sa1bpack.wording import size_text


class Lease:
    """The buffer of a batch on the CPU, for as long as any tensor of the batch lives."""

    _pid: int | None = None  # an interrupt may come before it is known

    def __init__(self, buffer: Buffer, nbytes: int, pool: BufferPool):
        self._buffer, self._pool, self._pid = buffer, pool, os.getpid()
        pool.lend(buffer)
        address = buffer.bytes.__array_interface__["data"][0]
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }

    def __del__(self):
        # In a forked child the pool belongs to the parent, and its lock may be held forever.
        if self._pid == os.getpid():
            self._pool.release(self._buffer)


class Host:
    """Images, masks and runs stay in the buffer that they were copied to, and share its memory."""

    pinned = False
    frees = False

    def __init__(self):
        self.device = torch.device("cpu")

    def begin(self) -> "Host":
        """This device, for an iteration."""
        return self

    def enter_thread(self) -> None:
        """Nothing: all threads are alike."""

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of ordinary memory."""
        return Buffer(aligned(nbytes))

    def grow(self, buffer: Buffer, nbytes: int) -> None:
        """Give more memory to an unused buffer. Batches that were lent keep the old memory."""
        buffer.bytes = self.allocate(nbytes).bytes

    def wait(self, buffer: Buffer, timeout: float) -> None:
        """Return at once: nothing copies out of the buffer."""

    def stage(self, buffer: Buffer, copy: BatchCopy) -> tuple[Buffer, BatchCopy]:
        """The batch is already where it will be used."""
        return buffer, copy

    def deliver(self, staged: tuple[Buffer, BatchCopy], spec: BatchSpec, pool: BufferPool) -> Batch:
        """Tensors in the buffer's memory. When the last of them is gone, the buffer is released.

        The small ones are copies, so keeping the ids of a batch does not keep its pixels.
        """
        buffer, copy = staged
        lent = np.asarray(Lease(buffer, copy.nbytes, pool))
        large, small, span = split_regions(copy.regions)
        copied = buffer.bytes[span].copy()
        return finish(host_views(lent, large) | host_views(copied, small), spec, copy)


class Cuda:
    """Batches are copied from pinned buffers on a side stream; masks are unpacked on the device."""

    pinned = True
    frees = True

    def __init__(self, index: int):
        self.device, self._index = torch.device("cuda", index), index
        self._stream = CUDA.stream(index)
        self._turn = threading.Lock()

    def enter_thread(self) -> None:
        """Make this device the thread's: on another one, its calls would create a context."""
        CUDA.enter_thread(self._index)

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of pinned memory."""
        with CUDA.on(self._index):
            pinned = CUDA.pinned(nbytes)
        _keep_in_children(pinned)
        return Buffer(pinned.numpy(), pinned)

    def grow(self, buffer: Buffer, nbytes: int) -> None:
        """Give more memory to a buffer that nothing copies out of."""
        larger = self.allocate(nbytes)
        buffer.bytes, buffer.pinned = larger.bytes, larger.pinned

    def wait(self, buffer: Buffer, timeout: float) -> None:
        """Wait for the last copy out of the buffer. Raises LoaderTimeout, naming the device."""
        if buffer.event is None:
            return
        limit = time.monotonic() + timeout
        while not buffer.event.query():
            if time.monotonic() > limit:
                raise LoaderTimeout(
                    f"a copy to {self.device} did not end within {timeout:g} s; the device hangs, "
                    "or another program keeps it busy"
                )
            time.sleep(20e-6)
        buffer.event = None

    def stage(self, buffer: Buffer, copy: BatchCopy) -> tuple[torch.Tensor, Any, BatchCopy]:
        """Start the single copy of the complete batch; the buffer's event is recorded after it.

        Raises LoaderError if the device has no memory for it.
        """
        with self._turn, CUDA.queuing_on(self._stream):
            data = self._empty(copy.nbytes)
            event = CUDA.event()
            try:
                CUDA.send(buffer.pinned[: copy.nbytes], data)
                event.record(self._stream)
            except BaseException:
                # A copy may be in progress whose end no event will show: the buffer gets new memory
                # before it is filled again. torch keeps the old one until the stream is done.
                buffer.bytes, buffer.pinned = buffer.bytes[:0], None
                raise
        buffer.event = event
        return data, event, copy

    def _empty(self, nbytes: int) -> torch.Tensor:
        try:
            data = CUDA.empty(nbytes, self._index)
        except torch.cuda.OutOfMemoryError as error:
            reason = str(error)  # not its traceback, whose frames hold the buffer
        else:
            _keep_in_children(data)
            return data
        raise LoaderError(
            f"{self.device} has no memory for a batch of {size_text(nbytes)}; lower batch_size, "
            f"max_masks or ahead, or keep fewer batches; loader.plan() shows what it takes: "
            f"{reason}"
        )

    def deliver(
        self, staged: tuple[torch.Tensor, Any, BatchCopy], spec: BatchSpec, pool: BufferPool
    ) -> Batch:
        """Tensors on the device, for use on the consumer's current stream.

        The small ones are copies, as on the CPU. Raises LoaderError while that stream is captured.
        """
        data, event, copy = staged
        with CUDA.on(self._index):
            if CUDA.capturing():
                raise LoaderError(
                    f"a batch cannot be taken while a CUDA graph is captured on {self.device}: "
                    "take it before, and copy it to the tensors that the graph reads"
                )
            stream = CUDA.current_stream(self._index)
            stream.wait_event(event)
            # Allocated on the side stream: its memory must not be reused before this one is done.
            CUDA.keep(data, stream)
            large, small, span = split_regions(copy.regions)
            views = batch_views(data, large) | batch_views(data[span].clone(), small)
            return finish(views, spec, copy)


class CudaChoice:
    """A CUDA device by its name.

    "cuda" is the current device of the thread that begins an iteration: where the Loader is made,
    it may not be set yet, and a Loader may be sent to processes with a device each.
    """

    pinned = True

    def __init__(self, device: torch.device):
        """Raises OptionError if there is no such device. Does not yet use CUDA itself."""
        count = CUDA.count()
        if not count:
            raise OptionError(
                f"device is {str(device)!r}, but torch {torch.__version__} finds no CUDA device; "
                "use device='cpu', or install a torch with CUDA for this driver"
            )
        if device.index is not None and device.index >= count:
            raise OptionError(f"device is {str(device)!r}, but there are {count} CUDA devices")
        self.device = device
        # By index: kept, because memory that was sent from one stream is used again by that stream.
        self._begun: dict[int, Cuda] = {}

    def __reduce__(self):
        return CudaChoice, (self.device,)

    def begin(self) -> Cuda:
        """The device for an iteration that this thread begins.

        Raises LoaderError in a forked child of a process that has used CUDA.
        """
        if CUDA.used_before_fork():
            raise LoaderError(
                f"device is {str(self.device)!r}, but this process was forked from one that had "
                "used CUDA before, and cannot use it: start processes with the 'spawn' method, or "
                "use device='cpu' here"
            )
        index = CUDA.current() if self.device.index is None else self.device.index
        if index not in self._begun:
            self._begun[index] = Cuda(index)
        return self._begun[index]


def open_device(name: str | torch.device) -> Host | CudaChoice:
    """The device of that name. Raises OptionError if it cannot be used."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise OptionError(f"device is {name!r}: choose 'cpu' or 'cuda' ({reason})") from None
    if device.type == "cpu":
        return Host()
    if device.type == "cuda":
        return CudaChoice(device)
    raise OptionError(
        f"device is {str(device)!r}: choose 'cpu' or 'cuda', and move the batches from there"
    )


# ----------------------------------------------------------------------------------------- forking
# To free pinned or sent memory, torch records events, which fails in a forked child, in a place
# where an error ends the process. So there it is never freed: its pages are shared with the parent.

# A plain weak reference does not own what it returns once only torch holds the storage.
_memory = WeakIdKeyDictionary()


def _keep_in_children(tensor: torch.Tensor) -> None:
    _memory[tensor.untyped_storage()] = None


def _keep_forever() -> None:
    for storage in list(_memory):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(storage))


os.register_at_fork(after_in_child=_keep_forever)
