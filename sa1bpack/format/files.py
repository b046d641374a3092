"""Files of a pack: read completely or with an error, written durably, and mapped.

Short reads and writes, and flushing, are handled here.
"""

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sa1bpack.errors import FormatError
from sa1bpack.paths import exists, naming

# All of SA-1B has 1 MB of manifest, and 100 kB of metadata per shard; a source of MAX_REJECTS
# rejects adds 40 MB. Hostile JSON takes 25 times its size in memory.
MAX_METADATA_BYTES = 1 << 28
REMEDY = "restore the file from a copy, or rebuild it with `sa1bpack repair PACK TARS`"
_MAP_FIXED = 0x10  # in the place of what is mapped there
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


def byte_view(array: np.ndarray) -> np.ndarray:
    """The bytes of a C-contiguous array as a flat uint8 view, without copying."""
    return array.reshape(-1).view(np.uint8)


def is_shortage(error: OSError) -> bool:
    """True if the system refused memory or an open file for lack of resources."""
    return error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def write_at(fd: int, data: bytes | memoryview | np.ndarray, offset: int, path: Path) -> None:
    """Write all of `data` at a byte offset; `path` is named in the OSError.

    The kernel may write less than asked (a signal, at most 2 GiB per call, a disk that fills up),
    so the rest is written until nothing is left.
    """
    view = memoryview(data)  # type: ignore[arg-type]  # arrays are buffers, as types say from 3.12
    with naming(path):
        while view.nbytes:
            count = os.pwrite(fd, view, offset)
            view = view[count:]
            offset = offset + count


def read_at(fd: int, out: np.ndarray, offset: int, path: Path | str) -> None:
    """Read from a byte offset until a flat uint8 array is full; `path` is named in errors.

    Raises FormatError if the file ends earlier, OSError if it cannot be read.
    """
    filled = 0
    with naming(path):
        while filled < out.size:
            count = os.preadv(fd, [out[filled:].data], offset + filled)
            if count == 0:
                raise cut_short(path, offset + filled, offset + out.size)
            filled += count


def cut_short(path: Path | str, end: int, needed: int) -> FormatError:
    """The error for a file that ends at a byte, but must have rows up to another."""
    return FormatError(
        f"{path}: cut short: it ends at byte {end}, but must have rows up to byte {needed}; "
        "restore it"
    )


def missing(path: Path) -> FormatError:
    """The error for a file of a pack that is missing, alone or with folders above it."""
    gone = path
    while not exists(gone.parent):
        gone = gone.parent
    extent = ""
    if gone != path:
        extent = f", with all of {gone} (if that was moved or is not mounted, open it where it is)"
    return FormatError(f"{path}: missing{extent}; {REMEDY}")


def open_file(path: Path) -> int:
    """A descriptor for reading a regular file; does not wait if it is a pipe.

    Raises FormatError if it is anything else, OSError if it cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with naming(path):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise FormatError(f"{path}: a folder, a pipe or a device, where a file must be; restore it")


def read_metadata_file(path: Path) -> bytes:
    """The bytes of a small file of a pack.

    Raises FormatError if it is not a regular file or larger than MAX_METADATA_BYTES (a hole of any
    size costs nothing on disk, but all of the memory), OSError if it cannot be read.
    """
    with naming(path), os.fdopen(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_METADATA_BYTES:
            raise FormatError(
                f"{path}: {size} bytes, but a file of its kind has at most "
                f"{MAX_METADATA_BYTES}; restore it"
            )
        return file.read()


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a file or a folder, closed at the end."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power failure."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd, naming(folder):
        os.fsync(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, so that they survive a power failure."""
    for path in (*reversed(folder.parents), folder):
        if not exists(path):
            path.mkdir(exist_ok=True)
            flush_folder(path.parent)


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and flush it to disk. Not atomic: for files of an unpublished folder."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_at(fd, data, 0, path)
        with naming(path):
            os.fsync(fd)


def map_bytes(path: Path, nbytes: int) -> np.ndarray:
    """The first `nbytes` bytes of a file as a (nbytes,) uint8 memory map, read-only.

    Unlike `np.memmap` it holds no file descriptor: all arrays of a thousand shards can be mapped
    under the usual limit of 1024 open files. The map is released with the last view of it.

    Raises FormatError if the file is shorter (touching a page past its end would kill the
    process), OSError if it cannot be opened or mapped.
    """
    if nbytes == 0:
        return np.frombuffer(b"", np.uint8)
    with opened(path, os.O_RDONLY) as fd, naming(path):
        size = os.fstat(fd).st_size
        if size < nbytes:
            raise FormatError(f"{path}: {size} bytes, but {nbytes} are to be mapped; restore it")
        # `mmap.mmap` of a file keeps a descriptor. This one has none, and the file is mapped in its
        # place: it is compiled code that unmaps it, so no interrupt can prevent that.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mapped = np.frombuffer(mmap.mmap(-1, nbytes, flags=flags, prot=mmap.PROT_READ), np.uint8)
        address = mapped.__array_interface__["data"][0]
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if _libc.mmap(address, nbytes, mmap.PROT_READ, flags, fd, 0) == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    return mapped
