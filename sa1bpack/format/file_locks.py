"""Locks of files, and file systems that have none."""

import errno
import fcntl
import logging
import os
import tempfile
from pathlib import Path

from sa1bpack.format.working_names import TEMPORARY_PREFIX
from sa1bpack.paths import exists

_log = logging.getLogger("sa1bpack")
# What flock(2) answers where the file system has no locks: ENOSYS by Lustre mounted without them,
# ENOLCK by NFS without a lock manager and by 9p, EBADF by EFS and some NFS servers, EOPNOTSUPP and
# EINVAL by file systems in user space. Other errors are those of a disk or a server that fails.
_NO_LOCKS = frozenset(
    {errno.ENOSYS, errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
)
# File systems without locks that a warning of this process has named, with what it said is lost.
told: set[tuple[int, str]] = set()


class NoFileLocks(OSError):
    """The file system of a file has no locks of files."""

    def __str__(self) -> str:
        return f"{self.filename}: its file system has no file locks (flock: {self.strerror})"


def lock_open_file(descriptor: int, kind: int, path: Path) -> None:
    """Lock an open file until it is closed or the process ends, however it ends.

    NFS supports locks of files between machines, but not locks of folders.

    Args:
        descriptor: descriptor of the file.
        kind: as in `fcntl.flock`.
        path: path of the file, for errors.

    Raises:
        BlockingIOError: another process has the lock, and `kind` says not to wait.
        NoFileLocks: its file system has no locks.
        OSError: locking fails.
    """
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno == errno.EACCES:  # as SMB says that another has it
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path)) from error
        if error.errno in _NO_LOCKS:
            raise NoFileLocks(error.errno, error.strerror, str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def locked(path: Path, kind: int = fcntl.LOCK_EX, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """The descriptor of a file, locked until it is closed or the process ends, however it ends.

    Args:
        path: path of the file.
        kind, flags: as in `fcntl.flock` and `os.open`.

    Raises:
        OSError: the file cannot be opened.
        Whatever `lock_open_file` raises.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        lock_open_file(descriptor, kind, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def try_locks(folder: Path) -> None:
    """Raise NoFileLocks if files in a folder cannot be locked, as tried with one without a name.

    Other errors are left to the command that makes or locks a file there.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX) as file:
            lock_open_file(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, folder)
    except NoFileLocks:
        raise
    except OSError:
        return


def go_on_unlocked(error: NoFileLocks, lost: str) -> None:
    """Say, once per file system, that work continues without locks, and what is lost."""
    folder = Path(error.filename)
    while not exists(folder):
        folder = folder.parent
    key = folder.stat().st_dev, lost
    if key not in told:
        told.add(key)
        _log.warning("%s; going on without: %s", error, lost)
