"""CUDA, by torch: the calls that loading and measuring make, and no others."""

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
import torch

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
