"""The destinations of batches: the CPU, or a CUDA device, by a copy on a separate stream.

The Loader has one code path for both. Each has two methods: `allocate` makes memory for a buffer,
`deliver` the batch that the consumer gets. And, where `pinned`, three more: `enter_thread`, at the
beginning of a reader thread; `wait`, until the last copy out of a buffer is done; `stage`, to start
sending a filled buffer, without waiting for it.

`arrange` brings the arrays of a sent batch into the layout that the consumer requested.
`open_device` checks a name; `ChosenDevice` settles which device it is, and returns it in the thread
that begins an iteration.
"""

import atexit
import ctypes
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
import torch

from sa1bpack.disk.direct import BLOCK, aligned
from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.finalizers import Living
from sa1bpack.format.side.spec import SCALE_BYTES
from sa1bpack.loading.batch.spec import BatchSpec, Regions, split_regions
from sa1bpack.loading.batch_queue import Buffer, BufferPool, QueuedBatch
from sa1bpack.loading.located_batch import LocatedBatch
from sa1bpack.loading.pinned import keep_maps, pinned_memory
from sa1bpack.transforms.batch import Batch
from sa1bpack.transforms.host import SentNumbers
from sa1bpack.transforms.images.pixels import yuv420_to_rgb
from sa1bpack.transforms.masks.cells import unpack_bits
from sa1bpack.transforms.masks.run_batch import RunBatch
from sa1bpack.transforms.memory import allocated_bytes
from sa1bpack.wording import counted, size_text

_log = logging.getLogger("sa1bpack")
# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL and _RELAXED, of the CUDA driver API.
_THREAD_LOCAL = 1
_RELAXED = 2
_PORTABLE = 1  # cudaHostRegisterPortable


class CudaRuntime:
    """CUDA, by torch: the calls that loading and measuring make, and no others.

    Devices are given by their index; "current" is a property of each thread.

    Tests put a simulated device in the place of `CUDA`: streams that run late and in any order,
    events, several devices, allocations that fail. So what is decided here must be as little as
    possible.

    A CUDA context takes about half a GB of a device. The calls that create one on the *current*
    device, whatever they are about, are those of an event and leaving `queuing_on`.
    """

    def count(self) -> int:
        """The number of devices.

        torch asks NVML, where there is one, and then this does not begin to use CUDA: children that
        are forked later can still do so.
        """
        return torch.cuda.device_count()

    def used_before_fork(self) -> bool:
        """True if this process was forked from one that had used CUDA: then it cannot."""
        return torch.cuda._is_in_bad_fork()

    def in_use(self) -> bool:
        """True if this process uses CUDA."""
        return torch.cuda.is_initialized()

    def current(self) -> int:
        """The current device."""
        return torch.cuda.current_device()

    def enter_thread(self, index: int) -> None:
        """Begin a thread that works for one device: it is now the current one.

        A CUDA graph that another thread captures in the default mode is lost when any other thread
        queries an event or allocates memory, unless that thread leaves the check to itself, as
        torch's own background threads do.
        """
        torch.cuda.set_device(index)
        _exchange_capture_mode(_THREAD_LOCAL)

    @contextmanager
    def beside_captures(self) -> Iterator[None]:
        """Let calls of this thread disturb no capture of a CUDA graph, whichever thread captures.

        For work that may be done in any thread, such as that of objects that are gone. torch frees
        its own memory like this.
        """
        before = _exchange_capture_mode(_RELAXED)
        try:
            yield
        finally:
            _exchange_capture_mode(before)

    def on(self, index: int) -> AbstractContextManager:
        """Make a device the current one; creates no context on the one before."""
        return torch.cuda.device(index)

    def capturing(self) -> bool:
        """True if the current stream of the current device captures a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def pin(self, memory: np.ndarray) -> None:
        """Pin memory, uint8 (n,), for every device, until `unpin`. Raises RuntimeError.

        torch's own pinned memory is rounded up to a power of two, and kept when it is freed.
        """
        address = memory.__array_interface__["data"][0]
        cudart = torch.cuda.cudart()
        code = cudart.cudaHostRegister(address, len(memory), _PORTABLE)
        if code != cudart.cudaError.success:
            with suppress(RuntimeError):  # else the next kernel that anyone launches reports it
                torch.zeros(1, device="cuda")
            raise RuntimeError(f"CUDA error: {cudart.cudaGetErrorString(code)}")

    def unpin(self, address: int) -> None:
        """Unpin memory by its address, when nothing copies out of it any more.

        Raises RuntimeError if it stays pinned, as when a device has failed.
        """
        cudart = torch.cuda.cudart()
        code = cudart.cudaHostUnregister(address)
        if code != cudart.cudaError.success:
            raise RuntimeError(f"CUDA error: {cudart.cudaGetErrorString(code)}")

    def empty_pinned(self, nbytes: int) -> torch.Tensor:
        """torch's own pinned memory, uint8 (nbytes,). Raises RuntimeError."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def empty(self, nbytes: int, index: int) -> torch.Tensor:
        """Memory of a device, uint8 (nbytes,), not initialised, for its current stream.

        Once the tensor is gone, torch uses the memory again for later work of that stream, which
        runs after all earlier work of it. Raises torch.cuda.OutOfMemoryError.
        """
        return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", index))

    def stream(self, index: int) -> Any:
        """A new stream of a device: with `wait_event` and `synchronize`."""
        return torch.cuda.Stream(index)

    def current_stream(self, index: int) -> Any:
        """The stream of a device that this thread queues operations on."""
        return torch.cuda.current_stream(index)

    def queuing_on(self, stream: Any) -> AbstractContextManager:
        """Make a stream and its device current, and the ones before afterwards."""
        return torch.cuda.stream(stream)

    def event(self) -> Any:
        """A new event: with `record(stream)`, and `synchronize()`.

        `synchronize` waits without the GIL and without a processor. `query` would hold the GIL,
        also while a full queue makes it wait.
        """
        return torch.cuda.Event(blocking=True)

    def send(self, data: torch.Tensor, to: torch.Tensor) -> None:
        """Queue a copy of pinned memory to a device on the current stream."""
        to.copy_(data, non_blocking=True)

    def reset_peak(self, device: str) -> None:
        """Begin to count the most memory that torch holds on a device; nothing on a CPU."""
        if torch.device(device).type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def peak(self, device: str) -> int:
        """The most bytes that torch held on a device since then; 0 on a CPU."""
        found = torch.device(device)
        return torch.cuda.max_memory_allocated(found) if found.type == "cuda" else 0

    def wait_for(self, device: str) -> None:
        """Wait until a device is done with all that this thread queued; nothing on a CPU."""
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    def index_of(self, device: str) -> int | None:
        """The index of a CUDA device by its name; None for a CPU."""
        found = torch.device(device)
        if found.type != "cuda":
            return None
        return self.current() if found.index is None else found.index

    def name_of(self, device: str) -> str:
        """The name of a device, for people."""
        found = torch.device(device)
        return torch.cuda.get_device_name(found) if found.type == "cuda" else "cpu"

    def keep(self, data: torch.Tensor, stream: Any) -> None:
        """Let torch use the memory of a tensor again only after the work of a stream.

        That is all that is queued on the stream when the last reference to the tensor goes.
        """
        data.record_stream(stream)


def _exchange_capture_mode(mode: int) -> int:
    """Set which captures this thread's calls are checked against; returns the mode before."""
    if torch.version.cuda is None:  # HIP has no such check
        return mode
    exchanged = ctypes.c_int(mode)
    code = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(exchanged))
    if code:
        raise RuntimeError(f"cuThreadExchangeStreamCaptureMode returned CUDA error {code}")
    return exchanged.value


CUDA = CudaRuntime()


# --------------------------------------------------------------------------- tensors of a batch

Tensors = dict[str, torch.Tensor | RunBatch]

# Bytes per pixel that `arrange` takes at most to make RGB of planes: the result, and what is gone
# when it returns.
RGB_BYTES = 3
CONVERSION_BYTES = 33
_CONVERSION_TENSORS = 8  # that live at once
_SMALL_TENSORS = 64  # of at most 512 bytes, with numbers per sample or row


@lru_cache
def kind_of(dtype: np.dtype) -> torch.dtype:
    """The type of a tensor with the elements of an array of a batch."""
    if dtype == np.uint16:  # of features alone: numpy has no such type
        return torch.bfloat16
    return torch.from_numpy(np.empty(0, dtype)).dtype


def host_views(data: np.ndarray, regions: Regions) -> Tensors:
    """`batch_views` of a uint8 (n,) array.

    Without operations of torch: each releases the GIL, and waits for it while reader threads use
    it. For a batch of a few small samples that was a third of the time.
    """
    views = {}
    for key, region in regions.items():
        views[key] = torch.from_numpy(region.view(data))
        if region.dtype == np.uint16:  # bfloat16, see kind_of
            views[key] = views[key].view(torch.bfloat16)
    return views


def batch_views(data: torch.Tensor, regions: Regions, first: int = 0) -> Tensors:
    """The arrays of a batch as tensors that share the memory of one.

    The tensors are not views of one another: autograd, which follows changes of a tensor and of its
    views, does not take a change of one for a change of all. One operation of torch yields all that
    have one type, and another one the shape of each that has several axes.

    Args:
        data: contiguous, uint8 (n,).
        regions: regions of the batch, in ascending order.
        first: the byte of the batch that `data` begins with, a multiple of ALIGNMENT.
    """
    by_kind: dict[torch.dtype, list[str]] = {}
    for key, region in regions.items():
        by_kind.setdefault(kind_of(region.dtype), []).append(key)
    views: Tensors = dict.fromkeys(regions)
    for kind, keys in by_kind.items():
        elements = data if kind == torch.uint8 else data.view(kind)
        places, sizes = _cuts(regions, keys, first, len(elements), kind.itemsize)
        pieces = torch.unsafe_split_with_sizes(elements, sizes)
        for key, place in zip(keys, places, strict=True):
            shape = regions[key].shape
            views[key] = pieces[place] if len(shape) == 1 else pieces[place].view(shape)
    return views


def _cuts(
    regions: Regions, keys: list[str], first: int, total: int, itemsize: int
) -> tuple[list[int], list[int]]:
    """How memory is cut into the regions of some keys, and what lies between them.

    Args:
        regions: regions of the batch, in ascending order.
        keys: keys of those with this `itemsize`.
        first: byte of the batch that the memory begins with.
        total: elements of the memory.
        itemsize: bytes of an element.

    Returns:
        The number of each key's piece, and the elements of all pieces.
    """
    places = []
    sizes = []
    end = 0
    for key in keys:
        region = regions[key]
        start = (region.start - first) // itemsize
        if start > end:
            sizes.append(start - end)
        places.append(len(sizes))
        sizes.append(region.nbytes // itemsize)
        end = start + sizes[-1]
    sizes.append(total - end)
    return places, sizes


def split_span(regions: Regions, nbytes: int) -> tuple[Regions, Regions, slice, slice]:
    """`split_regions`, with the bytes of the buffer that hold the large ones as well."""
    large, small, span = split_regions(regions)
    first = min((region.start for region in large.values()), default=nbytes)
    return large, small, span, slice(first, nbytes)


def sent_bytes(spec: BatchSpec, samples: int, capacity: int, total: int, nbytes: int) -> int:
    """The most bytes that a batch takes on a device as it is sent.

    Args:
        spec: layout of the batches.
        samples, capacity, total: see `arranging_bytes`.
        nbytes: bytes of the batch in a buffer.
    """
    regions, _ = spec.regions(samples, capacity, total, 0)
    _, _, of_small, of_large = split_span(regions, nbytes)
    parts = (part.stop - part.start for part in (of_small, of_large))
    return sum(map(allocated_bytes, parts))


def arranging_bytes(spec: BatchSpec, samples: int, capacity: int, total: int) -> tuple[int, int]:
    """The most bytes that `arrange` adds to a batch on its device.

    Args:
        spec: layout of the batches.
        samples, capacity, total: b, M, T: samples, masks of the fullest sample, masks in all.

    Returns:
        Bytes in the batch that results, and bytes in addition until they return.
    """
    made = 0
    temporary = _SMALL_TENSORS * 512
    if spec.to_rgb:
        pixels = samples * spec.image.side**2
        made += allocated_bytes(RGB_BYTES * pixels)
        temporary += allocated_bytes(CONVERSION_BYTES * pixels, _CONVERSION_TENSORS)
    if spec.masks.source != "runs":
        rows = samples * capacity if spec.mask_layout.padded else total
        bits = allocated_bytes(rows * spec.mask_bytes) if spec.mask_layout.padded else 0
        if spec.mask_layout.packed:
            made += bits
        else:
            made = made + allocated_bytes(8 * rows * spec.mask_bytes)
            temporary = temporary + bits
    for floats, scales in float_bytes(spec, samples, capacity, total):
        made = made + allocated_bytes(floats)
        temporary = temporary + allocated_bytes(scales)
    return made, temporary


def float_bytes(spec: BatchSpec, samples: int, capacity: int, total: int) -> list[tuple[int, int]]:
    """Per feature that is stored with scales, the bytes of a batch's floats, and of its scales.

    `arrange` makes the floats. A CPU multiplies in float32, which takes twice the floats for a
    moment.
    """
    of_axis = {"sample": samples, "mask": samples * capacity if spec.mask_layout.padded else total}
    found = []
    for feature in spec.features:
        if feature.scaled:
            rows = of_axis[feature.axis]
            values = prod(feature.row_shape)
            nbytes = values * feature.row_dtype.itemsize
            found.append((rows * nbytes, rows * (feature.row_bytes - values)))
    return found


def arrange(batch: Tensors, spec: BatchSpec, located: LocatedBatch) -> Tensors:
    """Bring a sent batch into the layout that the consumer requested, on the batch's device."""
    if spec.to_rgb:
        batch["images"] = yuv420_to_rgb(batch["images"], batch["sizes"][:, 2:])
    if spec.masks.source == "runs":
        sizes = batch["sizes"][:, :2].long()
        ends = batch.pop("run_ends")
        offset = batch.pop("run_offset")
        known = torch.from_numpy(located.run_offset)
        batch["runs"] = RunBatch(ends, offset, batch["mask_offsets"], sizes, known)
        if spec.mask_layout.padded:
            del batch["mask_offsets"]
    elif spec.to_device:  # concatenated bits, uint8 (T, Sm, Sm / 8)
        masks = batch["masks"]
        if spec.mask_layout.padded:
            rows = masks.new_zeros((len(located) * located.capacity, *masks.shape[1:]))
            rows.index_copy_(0, batch.pop("mask_positions"), masks)
            masks = rows.view(len(located), located.capacity, *masks.shape[1:])
        batch["masks"] = masks if spec.mask_layout.packed else unpack_bits(masks)
    for feature in spec.features:
        if feature.scaled:
            batch[feature.name] = floats_on_device(batch[feature.name], feature.row_shape)
    if spec.relate is not None:
        batch |= spec.relate(batch, located.most)
    return batch


def floats_on_device(stored: torch.Tensor, row_shape: tuple[int, ...]) -> torch.Tensor:
    """`floats_of` on the device, of rows (B, ...), (T, ...) or (B, M, ...)."""
    # A clone: what is contiguous already, such as one row, may have odd strides.
    scale = stored[..., :SCALE_BYTES].clone(memory_format=torch.contiguous_format)
    values = stored[..., SCALE_BYTES:]
    rows = torch.empty(values.shape, dtype=torch.float16, device=stored.device)
    if stored.dtype == torch.uint8:  # each float8 is a float16
        values = rows.copy_(values.view(torch.float8_e4m3fn))
    torch.mul(values, scale.view(torch.float32), out=rows)
    channels = row_shape[:-1][:1]
    return rows.view(*values.shape[: values.ndim - 1 - len(channels)], *row_shape)


# ------------------------------------------------------------------------------------- devices


class LentBuffer:
    """The buffer of a batch on the CPU, for as long as any tensor of the batch lives."""

    def __init__(self, buffer: Buffer, nbytes: int, pool: BufferPool):
        self.__array_interface__ = buffer.bytes[:nbytes].__array_interface__
        pool.lend(buffer, self)


class Host:
    """The CPU: images, masks and runs stay in the buffer that they were copied to."""

    pinned = False
    device = torch.device("cpu")

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of ordinary memory."""
        return Buffer(aligned(nbytes))

    def deliver(self, batch: QueuedBatch, spec: BatchSpec, pool: BufferPool) -> Batch:
        """Tensors in the buffer's memory. When the last of them is gone, the buffer is released.

        The small ones are copies, so keeping the ids of a batch does not keep its pixels.
        """
        located = batch.located
        buffer = batch.buffer
        lent = np.asarray(LentBuffer(buffer, located.nbytes, pool))
        large, small, span = split_regions(located.regions)
        copied = buffer.bytes[span].copy()
        return Batch(arrange(host_views(lent, large) | host_views(copied, small), spec, located))


class CudaDevice:
    """A CUDA device: batches are copied from pinned buffers on a side stream."""

    pinned = True

    def __init__(self, index: int):
        self.device = torch.device("cuda", index)
        self._index = index
        self.stream = CUDA.stream(index)
        self._lock = threading.Lock()
        self._warned = False

    def enter_thread(self) -> None:
        """Make this device the thread's: on another one, its calls would create a context."""
        CUDA.enter_thread(self._index)

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of pinned memory, which is no longer pinned when its last reference goes.

        It is of torch's memory where CUDA cannot pin that of the process. Raises RuntimeError, and
        MemoryError.
        """
        with CUDA.on(self._index):
            try:
                memory, streams = pinned_memory(nbytes, CUDA, self._index)
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

    def stage(self, batch: QueuedBatch) -> None:
        """Start the copy of the complete batch.

        If the device has no memory for it, it stays in its buffer: the consumer may have freed some
        when it takes the batch.
        """
        with suppress(torch.cuda.OutOfMemoryError):
            self.send(batch)

    def send(self, batch: QueuedBatch) -> None:
        """Begin the copies of all bytes, after which the buffer's event is recorded.

        The large arrays and the small ones have memory of their own there.

        Raises torch.cuda.OutOfMemoryError.
        """
        located = batch.located
        buffer = batch.buffer
        large, small, of_small, of_large = split_span(located.regions, located.nbytes)
        with self._lock, CUDA.queuing_on(self.stream):
            numbers = self._empty(of_small)
            data = self._empty(of_large)
            event = CUDA.event()
            buffer.streams[:] = [self.stream]  # of another device in an earlier epoch
            try:
                for memory, part in ((numbers, of_small), (data, of_large)):
                    if len(memory):
                        CUDA.send(buffer.pinned[part], memory)
                event.record(self.stream)
            except BaseException:
                # A copy may be in progress whose end no event will show: the buffer gets new memory
                # before it is filled again. The old one is pinned until the stream is done.
                buffer.bytes = buffer.bytes[:0]
                buffer.pinned = None
                raise
        buffer.event = batch.event = event
        batch.small = buffer.bytes[of_small].copy()
        batch.memory = [memory for memory in (numbers, data) if len(memory)]
        batch.tensors = batch_views(data, large, of_large.start) | batch_views(numbers, small)

    def _empty(self, part: slice) -> torch.Tensor:
        """Memory of the device for a part of a buffer."""
        memory = CUDA.empty(part.stop - part.start, self._index)
        _memory.add(memory.untyped_storage())
        return memory

    def deliver(self, batch: QueuedBatch, spec: BatchSpec, pool: BufferPool) -> Batch:
        """Tensors on the device, for use on the consumer's current stream.

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
                return self._delivered(batch, spec, pool)
            except RuntimeError as error:
                if not lacks_memory(error):
                    raise
                reason = str(error)  # not its traceback, whose frames hold the buffer
        raise no_memory(self.device, batch.located.nbytes, reason)

    def _delivered(self, batch: QueuedBatch, spec: BatchSpec, pool: BufferPool) -> Batch:
        """`deliver`; raises torch.OutOfMemoryError."""
        if batch.tensors is None:  # there was no memory for it
            try:
                self.send(batch)
            finally:
                pool.release(batch.buffer)
        stream = CUDA.current_stream(self._index)
        stream.wait_event(batch.event)
        for memory in batch.memory:
            # Allocated on the side stream: it must not be used again before this one is done.
            CUDA.keep(memory, stream)
        _, small, _ = split_regions(batch.located.regions)
        made = Batch(arrange(batch.tensors, spec, batch.located))
        made.numbers = SentNumbers(made, partial(host_views, batch.small, small))
        return made


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


# By index. Kept with their streams: memory that was allocated for a stream is used again by it.
devices_in_use: dict[int, CudaDevice] = {}


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
    index = CUDA.current() if device.index is None else device.index
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
        self._maker = threading.get_ident()
        self._process = os.getpid()
        self._settled: int | None = None
        if not self._named and CUDA.in_use():
            self._settled = CUDA.current()

    def __str__(self) -> str:
        return str(self.asked) if self._settled is None else f"cuda:{self._settled}"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_maker": None, "_settled": None}

    def here(self) -> Host | CudaDevice:
        """The device for an iteration that this thread begins.

        Raises:
            LoaderError: it cannot be known which device is meant, because another one has become
                current since, or the thread is not the one that made the Loader; or as for
                `device_here`.
        """
        if self._named or CUDA.used_before_fork():
            return device_here(self.asked)
        elsewhere = self._maker not in (None, threading.get_ident())
        elsewhere = elsewhere and self._process == os.getpid()
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
        storage._fix_weakref()  # else it is not owned here once only torch holds the storage
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(storage))


os.register_at_fork(after_in_child=_keep_forever)


def keep_if_failed() -> None:
    """Keep that memory if a device has failed: from then on, all calls of CUDA fail.

    To be called before batches are freed: when an epoch ends, also by an error."""
    try:
        for index, device in list(devices_in_use.items()):
            with CUDA.on(index):  # an error of the device shows here, without a wait for it
                CUDA.event().record(device.stream)
    except RuntimeError:
        _keep_forever()
        keep_maps()


atexit.register(keep_if_failed)
