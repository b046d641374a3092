"""The working folder of one process among several, and those that killed processes left."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sa1bpack.format.files import TEMPORARY_PREFIX, make_folder
from sa1bpack.format.manifest import SHARDS_NAME
from sa1bpack.packing.parts.outcomes import PARTS_NAME

_LOCK_NAME = "lock"
_PREFIX = f"{TEMPORARY_PREFIX}part-"


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Only one part at a time is in such a block, which takes a moment. OUT/.parts must exist."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(root / PARTS_NAME / _LOCK_NAME, flags, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_empty_notes(root: Path) -> None:
    """Remove OUT/.parts if no part has left anything for `finalize`; no part runs now."""
    folder = root / PARTS_NAME
    if folder.is_dir() and all(p.name == _LOCK_NAME or p.is_dir() for p in folder.rglob("*")):
        shutil.rmtree(folder)


class PartFolder:
    """A working folder under shards/, which a process keeps as long as it holds a lock.

    folder
        Where complete shards wait to be moved to their final names, within one file system.
    notes
        A folder in OUT/.parts that stays: it has the lock, and takes the log of runs.

    The lock is on a file: NFS supports such locks between machines, but not those on folders. It
    decides only whether the folder is in use or abandoned.
    """

    def __init__(self, root: Path):
        """Create it, and remove what killed processes left. Raises OSError."""
        make_folder(root / SHARDS_NAME)
        _remove_abandoned(root)
        name = secrets.token_hex(8)
        self.notes = root / PARTS_NAME / name
        self.folder = root / SHARDS_NAME / (_PREFIX + name)
        make_folder(self.notes)
        self._lock = os.open(self.notes / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.folder.mkdir()  # only now: without a lock it would look abandoned
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the working folder, and what is empty of the other."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.notes / _LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):  # it holds a log
            self.notes.rmdir()
        os.close(self._lock)


def _remove_abandoned(root: Path) -> None:
    for folder in sorted((root / SHARDS_NAME).glob(_PREFIX + "*")):
        path = root / PARTS_NAME / folder.name.removeprefix(_PREFIX) / _LOCK_NAME
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # its owner removes it right now, or was killed doing so
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
