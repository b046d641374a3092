"""Root without the capabilities that override the modes of files."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522  # of linux/capability.h
_Sets = ctypes.c_uint32 * 6  # (effective, permitted, inheritable), twice: 32 capabilities each


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def give_up_privileges() -> None:
    """Drop all capabilities permanently. With them, root can write whatever the modes are."""
    if os.getuid() == 0:
        _call("capset", _Sets())


@contextmanager
def without_privileges() -> Iterator[None]:
    """Drop the capabilities of this thread within the block."""
    if os.getuid() != 0:
        yield
        return
    before, fewer = _Sets(), _Sets()
    _call("capget", before)
    fewer[1], fewer[4] = before[1], before[4]  # permitted, so that they can be restored
    _call("capset", fewer)
    try:
        yield
    finally:
        _call("capset", before)


def _call(name: str, sets: ctypes.Array) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(ctypes.byref(_Header(_VERSION_3, 0)), sets):
        raise OSError(ctypes.get_errno(), name)
