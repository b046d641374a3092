"""Holes: parts of a file that read as zero and have no disk blocks."""

import ctypes
import os
from pathlib import Path

_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def punch(path: Path, low: int, high: int) -> None:
    """Make bytes `low` to `high` of a file a hole; its length stays.

    Raises OSError, with EOPNOTSUPP if the file system cannot do that, and AttributeError where the
    operating system cannot.
    """
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        if _libc.fallocate(file, _PUNCH_HOLE | _KEEP_SIZE, low, high - low):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(file)


_libc = ctypes.CDLL(None, use_errno=True)
if hasattr(_libc, "fallocate"):  # of Linux
    _libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
