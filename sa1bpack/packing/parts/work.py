"""The working folder of one process among several, and those that killed processes left."""

import fcntl
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from sa1bpack.format.files import TEMPORARY_PREFIX, make_folder
from sa1bpack.format.manifest import SHARDS_NAME
from sa1bpack.packing.parts.outcomes import PARTS_NAME

_PREFIX = f"{TEMPORARY_PREFIX}part-"


class WorkFolder:
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
        self._lock = os.open(self.notes / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.folder.mkdir()  # only now: without a lock it would look abandoned
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the working folder, and what is empty of the other."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.notes / "lock").unlink(missing_ok=True)
        with suppress(OSError):  # it holds a log
            self.notes.rmdir()
        os.close(self._lock)


def _remove_abandoned(root: Path) -> None:
    for folder in sorted((root / SHARDS_NAME).glob(_PREFIX + "*")):
        path = root / PARTS_NAME / folder.name.removeprefix(_PREFIX) / "lock"
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
