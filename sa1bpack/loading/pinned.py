"""Memory of this process that CUDA devices copy from: pinned, and in no forked child.

Each buffer has a map of its own. When its last array is gone, it waits for the copies out of it, is
unpinned, and its map ends. Where the end of a copy cannot be seen, because a call fails, the memory
stays pinned and mapped until the process ends: a copy that still ran would read what comes next at
that address.
"""

import ctypes
import logging
import mmap
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sa1bpack.disk.direct import unforked
from sa1bpack.finalizers import Living, when_gone
from sa1bpack.wording import size_text

_log = logging.getLogger("sa1bpack")

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


def pinned_memory(nbytes: int, cuda: Any, index: int) -> tuple[np.ndarray, list[Any]]:
    """New pinned memory, whose address is a multiple of a disk's block.

    Args:
        nbytes: number of bytes.
        cuda: the calls of CUDA, a `CudaRuntime`.
        index: the current device, by index.

    Returns:
        uint8 (nbytes,); and the streams of the last copy out of it, a list to be kept up to date.

    Raises:
        MemoryError: there is no memory.
        RuntimeError: it cannot be pinned.
    """
    memory_map, memory = unforked(nbytes)
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
