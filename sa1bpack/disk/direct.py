"""Files read past the page cache: the choice to, opening, memory, and streams of whole files."""

import errno
import logging
import mmap
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sa1bpack.arguments import choice
from sa1bpack.environment import memory_bytes
from sa1bpack.errors import OptionError
from sa1bpack.paths import naming
from sa1bpack.threads import ThreadPool
from sa1bpack.wording import size_text

IO = ("auto", "cached", "direct")

# What takes no more than this part of the machine's memory is read into the page cache, where the
# next reader finds it; the rest is left to the training.
SHARE_OF_MEMORY = 0.5

# Offsets, lengths and addresses of direct reads and writes are multiples of this: the logical block
# of almost every disk is 512 or 4096 bytes.
BLOCK = 4096
HUGE_PAGE = 2 << 20  # of x86; larger ones of other processors are not used

_log = logging.getLogger("sa1bpack")
# File systems that a warning of this process has named.
warned: set[int] = set()


@dataclass(frozen=True)
class ReadingMode:
    """The mode of reading what is not in the page cache.

    Attributes:
        direct: read past the page cache, which stays as it is; otherwise into it.
        reason: why this mode was chosen, for users.
    """

    direct: bool
    reason: str

    def __str__(self) -> str:
        how = "past the page cache" if self.direct else "through the page cache"
        return f"read {how}: {self.reason}"


def choose_mode(
    io: str, nbytes: int, subject: str, obstacle: Callable[[], str | None]
) -> ReadingMode:
    """The mode for an option `io`.

    Args:
        io: "auto", "direct" or "cached".
        nbytes: bytes that will be read.
        subject: what is read, as a possessive: "the dataset's".
        obstacle: returns why it cannot be read past the page cache; None if it can.

    Raises:
        OptionError: an unknown option, or "direct" where that is not possible.
    """
    choice("io", io, IO)
    if io == "cached":
        return ReadingMode(False, "io='cached'")
    memory = memory_bytes()
    fits = nbytes <= SHARE_OF_MEMORY * memory
    reason = "io='direct'"
    if io == "auto":
        reason = (
            f"{subject} {size_text(nbytes)} {'fit in' if fits else 'exceed'} "
            f"{SHARE_OF_MEMORY:.0%} of {size_text(memory)} of memory"
        )
        if fits:
            return ReadingMode(False, reason)
    if (why_not := obstacle()) is None:
        return ReadingMode(True, reason)
    if io == "direct":
        raise OptionError(f"io='direct' is not possible: {why_not}; use io='cached'")
    return ReadingMode(False, why_not)


def direct_obstacle(path: Path) -> str | None:
    """The obstacle to reading a file past the page cache; None if there is none.

    Reads one block of it.
    """
    try:
        with os.fdopen(open_direct(str(path)), "rb", buffering=0) as file:
            file.readinto(aligned(BLOCK).data)
    except OSError as error:
        return f"{path} cannot be read with O_DIRECT ({error.strerror})"
    return None


# -------------------------------------------------------------------------------- opening, memory


def aligned(nbytes: int) -> np.ndarray:
    """New memory, uint8 (nbytes,), whose address is a multiple of BLOCK.

    From HUGE_PAGE bytes on, it begins with a huge page where the system has them: the disk is given
    a list of pages, and a list that is too long for it becomes several requests. Raises
    MemoryError.
    """
    if nbytes < HUGE_PAGE:
        return _cut(np.empty(nbytes + BLOCK, np.uint8), nbytes, BLOCK)
    _, memory = _mapped(nbytes)
    return memory


def unforked(nbytes: int) -> tuple[mmap.mmap, np.ndarray]:
    """Memory as `aligned` makes it, in a map of its own that forked children do not have.

    Otherwise a fork lets parent and child share its pages until one of them writes, who then gets
    others. A device that got the address before still reads the old ones; kernels from 5.9 on
    copy all that is pinned while they fork.

    In a child, nothing may touch the memory or end the map: its addresses may be those of something
    else there.

    Returns:
        The map, which ends when its last reference goes, and uint8 (nbytes,), which holds one.

    Raises:
        MemoryError: there is no memory, or the system cannot keep it from children.
    """
    region, memory = _mapped(nbytes)
    try:
        region.madvise(mmap.MADV_DONTFORK)
    except OSError as error:
        raise MemoryError(
            f"cannot keep {nbytes:,} bytes from forked processes: {error.strerror}"
        ) from error
    return region, memory


def _mapped(nbytes: int) -> tuple[mmap.mmap, np.ndarray]:
    """An anonymous map, and uint8 (nbytes,) in it. Raises MemoryError."""
    step = BLOCK if nbytes < HUGE_PAGE else HUGE_PAGE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        region = mmap.mmap(-1, nbytes + 2 * step, flags=flags)
    except OSError as error:
        raise MemoryError(f"cannot allocate {nbytes:,} bytes: {error.strerror}") from error
    if step == HUGE_PAGE:
        with suppress(OSError):  # a kernel without them
            region.madvise(mmap.MADV_HUGEPAGE)
    return region, _cut(np.frombuffer(region, np.uint8), nbytes, step)


def _cut(memory: np.ndarray, nbytes: int, step: int) -> np.ndarray:
    """The first `nbytes` from a multiple of `step` on."""
    start = -memory.__array_interface__["data"][0] % step
    return memory[start : start + nbytes]


def open_direct(path: str) -> int:
    """Open a file for reading past the page cache.

    Raises OSError; with EINVAL if its file system cannot do that.
    """
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


def open_to_read(path: str, direct: bool) -> tuple[int, bool]:
    """A descriptor of a file, and whether it is opened past the page cache.

    Args:
        path: path of the file.
        direct: open it past the page cache, if its file system can do that.

    Raises:
        OSError: it cannot be opened.
    """
    if direct:
        file = open_direct_if_possible(path)
        if file is not None:
            return file, True
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def read_direct(file: int, out: np.ndarray, position: int) -> int:
    """Read from a byte position of a file opened past the page cache into a flat uint8 array.

    Returns how many bytes were read: fewer than the array has if the file ends before. Raises
    OSError.
    """
    first = position // BLOCK * BLOCK
    nbytes = -(-(position + out.size) // BLOCK) * BLOCK - first
    before = position - first
    if nbytes == out.size and out.__array_interface__["data"][0] % BLOCK == 0:
        return _fill(file, out, first, BLOCK)
    blocks = aligned(nbytes)
    count = max(0, min(_fill(file, blocks, first, BLOCK) - before, out.size))
    out[:count] = blocks[before : before + count]
    return count


def _fill(file: int, memory: np.ndarray, position: int, step: int) -> int:
    """Read until the memory is full or the file ends, and return the bytes that were read.

    Args:
        file: descriptor of the file.
        memory: uint8 (n,) to read into.
        position: first byte in the file.
        step: BLOCK if the file is read past the page cache, 1 if not: a read that ends between two
            multiples of it has met the end of the file.
    """
    filled = 0
    while filled < memory.size:
        count = os.preadv(file, [memory[filled:].data], position + filled)
        filled += count
        if count == 0 or count % step:
            break
    return filled


# ------------------------------------------------------------------------ files read front to back

# Large enough that a disk is as fast as it can be, small enough for three streams of each process.
BLOCK_BYTES = 4 << 20


class FileStream:
    """One file, read from its start.

    While the caller uses one block, a thread of `helper` reads the next. It touches nothing but the
    file and memory of this stream, and `close` waits for it.
    """

    def __init__(self, path: str, nbytes: int, direct: bool, helper: ThreadPool):
        """Open the file.

        Args:
            path: path of the file.
            nbytes: length of the file in bytes, as far as the caller knows.
            direct: read past the page cache, if its file system can do that.
            helper: executor that reads ahead.

        Raises:
            OSError: the file cannot be opened.
        """
        self._path = path
        self._file, past_cache = open_to_read(path, direct)
        self._step = BLOCK if past_cache else 1
        self._block = min(BLOCK_BYTES, -(-max(nbytes, 1) // BLOCK) * BLOCK)
        self._memory = [aligned(self._block)]
        self._helper = None
        if nbytes > self._block:
            self._memory.append(aligned(self._block))
            self._helper = helper
        self._joined = np.empty(0, np.uint8)
        self._position = 0  # of the next block in the file
        self._data = self._memory[0][:0]
        self._used = 0
        self._ended = False
        self._next: Future[int] | None = None

    def read(self, nbytes: int) -> np.ndarray:
        """The next bytes, uint8 (nbytes,), or fewer if the file ends; valid until the next call.

        Raises OSError.
        """
        if self._joined.size < nbytes:
            self._joined = np.empty(nbytes, np.uint8)
        joined = 0
        while joined < nbytes and (self._used < self._data.size or self._advance()):
            piece = self._data[self._used : self._used + nbytes - joined]
            self._joined[joined : joined + piece.size] = piece
            self._used += piece.size
            joined += piece.size
        return self._joined[:joined]

    def _advance(self) -> bool:
        """Go to the next block; False at the end of the file."""
        if self._ended:
            return False
        count = self._read_block() if self._next is None else self._next.result()
        self._data = self._memory[0][:count]
        self._used = 0
        self._position += self._block
        self._ended = count < self._block
        if self._helper is not None and not self._ended:
            self._memory.reverse()
            self._next = self._helper.submit(self._read_block)
        return count > 0

    def _read_block(self) -> int:
        """Read the next block into the first memory; returns how many bytes there were."""
        with naming(self._path):
            return _fill(self._file, self._memory[0], self._position, self._step)

    def close(self) -> None:
        """Close the file."""
        if self._next is not None and not self._next.cancel():
            self._next.exception()  # waits
        os.close(self._file)
