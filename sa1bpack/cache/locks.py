"""Locks on numbered bytes of a file: shared between processes, and released when one is killed.

They are open file description locks (fcntl(2), F_OFD_SETLK): unlike POSIX record locks they belong
to the descriptor, so two objects of one process exclude each other as two processes do, and closing
another descriptor of the file releases nothing.
"""

import errno
import fcntl
import os
import struct
import time
from pathlib import Path

from sa1bpack.errors import StoreError

# struct flock of Linux on 64-bit machines: type, whence, start, length, pid.
_FLOCK = struct.Struct("hh4xqqi4x")

# Waits between two tries, in seconds: most locks are held for as long as a request takes.
_SHORTEST_WAIT, _LONGEST_WAIT = 0.001, 0.05

# A process that holds a lock for longer than this was stopped: requests give up before.
PATIENCE = 300.0


class ByteLocks:
    """Locks on bytes of one file, all of one owner. The methods may be called by any thread."""

    def __init__(self, path: Path):
        """Open the file, or create it. Raises OSError."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def __del__(self, close=os.close):  # bound: at interpreter exit `os` may be gone
        close(self._file)

    @property
    def is_there(self) -> bool:
        """Whether the file still has its name."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def after_fork(self) -> None:
        """In a child: the locks remain the parent's, and this owner has none."""
        inherited, self._file = self._file, os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        os.close(inherited)

    def acquire(self, at: int, exclusive: bool) -> bool:
        """Lock byte `at`, or change the lock on it, in one step. False if another owner has it."""
        try:
            self._set(fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, at)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        return True

    def wait(self, at: int, exclusive: bool, purpose: str) -> None:
        """Lock byte `at` as soon as others release it.

        purpose  what it is for, for the message

        Raises StoreError after PATIENCE seconds.
        """
        limit, pause = time.monotonic() + PATIENCE, _SHORTEST_WAIT
        while not self.acquire(at, exclusive):
            if time.monotonic() > limit:
                raise StoreError(
                    f"{self.path}: another process has held the lock to {purpose} for "
                    f"{PATIENCE:.0f} s; was it stopped? End it, and the system releases the lock"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_WAIT)

    def release(self, at: int) -> None:
        """Unlock byte `at`, whether it is locked or not."""
        self._set(fcntl.F_UNLCK, at)

    def _set(self, kind: int, at: int) -> None:
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, at, 1, 0))
