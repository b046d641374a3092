"""A file that is written once, from its start to its end, and hashed on the way.

Where the file system can, the bytes go from memory to the disk and past the page cache (O_DIRECT):
a pack is larger than memory, so its pages would have to be found, filled, evicted and read back for
the digest, which costs more than everything else that writing does (docs/decisions/0007).
"""

import errno
import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.format.checksums import update_zeros
from sa1bpack.format.files import flush_file, naming, write_at

# What direct writes are aligned to, in memory and in the file: no disk asks for more.
BLOCK = 4096
# Less than this is gathered before it is written.
STAGE_BYTES = 64 * BLOCK
# Shorter runs of zeros are written: a hole costs a write of its own, and would save little.
HOLE_BYTES = 4 * BLOCK
# Without direct writes, the page cache lets go of the file's pages each time so many are written.
CACHED_BYTES = 256 << 20


def page_aligned(nbytes: int) -> np.ndarray:
    """(nbytes,) uint8 of zeros that begin at a page of memory, as direct writes need."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return np.frombuffer(mmap.mmap(-1, max(1, nbytes), flags=flags), np.uint8)[:nbytes]


class AppendFile:
    """A new file under `path`, and the running XXH3-128 of what was appended.

    Long appends that begin at a page of memory (`page_aligned`) and at a block of the file are
    written from where they lie; everything else is gathered first. For one thread at a time.
    Methods raise OSError, naming the file, if the disk fails.
    """

    def __init__(self, path: Path):
        """Make the file. Raises FileExistsError if it is there already."""
        self.path = path
        self._digest = xxhash.xxh3_128()
        self._stage = page_aligned(STAGE_BYTES)
        self._staged = 0  # bytes of it in use
        self._written = 0  # where it belongs in the file: the begin of a block, until the end
        self._cached = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._direct = _set_direct(self._fd, True)

    @property
    def nbytes(self) -> int:
        """Bytes appended so far."""
        return self._written + self._staged

    def append(self, data: np.ndarray) -> None:
        """Write (n,) uint8 behind what is there; the array may change once this returns."""
        self._digest.update(data)
        while data.size:
            blocks = data.size - data.size % BLOCK
            if self._staged == 0 and blocks >= STAGE_BYTES and data.ctypes.data % BLOCK == 0:
                self._write(data[:blocks])
                data = data[blocks:]
                continue
            taken = min(STAGE_BYTES - self._staged, data.size)
            self._stage[self._staged : self._staged + taken] = data[:taken]
            self._fill(taken)
            data = data[taken:]

    def skip(self, count: int) -> None:
        """Append zeros; long runs of them become a hole."""
        update_zeros(self._digest, count)
        if count >= HOLE_BYTES:
            count -= self._stage_zeros(-self._staged % BLOCK)
            self._write(self._stage[: self._staged])
            self._staged = 0
            self._written += count - count % BLOCK
            count %= BLOCK
        while count:
            count -= self._stage_zeros(min(STAGE_BYTES - self._staged, count))

    def _stage_zeros(self, count: int) -> int:
        self._stage[self._staged : self._staged + count] = 0
        self._fill(count)
        return count

    def _fill(self, count: int) -> None:
        """Take `count` more bytes of the stage as filled, and write it when it is full."""
        self._staged += count
        if self._staged == STAGE_BYTES:
            self._write(self._stage)
            self._staged = 0

    def _write(self, data: np.ndarray) -> None:
        try:
            write_at(self._fd, data, self._written, self.path)
        except OSError as error:
            # A disk of larger blocks, or a write that ended within one.
            if error.errno != errno.EINVAL or not self._direct:
                raise
            self._direct = _set_direct(self._fd, False)
            write_at(self._fd, data, self._written, self.path)
        self._written += data.size
        if not self._direct:
            self._let_go(data.size)

    def _let_go(self, nbytes: int) -> None:
        """Have the page cache flush and forget the file's pages, when there are many."""
        self._cached += nbytes
        if self._cached >= CACHED_BYTES and hasattr(os, "posix_fadvise"):  # not on macOS
            self._cached = 0
            with naming(self.path):
                os.fdatasync(self._fd)
                os.posix_fadvise(self._fd, 0, self._written, os.POSIX_FADV_DONTNEED)

    def finish(self) -> str:
        """Write and flush what is left; returns the digest in 32 hexadecimal digits."""
        if self._staged:
            if self._direct:  # the end of a file need not be the end of a block
                self._direct = _set_direct(self._fd, False)
            self._write(self._stage[: self._staged])
            self._staged = 0
        with naming(self.path):
            os.ftruncate(self._fd, self._written)  # it may end in a hole
        flush_file(self._fd, self.path)
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1  # closed, whatever close says
            os.close(fd)


def _set_direct(fd: int, on: bool) -> bool:
    """Turn direct writes on or off; returns whether they are on, which is the file system's say."""
    flag = getattr(os, "O_DIRECT", 0)  # 0 on macOS
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~flag
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | flag if on else flags)
    except OSError:
        return False
    return on and flag != 0
