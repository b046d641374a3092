"""Files opened past the page cache, and memory that they can be read into or written from."""

import errno
import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

# Offsets, lengths and addresses of direct reads and writes are multiples of this: the logical block
# of almost every disk is 512 or 4096 bytes.
BLOCK = 4096
HUGE_PAGE = 2 << 20  # of x86; larger ones of other processors are not used

_log = logging.getLogger("sa1bpack")
# File systems that a warning of this process has named.
warned: set[int] = set()


def aligned(nbytes: int) -> np.ndarray:
    """New memory, uint8 (nbytes,), whose address is a multiple of BLOCK.

    From HUGE_PAGE bytes on, it begins with a huge page where the system has them: the disk is given
    a list of pages, and a list that is too long for it becomes several requests. Raises
    MemoryError.
    """
    if nbytes < HUGE_PAGE:
        data, step = np.empty(nbytes + BLOCK, np.uint8), BLOCK
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            memory = mmap.mmap(-1, nbytes + 2 * HUGE_PAGE, flags=flags)
        except OSError as error:
            raise MemoryError(f"cannot allocate {nbytes:,} bytes: {error.strerror}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        data, step = np.frombuffer(memory, np.uint8), HUGE_PAGE
    start = -data.__array_interface__["data"][0] % step
    return data[start : start + nbytes]


def open_direct(path: str) -> int:
    """Open a file for reading past the page cache.

    Raises OSError; with EINVAL if its file system or the operating system cannot do that.
    """
    if not hasattr(os, "O_DIRECT"):
        raise OSError(errno.EINVAL, "this operating system has no O_DIRECT", path)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)


def open_direct_if_possible(path: str) -> int | None:
    """As `open_direct`; None, with one warning per file system, if its file system cannot do that.

    Raises OSError if the file cannot be opened at all.
    """
    try:
        return open_direct(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    if (device := Path(path).stat().st_dev) not in warned:
        warned.add(device)
        _log.warning(
            "%s: its file system does not support O_DIRECT: files there are read through the page "
            "cache",
            path,
        )
    return None


def read_direct(file: int, out: np.ndarray, position: int) -> int:
    """Read from a byte position of a file opened past the page cache into a flat uint8 array.

    Returns how many bytes were read: fewer than the array has if the file ends before. Raises
    OSError.
    """
    first = position // BLOCK * BLOCK
    nbytes = -(-(position + out.size) // BLOCK) * BLOCK - first
    in_place = nbytes == out.size and out.__array_interface__["data"][0] % BLOCK == 0
    blocks = out if in_place else aligned(nbytes)
    done = 0
    while done < nbytes:
        count = os.preadv(file, [blocks[done:]], first + done)
        done += count
        if count == 0 or count % BLOCK:  # the end of the file
            break
    found = max(0, min(done - (position - first), out.size))
    if not in_place:
        out[:found] = blocks[position - first :][:found]
    return found
