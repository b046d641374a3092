"""Maps of arrays between pages that cannot be touched: reading outside of one ends the process.

In a process of its own::

    from guard_pages import guard_maps
    guard_maps("end")       every array ends right before a guard page
    guard_maps("start")     every array begins right after one

What the process reads outside of an array from then on is a SIGSEGV.
"""

import ctypes
import mmap

import numpy as np

from sa1bpack.format import arrays, files

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NONE = 0


def guarded(data: np.ndarray, side: str) -> np.ndarray:
    """A read-only copy of a uint8 (n,) array that ends, or begins, at a guard page.

    Args:
        side: "end": the byte after the last is in the guard page; "start": the byte before the
            first is.
    """
    page = mmap.PAGESIZE
    room = -(-data.nbytes // page) * page
    region = mmap.mmap(-1, room + page)
    start = room - data.nbytes if side == "end" else page
    view = np.frombuffer(region, np.uint8, data.nbytes, start)  # keeps the region
    view[:] = data
    base = np.frombuffer(region, np.uint8).__array_interface__["data"][0]
    guard = base + room if side == "end" else base
    if _libc.mprotect(guard, page, _NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    view.flags.writeable = False
    return view


def guard_maps(side: str) -> list[int]:
    """Let every array that is mapped from now on be between guards; for good.

    Returns a list that holds the number of arrays that were mapped so.
    """
    count = [0]
    real = files.map_bytes

    def map_bytes(path, nbytes):
        data = real(path, nbytes)
        if nbytes == 0:
            return data
        count[0] += 1
        return guarded(data, side)

    files.map_bytes = arrays.map_bytes = map_bytes
    return count
