"""The page cache: what is in it, reading into it, dropping from it.

What reading needs is compiled, and runs without the GIL. Both answers of `in_memory` and
`map_in_memory` may be out of date as soon as they are given: ask once, and act on that answer.
"""

import ctypes
import functools
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from sa1bpack.disk.direct import BLOCK, HUGE_PAGE
from sa1bpack.kernels import external, njit, types
from sa1bpack.paths import naming

_word = types.uintp

_fadvise = external("posix_fadvise", types.intc(types.intc, types.int64, types.int64, types.intc))
_madvise = external("madvise", types.intc(_word, _word, types.intc))
_mincore = external("mincore", types.intc(_word, _word, _word))
_lseek = external("lseek", types.int64(types.intc, types.int64, types.intc))
_preadv2 = external("preadv2", types.intp(types.intc, _word, types.intc, types.int64, types.intc))
_getrusage = external("getrusage", types.intc(types.intc, _word))
_libc = ctypes.CDLL(None, use_errno=True)
_SEEK_END = 2
_RWF_NOWAIT = 8
_RUSAGE_THREAD = 1
_MAJOR_FAULTS = 9  # the word of `ru_majflt` in a `struct rusage`, which has 18
_WILL_NEED = 3  # of both kinds of advice
_POPULATE_WRITE = 23
# Of a longer span the system reads only the beginning: as much as the read-ahead of the disk, which
# is 128 kB unless someone raised it.
_READ_AHEAD = 1 << 17
_MOST_READ_AHEAD = 1 << 20  # more at a time is not faster
# Where the system says what the read-ahead of a file system is, in KiB, by its device number: of
# network file systems and disks; and of a disk, and of a partition of one.
READ_AHEAD_SETTINGS = (
    "/sys/class/bdi/{}/read_ahead_kb",
    "/sys/dev/block/{}/queue/read_ahead_kb",
    "/sys/dev/block/{}/../queue/read_ahead_kb",
)


@functools.cache
def read_ahead_bytes(device: int) -> int:
    """The bytes that the system reads ahead at a time of a file on a device, by its `st_dev`.

    From 128 KiB, also where it does not say, up to 1 MiB.
    """
    name = f"{os.major(device)}:{os.minor(device)}"
    for setting in READ_AHEAD_SETTINGS:
        with suppress(OSError, ValueError):
            kib = int(Path(setting.format(name)).read_text())
            return min(max(kib << 10, _READ_AHEAD), _MOST_READ_AHEAD)
    return _READ_AHEAD


@njit
def read_ahead(file: int, position: int, count: int, step: int) -> None:
    """Begin to read a span of a file into the page cache, `step` bytes by one call at most.

    See `read_ahead_bytes`.
    """
    for begin in range(position, position + count, step):
        _fadvise(file, begin, min(step, position + count - begin), _WILL_NEED)


@njit
def read_ahead_map(address: int, count: int) -> None:
    """Begin to read a span of a memory map into the page cache."""
    for begin in range(address // BLOCK * BLOCK, address + count, _READ_AHEAD):
        _madvise(begin, min(_READ_AHEAD, address + count - begin), _WILL_NEED)


@njit
def populate(address: int, count: int) -> None:
    """Fault in the pages of memory, as writing to them would do; what they hold stays.

    A system before Linux 5.14 does nothing here.
    """
    # In parts: other threads cannot map memory meanwhile.
    for begin in range(address // BLOCK * BLOCK, address + count, HUGE_PAGE):
        _madvise(begin, min(HUGE_PAGE, address + count - begin), _POPULATE_WRITE)


@njit
def in_memory(file: int, position: int, words: np.ndarray) -> bool:
    """True if the byte at this position of an open file can be had without waiting.

    A file that was cut short before it does not have it.

    Args:
        file: descriptor of the file.
        position: position in it.
        words: uint64 (3,), memory for the answer, whatever it holds.
    """
    words[0] = words.ctypes.data + 16
    words[1] = 1
    return _preadv2(file, words.ctypes.data, 1, position, _RWF_NOWAIT) == 1


@njit
def map_in_memory(address: int, file: int, position: int, words: np.ndarray) -> bool:
    """True if a byte of a memory map, at `position` of its file, is in memory; reads nothing.

    Of a file that was cut short, the rest of the last page is in memory, but zero.

    Args:
        address: address of the byte.
        file, position, words: as for `in_memory`.
    """
    words[0] = 0
    failed = _mincore(address // BLOCK * BLOCK, 1, words.ctypes.data)
    if failed or words[0] & 1 == 0:
        return False
    return file_bytes(file) > position


@njit
def file_bytes(file: int) -> int:
    """The bytes of an open file; -1 if that is unknown."""
    return _lseek(file, 0, _SEEK_END)


@njit
def major_faults(words: np.ndarray) -> int:
    """Page faults of this thread so far that waited for a disk.

    Args:
        words: uint64 (18,), memory for a `struct rusage`.
    """
    if _getrusage(_RUSAGE_THREAD, words.ctypes.data):
        return 0
    return int(words[_MAJOR_FAULTS])


def drop_pages(files: Iterable[Path]) -> None:
    """Drop the pages of files, except those that a process has mapped and used. Raises OSError."""
    for path in files:
        with path.open("rb") as file, naming(path):
            os.fdatasync(file.fileno())  # dirty pages are not dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_bytes(files: Iterable[Path]) -> int:
    """Bytes of files that are in the page cache, in whole pages. Raises OSError."""
    total = 0
    for path in files:
        if not (size := path.stat().st_size):
            continue
        pages = np.memmap(path, np.uint8, "r", shape=size)
        residency = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)  # a byte per page
        address = ctypes.c_void_p(pages.ctypes.data)
        length = ctypes.c_size_t(size)
        if _libc.mincore(address, length, ctypes.c_void_p(residency.ctypes.data)):
            raise OSError(ctypes.get_errno(), "mincore failed", str(path))
        total += int((residency & 1).sum()) * mmap.PAGESIZE
    return total
