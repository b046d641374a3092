"""The memory that torch operations take, counted as they make tensors: on meta tensors as well.

And the rule by which torch's allocator for CUDA takes it, of c10/cuda/CUDACachingAllocator.cpp:
sizes are multiples of 512 bytes (`round_size`); blocks of up to 1 MiB are cut to size; of a larger
one, up to 1 MiB that would be left is not cut off (`should_split`), and counts. New memory comes in
pieces (`get_allocation_size`).
"""

import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MIB = 1 << 20


def rounded(nbytes: int) -> int:
    """Bytes of a block, cut to size."""
    return -(-max(nbytes, 1) // 512) * 512


def cut(nbytes: int, free: int) -> int:
    """Bytes that count for a block made of `free` bytes, which suffice."""
    size = rounded(nbytes)
    return size if size <= MIB or free - size > MIB else free


def piece(nbytes: int) -> int:
    """Bytes of new memory for a block."""
    size = rounded(nbytes)
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


def most(nbytes: int) -> int:
    """The most that can count for a block."""
    return cut(nbytes, rounded(nbytes) + MIB)


class Peak(TorchDispatchMode):
    """Counts the bytes of the tensors that operations made and that live at once.

    Memory that an operation takes and returns within itself is not counted.

    Attributes:
        now: the bytes of those that live.
        most: the most bytes so far.
    """

    def __init__(self, size: Callable[[int], int] = int):
        """size: bytes of a tensor → what counts for it."""
        super().__init__()
        self.size = size
        self.most = self.now = 0
        self._known: dict[int, int] = {}  # by address of the storage: bytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if torch.is_tensor(tensor):
                self._note(tensor.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._known:
            return
        self._known[storage._cdata] = self.size(storage.nbytes())
        self.now += self._known[storage._cdata]
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, key: int) -> None:
        self.now -= self._known.pop(key)
