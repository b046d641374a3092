"""Which device a Loader sends its batches to: from a name to the device of an iteration.

`open_device` checks a name; `ChosenDevice` settles which device it is, and returns it in the thread
that begins an iteration.
"""

import os
import threading
from typing import Any

import torch

from sa1bpack.errors import LoaderError, OptionError
from sa1bpack.loading.cuda import CUDA
from sa1bpack.loading.devices import CudaDevice, Host, devices_in_use
from sa1bpack.wording import counted


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
