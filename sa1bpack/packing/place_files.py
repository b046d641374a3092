"""A folder under a second name: hard links, else clones that share blocks, else copies.

A hard link is the same file: it costs nothing, and nothing may ever write into it. No part of
sa1bpack does: a shard is never changed once it is published, and a repair puts another folder in
its place. A clone (a reflink) is a file of its own whose blocks are shared until one is written.
"""

import errno
import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
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


def publish_like(
    source: Path,
    working: Path,
    final: Path,
    copied: Callable[[int], object],
    check: Callable[[Path], object] = lambda folder: None,
) -> Counter:
    """Give a folder like another its final name, in one step, if `check` finds nothing wrong.

    working  the name that it has until then, in the same folder
    copied   called with the number of bytes, whenever some are copied

    Symbolic links are followed: files become links to, or copies of, what they lead to. Returns how
    many files were LINKED, CLONED and COPIED. Raises OSError, and what `check` raises.
    """
    try:
        counts = _place_folder(source, working, copied)
        check(working)
        working.rename(final)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise
    flush_folder(final.parent)
    return counts


def _place_folder(source: Path, target: Path, copied: Callable[[int], object]) -> Counter:
    counts: Counter = Counter()
    target.mkdir()
    for entry in sorted(source.iterdir()):
        if entry.is_dir():
            counts += _place_folder(entry, target / entry.name, copied)
        else:
            counts[place_file(entry, target / entry.name, copied)] += 1
    flush_folder(target)
    return counts


def place_file(
    source: Path, target: Path, copied: Callable[[int], object] = lambda count: None
) -> str:
    """Make a file with the bytes of another, flushed to disk; returns how. Raises OSError."""
    if _done(os.link, source, target, follow_symlinks=True):
        return LINKED
    with source.open("rb") as read, target.open("xb") as write:
        how = CLONED
        if not _done(fcntl.ioctl, write.fileno(), _FICLONE, read.fileno()):
            how = COPIED
            _copy(read.fileno(), write.fileno(), source, target, copied)
        flush_file(write.fileno(), target)
    return how


def _done(call: Callable, *arguments: object, **options: object) -> bool:
    """Make a call; False where the file system cannot do that. Raises any other OSError."""
    try:
        call(*arguments, **options)
    except OSError as error:
        if error.errno not in _IMPOSSIBLE:
            raise
        return False
    return True


def _copy(
    read: int, write: int, source: Path, target: Path, copied: Callable[[int], object]
) -> None:
    """Copy a file, leaving out its holes."""
    size = os.fstat(read).st_size
    with naming(target):
        os.ftruncate(write, size)
    for at, end in _stretches(read):
        while at < end:
            with naming(source):
                data = os.pread(read, min(end - at, _COPIED_BYTES), at)
            if not data:
                raise OSError(errno.EIO, f"it ends at byte {at}, but had {size}", str(source))
            write_at(write, data, at, target)
            at += len(data)
            copied(len(data))


def _stretches(fd: int) -> Iterator[tuple[int, int]]:
    """The stretches of a file that are no holes."""
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            first = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            raise
        at = os.lseek(fd, first, os.SEEK_HOLE)
        yield first, at


def data_bytes(folder: Path) -> int:
    """What the files of a folder take on the disk: their bytes without their holes."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
