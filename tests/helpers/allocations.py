"""The memory that torch operations take, counted as they make tensors: on meta tensors as well."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Peak(TorchDispatchMode):
    """Counts the bytes of the tensors that operations made and that live at once.

    Memory that an operation takes and returns within itself is not counted.

    now   the bytes of those that live
    most  the most bytes so far
    """

    def __init__(self):
        super().__init__()
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
        self._known[storage._cdata] = storage.nbytes()
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, key: int) -> None:
        self.now -= self._known.pop(key)
