"""The destinations of batches: the CPU, or a CUDA device, by a copy on a separate stream.

`open_device` checks the name of one; `ChosenDevice` settles which one it is, and returns it in the
thread that begins an iteration.

The Loader has one code path for both. Each has three methods: `allocate` makes memory for a buffer,
`prepare` what can be made of a batch before it is filled, `deliver` the batch that the consumer
gets, or those that were joined to it. A CUDA device has four more: `enter_thread`, at the beginning
of a reader thread; `wait`, until the last copy out of a buffer is done; `stage`, to start sending a
filled buffer, without waiting for it; and `send`, which does that for one batch.
"""

import atexit
import ctypes
import logging
import os
import threading
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from sa1bpack.disk.direct import BLOCK, aligned
from sa1bpack.display import Batch
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.finalizers import Living
from sa1bpack.loading.batch.regions import Regions, split_span
from sa1bpack.loading.batch.spec import BatchSpec
from sa1bpack.loading.batch_queue import QueuedBatch, SentBatch
from sa1bpack.loading.buffer_pool import Buffer, BufferPool
from sa1bpack.loading.cuda import CUDA, keep_maps, pinned_memory
from sa1bpack.loading.located_batch import LocatedBatch
from sa1bpack.loading.numa import has_several_nodes, near_processors
from sa1bpack.loading.tensors import ALL_ROWS, arrange, batch_views, host_views, parts_of
from sa1bpack.transforms.host import SentNumbers
from sa1bpack.wording import counted, size_text

_log = logging.getLogger("sa1bpack")


class LentBuffer:
    """The memory of a batch on the CPU, lent for as long as any tensor that shares it lives.

    The small tensors do not: they have memory of their own.
    """

    def __init__(self, buffer: Buffer, nbytes: int, pool: BufferPool):
        self._memory = buffer.bytes  # the interface below does not keep it
        self.__array_interface__ = self._memory[:nbytes].__array_interface__
        pool.lend(buffer, self)


class Host:
    """The CPU: images, masks and runs stay in the buffer that they were copied to."""

    pinned = False
    device = torch.device("cpu")

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of ordinary memory."""
        return Buffer(aligned(nbytes))

    def prepare(self, located: LocatedBatch) -> None:
        """Make the small tensors, whose memory is filled later.

        Of several batches one after another, that takes a fraction of the time that it takes
        between the copies of two, which leave nothing in the processor's caches.
        """
        places = located.places
        memory = np.empty(places.small_bytes.stop, np.uint8)
        located.begin_small(memory)
        located.prepared = host_views(memory, places.small, located.parts())

    def deliver(
        self, batch: QueuedBatch, located: LocatedBatch, spec: BatchSpec, pool: BufferPool
    ) -> list[dict[str, Any]]:
        """Tensors in the buffer's memory. When the last of them is gone, the buffer is released.

        The small ones have memory of their own, so keeping the ids of a batch does not keep its
        pixels.

        Returns:
            The batch, or those that were joined to it, without those that have no samples.
        """
        buffer = batch.filled_buffer()
        lent = np.asarray(LentBuffer(buffer, located.nbytes, pool))
        parts = located.parts()
        large = host_views(lent, located.places.large, parts)
        batches = []
        for rows, of_large, of_small in zip(parts, large, located.prepared, strict=True):
            batches.append(arrange(of_large | of_small, spec, located, rows))
        return batches


class CudaDevice:
    """A CUDA device: batches are copied from pinned buffers on a side stream."""

    pinned = True

    def __init__(self, index: int):
        self.device = torch.device("cuda", index)
        self._index = index
        self.stream = CUDA.stream(index)
        self._near = near_processors(str(self.device), partial(CUDA.pci_address, index))
        self._lock = threading.Lock()
        self._warned = False

    def enter_thread(self) -> None:
        """Make this device the thread's, and the thread run near it.

        On another device, its calls would create a context.
        """
        CUDA.enter_thread(self._index)
        self._near.enter()

    def prepare(self, located: LocatedBatch) -> None:
        """Nothing: the small arrays are sent with the large ones, in one buffer."""

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of pinned memory, which is no longer pinned when its last reference goes.

        It is of torch's memory where CUDA cannot pin that of the process. Raises RuntimeError, and
        MemoryError.
        """
        with CUDA.on(self._index):
            try:
                memory, streams = pinned_memory(nbytes, CUDA, self._index, self._near)
                return Buffer(memory, torch.from_numpy(memory), streams=streams)
            except RuntimeError as error:
                if "out of memory" in str(error):
                    raise
                reason = str(error)
            pinned = CUDA.empty_pinned(nbytes + BLOCK)  # if the device has failed, this fails, too
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s cannot pin memory of this process (%s): a buffer is pinned memory of torch, "
                "which rounds it up to a power of two, and keeps it when the loader is closed",
                self.device,
                reason,
            )
        _memory.add(pinned.untyped_storage())
        pinned = pinned[-pinned.data_ptr() % BLOCK :][:nbytes]
        return Buffer(pinned.numpy(), pinned)

    def wait(self, buffer: Buffer) -> None:
        """Wait for the last copy out of the buffer.

        A device that hangs never ends that: then the consumer's wait for the batch ends by its
        timeout, and names what this thread does.
        """
        if buffer.event is not None:
            buffer.event.synchronize()
            buffer.event = None

    def stage(self, batch: QueuedBatch, located: LocatedBatch) -> None:
        """Start the copy of the complete batch.

        If the device has no memory for it, it stays in its buffer: the consumer may have freed some
        when it takes the batch.
        """
        with suppress(torch.cuda.OutOfMemoryError):
            batch.sent = self.send(batch.filled_buffer(), located)

    def send(self, buffer: Buffer, located: LocatedBatch) -> SentBatch:
        """Begin the copies of all bytes, after which the buffer's event is recorded.

        The large arrays and the small ones have memory of their own there.

        Raises torch.cuda.OutOfMemoryError.
        """
        large, small, of_small, of_large = split_span(located.places.regions)
        pinned = buffer.pinned
        assert pinned is not None, "buffers of a CUDA device are pinned"
        with self._lock, CUDA.queuing_on(self.stream):
            numbers = self._empty(of_small)
            data = self._empty(of_large)
            event = CUDA.event()
            buffer.streams[:] = [self.stream]  # of another device in an earlier epoch
            try:
                for memory, part in ((numbers, of_small), (data, of_large)):
                    if len(memory):
                        CUDA.send(pinned[part], memory)
                event.record(self.stream)
            except BaseException:
                # A copy may be in progress whose end no event will show: the buffer gets new memory
                # before it is filled again. The old one is pinned until the stream is done.
                buffer.bytes = buffer.bytes[:0]
                buffer.pinned = None
                raise
        buffer.event = event
        return SentBatch(
            tensors=batch_views(data, large, of_large.start) | batch_views(numbers, small),
            memory=[memory for memory in (numbers, data) if len(memory)],
            event=event,
            small=buffer.bytes[of_small].copy(),
        )

    def _empty(self, part: slice) -> torch.Tensor:
        """Memory of the device for a part of a buffer."""
        memory = CUDA.empty(part.stop - part.start, self._index)
        _memory.add(memory.untyped_storage())
        return memory

    def deliver(
        self, batch: QueuedBatch, located: LocatedBatch, spec: BatchSpec, pool: BufferPool
    ) -> list[Batch]:
        """Tensors on the device, for use on the consumer's current stream; see `Host.deliver`.

        The small ones have memory of their own, and the host knows what they are. In inference
        mode, too, they are tensors that can take part in training.

        Raises LoaderError while that stream is captured, or if the device has no memory for the
        batch or for what is made of it there.
        """
        with CUDA.on(self._index), torch.inference_mode(False):
            if CUDA.capturing():
                raise LoaderError(
                    f"a batch cannot be taken while a CUDA graph is captured on {self.device}: "
                    "take it before, and copy it to the tensors that the graph reads"
                )
            try:
                return self._delivered(batch, located, spec, pool)
            except RuntimeError as error:
                if not lacks_memory(error):
                    raise
                reason = str(error)  # not its traceback, whose frames hold the buffer
        raise no_memory(self.device, located.nbytes, reason)

    def _delivered(
        self, batch: QueuedBatch, located: LocatedBatch, spec: BatchSpec, pool: BufferPool
    ) -> list[Batch]:
        """`deliver`; raises torch.OutOfMemoryError."""
        sent = batch.sent
        if sent is None:  # there was no memory for it
            buffer = batch.filled_buffer()
            try:
                sent = self.send(buffer, located)
            finally:
                pool.release(buffer)
        stream = CUDA.current_stream(self._index)
        stream.wait_event(sent.event)
        for memory in sent.memory:
            # Allocated on the side stream: it must not be used again before this one is done.
            CUDA.keep(memory, stream)
        small = located.places.small
        spans = located.spans()
        parts = [sent.tensors]
        if not located.is_one:
            parts = parts_of(sent.tensors, spans)
        batches = []
        for views, (begin, end) in zip(parts, spans, strict=True):
            rows = slice(begin, end)
            if located.is_one:
                rows = ALL_ROWS
            delivered = Batch(arrange(views, spec, located, rows))
            copies = partial(_copies, sent.small, small, rows)
            delivered.numbers = SentNumbers(delivered, copies)
            batches.append(delivered)
        return batches


def _copies(small: np.ndarray, regions: Regions, rows: slice) -> dict[str, torch.Tensor]:
    """The small tensors of a batch on the host, some rows of each."""
    [copies] = host_views(small, regions, [rows])
    return copies


def no_memory(device: torch.device, nbytes: int, reason: str) -> LoaderError:
    """The error for a device that has no memory for a batch of so many bytes."""
    return LoaderError(
        f"{device} has no memory for a batch of {size_text(nbytes)}, or for what is made of it "
        "there; lower batch_size, max_masks or prefetch, or keep fewer batches; loader.plan() "
        "shows what it takes. The batch is not lost: loader.load_state_dict(loader.state_dict()) "
        f"makes the next iteration begin with it: {reason}"
    )


def lacks_memory(error: RuntimeError) -> bool:
    """True if an error of torch says that a device has no memory."""
    no_workspace = "CUBLAS_STATUS_ALLOC_FAILED" in str(error)
    return isinstance(error, torch.OutOfMemoryError) or no_workspace


# By index. Kept with their streams: memory that was allocated for a stream is used again by it.
devices_in_use: dict[int, CudaDevice] = {}


# ------------------------------------------------------------------------------ which device it is


def open_device(name: str | torch.device) -> torch.device:
    """The device of that name. Raises OptionError if it cannot be used; does not use CUDA yet."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise OptionError(
            f"device is {str(name)!r}: choose 'cpu' or 'cuda', and move the batches from there"
        )
    if device.type == "cuda" and (device.index or 0) >= (count := CUDA.count()):
        raise OptionError(
            f"device is {str(device)!r}, but torch {torch.__version__} finds "
            f"{counted(count, 'CUDA device')}; use device='cpu', or install a torch with CUDA for "
            "this driver"
        )
    return device


def device_here(device: torch.device) -> Host | CudaDevice:
    """The device for an iteration that this thread begins; "cuda" is the thread's current one.

    Raises LoaderError in a forked child of a process that has used CUDA.
    """
    if device.type == "cpu":
        return Host()
    if CUDA.used_before_fork():
        raise LoaderError(
            f"device is {str(device)!r}, but this process was forked from one that had "
            "used CUDA before, and cannot use it: start processes with the 'spawn' method, or "
            "use device='cpu' here"
        )
    index = device.index
    if index is None:
        index = CUDA.current()
    # Another thread may make it at the same time: then one of the two is used.
    return devices_in_use.setdefault(index, devices_in_use.get(index) or CudaDevice(index))


class ChosenDevice:
    """The device of a Loader, which is settled once in each process.

    "cuda" is the device that is current in the thread that makes the Loader. (In a new thread, that
    is the first one, whatever other threads have chosen.) Only if this process does not use CUDA
    yet, or gets the Loader from another one, is it settled when the first iteration begins: to ask
    would begin to use CUDA, and children could not be forked any more.

    Attributes:
        asked: the device, as it was named.
    """

    def __init__(self, name: str | torch.device):
        """Raises OptionError as `open_device`."""
        self.asked = open_device(name)
        self._named = self.asked.type == "cpu" or self.asked.index is not None
        self._maker: int | None = threading.get_ident()
        self._process = os.getpid()
        self._settled: int | None = None
        if not self._named and CUDA.in_use():
            self._settled = CUDA.current()

    def __str__(self) -> str:
        if self._settled is None:
            return str(self.asked)
        return f"cuda:{self._settled}"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_maker": None, "_settled": None}

    def near_text(self) -> str:
        """Where its threads and buffers are, for a plan; "" on a CPU, or with one NUMA node.

        Does not begin to use CUDA: before, which node it is cannot be known.
        """
        if self.asked.type == "cpu" or not has_several_nodes():
            return ""
        index = self._settled
        if self._named:
            index = self.asked.index
        if index is None or not CUDA.in_use():
            return "reader threads and buffers near the device, if its NUMA node is known"
        return near_processors(str(self), partial(CUDA.pci_address, index)).text

    def here(self) -> Host | CudaDevice:
        """The device for an iteration that this thread begins.

        Raises:
            LoaderError: it cannot be known which device is meant, because another one has become
                current since, or the thread is not the one that made the Loader; or as for
                `device_here`.
        """
        if self._named or CUDA.used_before_fork():
            return device_here(self.asked)
        elsewhere = False  # in the process that made the Loader, but in another thread
        if self._process == os.getpid():
            elsewhere = self._maker not in (None, threading.get_ident())
        remedy = (
            "call torch.cuda.set_device before the loader is made, or name the device, as "
            "device='cuda:1'"
        )
        if self._settled is None:
            if elsewhere and CUDA.count() > 1:
                raise LoaderError(
                    "device is 'cuda', but the loader was made in another thread, before CUDA was "
                    "used, and in a new thread cuda:0 is current whatever others have chosen: "
                    + remedy
                )
            self._settled = CUDA.current()
        elif not elsewhere and CUDA.current() != self._settled:
            raise LoaderError(
                f"device is 'cuda', which was cuda:{self._settled} before, but now "
                f"cuda:{CUDA.current()} is current: {remedy}"
            )
        return device_here(torch.device("cuda", self._settled))


# ------------------------------------------------------------------------- memory that is not freed
# To free memory that was sent, or that it pinned, torch records events, in a place where an error
# ends the process. That fails in a forked child, and after a kernel that failed, before its
# traceback is printed. There such memory is never freed.

_memory = Living[torch.UntypedStorage]()


def _keep_forever() -> None:
    devices_in_use.clear()
    for storage in list(_memory):
        # Else it is not owned here once only torch holds the storage.
        getattr(storage, "_fix_weakref")()  # noqa: B009 - torch does not declare it
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(storage))


os.register_at_fork(after_in_child=_keep_forever)


def keep_if_failed() -> None:
    """Keep that memory if a device has failed: from then on, all calls of CUDA fail.

    To be called before batches are freed: when an epoch ends, also by an error.
    """
    try:
        for index, device in list(devices_in_use.items()):
            with CUDA.on(index):  # an error of the device shows here, without a wait for it
                CUDA.event().record(device.stream)
    except RuntimeError:
        _keep_forever()
        keep_maps()


atexit.register(keep_if_failed)
