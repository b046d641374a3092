"""CUDA, by torch: the calls that loading and measuring make; and memory that devices copy from."""

import ctypes
import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from sa1bpack.disk.direct import unforked
from sa1bpack.finalizers import Living, when_gone
from sa1bpack.loading.numa import NearProcessors
from sa1bpack.wording import size_text

_log = logging.getLogger("sa1bpack")

_cuda: Any = torch.cuda  # its functions have no types

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
        return bool(_cuda._is_in_bad_fork())

    def in_use(self) -> bool:
        """True if this process uses CUDA."""
        return bool(_cuda.is_initialized())

    def current(self) -> int:
        """The current device."""
        return torch.cuda.current_device()

    def set_device(self, index: int) -> None:
        """Make a device the current one of this thread."""
        torch.cuda.set_device(index)

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

    def on(self, index: int) -> AbstractContextManager[Any]:
        """Make a device the current one; creates no context on the one before."""
        return torch.cuda.device(index)

    def capturing(self) -> bool:
        """True if the current stream of the current device captures a CUDA graph."""
        return bool(_cuda.is_current_stream_capturing())

    def pin(self, memory: np.ndarray) -> None:
        """Pin memory, uint8 (n,), for every device, until `unpin`. Raises RuntimeError.

        torch's own pinned memory is rounded up to a power of two, and kept when it is freed.
        """
        address = memory.__array_interface__["data"][0]
        cudart = _cuda.cudart()
        code = cudart.cudaHostRegister(address, len(memory), _PORTABLE)
        if code != cudart.cudaError.success:
            with suppress(RuntimeError):  # else the next kernel that anyone launches reports it
                torch.zeros(1, device="cuda")
            raise RuntimeError(f"CUDA error: {cudart.cudaGetErrorString(code)}")

    def unpin(self, address: int) -> None:
        """Unpin memory by its address, when nothing copies out of it any more.

        Raises RuntimeError if it stays pinned, as when a device has failed.
        """
        cudart = _cuda.cudart()
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
        return _cuda.Stream(index)

    def current_stream(self, index: int) -> Any:
        """The stream of a device that this thread queues operations on."""
        return torch.cuda.current_stream(index)

    def queuing_on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream and its device current, and the ones before afterwards."""
        context: AbstractContextManager[Any] = _cuda.stream(stream)
        return context

    def event(self) -> Any:
        """A new event: with `record(stream)`, and `synchronize()`.

        `synchronize` waits without the GIL and without a processor. `query` would hold the GIL,
        also while a full queue makes it wait.
        """
        return _cuda.Event(blocking=True)

    def send(self, data: torch.Tensor, to: torch.Tensor) -> None:
        """Queue a copy of pinned memory to a device on the current stream."""
        to.copy_(data, non_blocking=True)

    def reset_peak(self, device: str) -> None:
        """Begin to count the most memory that torch holds on a device; nothing on a CPU."""
        if torch.device(device).type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def peak(self, device: str) -> int:
        """The most bytes that torch held on a device since then; 0 on a CPU."""
        if torch.device(device).type != "cuda":
            return 0
        return int(_cuda.max_memory_allocated(device))

    def wait_for(self, device: str) -> None:
        """Wait until a device is done with all that this thread queued; nothing on a CPU."""
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    def pci_address(self, index: int) -> str:
        """The address of a device on the PCI bus, as "0000:1b:00.0"; "" if it is not known.

        The process must use CUDA already.
        """
        number = ctypes.c_int()
        text = ctypes.create_string_buffer(32)
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return ""
        if driver.cuDeviceGet(ctypes.byref(number), index) != 0:
            return ""
        if driver.cuDeviceGetPCIBusId(text, len(text), number) != 0:
            return ""
        return text.value.decode().lower()

    def index_of(self, device: str) -> int | None:
        """The index of a CUDA device by its name; None for a CPU."""
        named = torch.device(device)
        if named.type != "cuda":
            return None
        if named.index is None:
            return self.current()
        return named.index

    def name_of(self, device: str) -> str:
        """The name of a device, for people."""
        if torch.device(device).type != "cuda":
            return "cpu"
        return str(_cuda.get_device_name(device))

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


# ---------------------------------------------------------------------------------- pinned memory
# It is in no forked child. Each buffer has a map of its own. When its last array is gone, it waits
# for the copies out of it, is unpinned, and its map ends. Where the end of a copy cannot be seen,
# because a call fails, the memory stays pinned and mapped until the process ends: a copy that still
# ran would read what comes next at that address.

# Maps of all pinned memory of the process.
_maps = Living[mmap.mmap]()


@dataclass(eq=False)
class _Pinned:
    """What it takes to unpin memory when its arrays are gone.

    Attributes:
        process: the process that pinned it.
        cuda: the calls of CUDA.
        index: a device for which it was pinned.
        memory_map: the map that has the memory.
        address: address of the memory.
        nbytes: bytes that are pinned.
        streams: streams whose work may copy out of it.
    """

    process: int
    cuda: Any
    index: int
    memory_map: mmap.mmap
    address: int = 0
    nbytes: int = 0
    streams: list[Any] = field(default_factory=list)


def pinned_memory(
    nbytes: int, cuda: Any, index: int, near: NearProcessors
) -> tuple[np.ndarray, list[Any]]:
    """New pinned memory, whose address is a multiple of a disk's block.

    Args:
        nbytes: number of bytes.
        cuda: the calls of CUDA, a `CudaRuntime`.
        index: the current device, by index.
        near: the processors in whose memory it is to be.

    Returns:
        uint8 (nbytes,); and the streams of the last copy out of it, a list to be kept up to date.

    Raises:
        MemoryError: there is no memory.
        RuntimeError: it cannot be pinned.
    """
    memory_map, memory = unforked(nbytes)
    near.touch(memory)  # before it is pinned: pinned pages stay where they are
    cuda.pin(memory)
    _maps.add(memory_map)
    pinned = _Pinned(os.getpid(), cuda, index, memory_map)
    pinned.address = memory.__array_interface__["data"][0]
    pinned.nbytes = nbytes
    when_gone(memory, _release, pinned)
    return memory, pinned.streams


def _release(pinned: _Pinned) -> None:
    """Unpin memory and end its map, once no copy out of it is in progress.

    It waits for an event: in torch's sync-debug mode "error", `synchronize` of a stream raises
    before it waits. Any thread may do it at any time, also while one captures a CUDA graph.
    """
    if pinned.process != os.getpid():
        return  # the map is the parent's, see `keep_maps`
    try:
        with pinned.cuda.on(pinned.index), pinned.cuda.beside_captures():
            for stream in pinned.streams:
                event = pinned.cuda.event()
                event.record(stream)
                event.synchronize()
            pinned.cuda.unpin(pinned.address)
    except BaseException as error:  # an interrupt as well
        _keep(pinned.memory_map)
        if not isinstance(error, RuntimeError):
            raise
        _log.warning(
            "%s of pinned memory are kept until the process ends, because it cannot be seen "
            "whether a device still reads them: %s",
            size_text(pinned.nbytes),
            str(error).partition("\n")[0],
        )


def _keep(memory_map: mmap.mmap) -> None:
    """Never end a map, nor when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory_map))


def keep_maps() -> None:
    """Never end the maps that there are: in a forked child, and once a device has failed.

    A child does not have the memory, and at its addresses it may have something else by now, which
    the end of the map would take from it.
    """
    for memory_map in list(_maps):
        _keep(memory_map)


os.register_at_fork(after_in_child=keep_maps)
