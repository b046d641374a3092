"""A process of root that may do no more than its files' modes allow."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522  # of linux/capability.h
_Sets = ctypes.c_uint32 * 6  # (effective, permitted, inheritable), twice: 32 capabilities each


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def give_up_privileges() -> None:
    """Give up all capabilities, for good. Without it root writes whatever the modes say."""
    if os.getuid() == 0:
        _call("capset", _Sets())


@contextmanager
def without_privileges() -> Iterator[None]:
    """Do without capabilities in this thread, until the end of the block."""
    if os.getuid() != 0:
        yield
        return
    before, fewer = _Sets(), _Sets()
    _call("capget", before)
    fewer[1], fewer[4] = before[1], before[4]  # permitted, so that they can be had again
    _call("capset", fewer)
    try:
        yield
    finally:
        _call("capset", before)


def _call(name: str, sets: ctypes.Array) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(ctypes.byref(_Header(_VERSION_3, 0)), sets):
        raise OSError(ctypes.get_errno(), name)
