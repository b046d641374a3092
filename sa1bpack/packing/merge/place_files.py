"""A folder under a second name: hard links, else clones that share blocks, else copies.

A hard link is the same file: it costs nothing, and nothing may ever write into it. No part of
sa1bpack does: a shard is never changed once it is published, and a repair puts another folder in
its place. A clone (a reflink) is a file of its own whose blocks are shared until one is written.
"""

import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sa1bpack.format.files import flush_file, flush_folder, naming, write_at

_FICLONE = 0x40049409  # of Linux, linux/fs.h
# What a file system answers that cannot link or clone, or not these two files.
_IMPOSSIBLE = (
    errno.EXDEV,
    errno.EPERM,
    errno.EMLINK,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.ENOTTY,
    errno.EINVAL,
)
_COPIED_BYTES = 8 << 20  # at a time

LINKED, CLONED, COPIED = "linked", "cloned", "copied"


def place_folder(
    source: Path, target: Path, copied: Callable[[int], object] = lambda count: None
) -> Counter:
    """Make a folder with the files and folders of another, flushed to disk.

    Symbolic links are followed: files become links to, or copies of, what they lead to.

    copied  called with the number of bytes, whenever some are copied

    Returns how many files were LINKED, CLONED and COPIED. Raises OSError.
    """
    counts: Counter = Counter()
    target.mkdir()
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            counts += place_folder(entry, target / entry.name, copied)
        else:
            counts[place_file(entry, target / entry.name, copied)] += 1
    flush_folder(target)
    return counts


def place_file(
    source: Path, target: Path, copied: Callable[[int], object] = lambda count: None
) -> str:
    """Make a file with the bytes of another; returns how. Raises OSError."""
    try:
        os.link(source, target, follow_symlinks=True)
        return LINKED
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
    read = os.open(source, os.O_RDONLY)
    try:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            how = CLONED
            if not _clone(read, write):
                how = COPIED
                _copy(read, write, source, target, copied)
            flush_file(write, target)
        finally:
            os.close(write)
    finally:
        os.close(read)
    return how


def _clone(read: int, write: int) -> bool:
    """Let one file share the blocks of another; False where that is not possible."""
    try:
        fcntl.ioctl(write, _FICLONE, read)
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
        return False
    return True


def _copy(
    read: int, write: int, source: Path, target: Path, copied: Callable[[int], object]
) -> None:
    """Copy a file, leaving out its holes."""
    with naming(source):
        size = os.fstat(read).st_size
    with naming(target):
        os.ftruncate(write, size)
    buffer, at = memoryview(bytearray(_COPIED_BYTES)), 0
    while at < size:
        at, end = _data(read, at, size)
        while at < end:
            with naming(source):
                count = os.preadv(read, [buffer[: min(end - at, _COPIED_BYTES)]], at)
            if not count:
                raise OSError(errno.EIO, f"it ends at byte {at}, but had {size}", str(source))
            write_at(write, buffer[:count], at, target)
            at += count
            copied(count)


def _data(fd: int, at: int, size: int) -> tuple[int, int]:
    """The next stretch of a file that is no hole."""
    try:
        first = os.lseek(fd, at, os.SEEK_DATA)
        return first, os.lseek(fd, first, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole up to the end
            return size, size
        if error.errno == errno.EINVAL:  # a file system that does not know its holes
            return at, size
        raise


def can_share(folder: Path, other: Path) -> bool:
    """Whether the files of a folder can be linked or cloned into another: then they take no space.

    Only the first that is found is tried. A folder without files takes no space either.
    """
    source = next((path for path in folder.rglob("*") if path.is_file()), None)
    if source is None:
        return True
    probe = other / f".tmp-probe-{os.getpid()}"
    try:
        return place_file(source, probe) != COPIED
    finally:
        with suppress(FileNotFoundError):
            probe.unlink()


def data_bytes(folder: Path) -> int:
    """What a copy of a folder's files writes: their bytes without their holes."""
    total = 0
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            size, at = os.fstat(file.fileno()).st_size, 0
            while at < size:
                first, at = _data(file.fileno(), at, size)
                total += at - first
    return total
