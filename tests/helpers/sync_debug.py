"""Operations that wait for a device: collected on any, and errors on CUDA in one of its modes."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Within it, most operations that wait for the device raise; afterwards, none does.

    Setting the mode warns, the first time in a process, that it does not find all of them. That
    warning comes after the mode is set; as an error, it would leave it so.
    """
    try:
        _set("error")
        yield
    finally:
        _set("default")


def _set(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


class Waits(TorchDispatchMode):
    """Collects operations that would wait for a device, or for the host's memory."""

    def __init__(self):
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::").partition(".")[0]
        if name in ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "unique"):
            self.found.add(name)
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            self.found.add(name)
        if name in ("index", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.found.add(name)
        return func(*args, **kwargs)
