"""The calls to CUDA that loading makes, and no others.

Tests put a simulated device in the place of `CUDA`: streams that run late and in any order, events,
several devices, allocations that fail. So what is decided here must be as little as possible.
"""

import ctypes
from contextlib import AbstractContextManager, suppress
from typing import Any

import numpy as np
import torch

# CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, of the CUDA driver API.
_THREAD_LOCAL = 1
_PORTABLE = 1  # cudaHostRegisterPortable


class CudaRuntime:
    """CUDA, by torch. Devices are given by their index; "current" is a property of each thread.

    A CUDA context takes about half a GB of a device. The calls that create one on the *current*
    device, whatever they are about, are those of an event and leaving `queuing_on`.
    """

    def count(self) -> int:
        """The number of devices. Where NVML answers, forked children can still use CUDA."""
        return torch.cuda.device_count()

    def used_before_fork(self) -> bool:
        """Whether this process was forked from one that had used CUDA: then it cannot."""
        return torch.cuda._is_in_bad_fork()

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
        if torch.version.cuda is not None:  # HIP has no such check
            mode = ctypes.c_int(_THREAD_LOCAL)
            code = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            if code:
                raise RuntimeError(f"cuThreadExchangeStreamCaptureMode returned CUDA error {code}")

    def on(self, index: int) -> AbstractContextManager:
        """Make a device the current one; creates no context on the one before."""
        return torch.cuda.device(index)

    def capturing(self) -> bool:
        """Whether the current stream of the current device captures a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()

    def pin(self, memory: np.ndarray) -> None:
        """Pin memory, uint8 (n,), for every device, until `unpin`. Raises RuntimeError.

        torch's own pinned memory is rounded up to a power of two, and kept when it is freed.
        """
        address, cudart = memory.__array_interface__["data"][0], torch.cuda.cudart()
        code = cudart.cudaHostRegister(address, len(memory), _PORTABLE)
        if code != cudart.cudaError.success:
            with suppress(RuntimeError):  # else the next kernel that anyone launches reports it
                torch.zeros(1, device="cuda")
            raise RuntimeError(f"CUDA error: {cudart.cudaGetErrorString(code)}")

    def unpin(self, address: int) -> None:
        """End that; nothing may copy out of the memory. A device that failed leaves it pinned."""
        torch.cuda.cudart().cudaHostUnregister(address)

    def empty(self, nbytes: int, index: int) -> torch.Tensor:
        """Memory of a device, uint8 (nbytes,): used again in the order of the stream that is
        current there. Raises torch.cuda.OutOfMemoryError."""
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
        """A new event: with `record(stream)`, and `synchronize()`, which waits without the GIL and
        without a processor. `query` would hold the GIL, also while a full queue makes it wait."""
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
        """Do not use the memory of a tensor again before a stream is done with what is queued on it
        when the last reference goes."""
        data.record_stream(stream)


CUDA = CudaRuntime()
