"""Memory of transforms: how much torch operations may take, results on a CPU, constants.

New memory costs page faults, which for large arrays take longer than filling them. A tensor from
here keeps its memory for as long as it, or a view of it, lives; only then may another one have it.
"""

from collections import deque
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from sa1bpack.finalizers import settle, when_gone

# On CUDA a chunk may take a quarter of the free memory instead: many small chunks are bound by the
# time to launch them.
CHUNK_BYTES = 1 << 28
CHUNK_SHARE = 4

# Of torch's allocator for CUDA (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize and kSmallSize).
_MULTIPLE = 512
_UNCUT = 1 << 20


def allocated_bytes(nbytes: int, tensors: int = 1) -> int:
    """The most that tensors of `nbytes` bytes in all take on CUDA, as torch counts its memory.

    torch's allocator rounds up to multiples of 512 bytes. For more than 1 MiB, it takes a free
    block as it is if cutting it to size would leave up to 1 MiB.
    """
    size = (-(-max(nbytes, 1) // _MULTIPLE) + tensors - 1) * _MULTIPLE
    large = min(tensors, (size - 1) // _UNCUT)
    return size + large * _UNCUT


def chunk_bytes(device: torch.device) -> int:
    """Bytes that the temporary arrays of a chunk may take on a device."""
    if device.type != "cuda":
        return CHUNK_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    # What torch has taken from the device and does not use is free as well.
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (free + unused) // CHUNK_SHARE


LEAST = 1 << 20  # bytes; the C library itself keeps smaller blocks for the next use
KEPT = 2  # unused blocks; a training loop holds one result while the next one is made


class Memory:
    """Memory that is lent to tensors, and taken back when the last of them is gone.

    Without a lock: a deque is safe between threads, and in a forked child.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque(maxlen=KEPT)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Memory, ()  # a copy starts without memory

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor with undefined contents."""
        count = int(np.prod(shape)) * dtype.itemsize
        if count < LEAST:
            return torch.empty(shape, dtype=dtype, device="cpu")
        if not self._free:
            settle()  # what is gone by now may be used again
        block = np.empty(0, np.uint8)
        with suppress(IndexError):
            block = self._free.pop()  # the one used last; too small or far too large, it goes
        if not count <= len(block) <= 2 * count:
            block = np.empty(count, np.uint8)  # in large pages, where the system has them
        used = block[:count]
        # Tensors and their views keep `used` alive, and nothing else does.
        when_gone(used, self._free.append, block)
        return torch.from_numpy(used).view(dtype).view(shape)


class Table:
    """A constant array, copied to each device the first time that it is used there.

    That copy waits for the device; later uses do not. Threads may share a table: it never moves
    from one device to another.
    """

    def __init__(self, values: np.ndarray):
        """
        Args:
            values: array of any dtype and shape; not to be changed afterwards.
        """
        self.values = values
        self._copies: dict[torch.device, Tensor] = {}

    def __reduce__(self) -> tuple[type, tuple[np.ndarray]]:
        return Table, (self.values,)  # a copy starts without tensors

    def on(self, device: torch.device) -> Tensor:
        """The array as a tensor on a device, not to be changed."""
        if device in self._copies:
            return self._copies[device]
        # A tensor that inference mode made could not take part in training later.
        with torch.inference_mode(False):
            copied = torch.tensor(self.values, device=device)
        return self._copies.setdefault(device, copied)
