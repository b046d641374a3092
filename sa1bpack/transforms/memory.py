"""Memory for results on a CPU, used again once nobody holds it.

New memory costs page faults, which for large arrays take longer than filling them. A tensor from
here keeps its memory for as long as it, or a view of it, lives; only then may another one have it.
"""

from collections import deque

import numpy as np
import torch

LEAST = 1 << 20  # bytes; the C library itself keeps smaller blocks for the next use
KEPT = 2  # unused blocks; a training loop holds one result while the next one is made


class Memory:
    """Lends memory to tensors, and takes it back when the last of them is gone.

    Without a lock: a deque is safe between threads, and in a forked child.
    """

    def __init__(self):
        self._free: deque[np.ndarray] = deque(maxlen=KEPT)

    @property
    def unused(self) -> int:
        """Blocks that no tensor has, at most KEPT."""
        return len(self._free)

    def __reduce__(self):
        return Memory, ()  # a copy starts without memory

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor with undefined contents."""
        count = int(np.prod(shape)) * dtype.itemsize
        if count < LEAST:
            return torch.empty(shape, dtype=dtype, device="cpu")
        data = torch.from_numpy(np.asarray(_Lent(self._block(count), count, self._free)))
        return data.view(dtype).view(shape)

    def _block(self, count: int) -> np.ndarray:
        """A block of at least `count` bytes. Blocks that are too small or far too large go."""
        while self._free:
            try:
                block = self._free.pop()  # the one used last
            except IndexError:  # another thread was faster
                break
            if count <= len(block) <= 2 * count:
                return block
        return np.empty(count, np.uint8)  # in large pages, where the system has them


class _Lent:
    """A block in use: the base of an array, and thus of all tensors that share its memory."""

    def __init__(self, block: np.ndarray, count: int, free: deque[np.ndarray]):
        self._block, self._free = block, free
        self.__array_interface__ = {**block[:count].__array_interface__}

    def __del__(self):
        self._free.append(self._block)
