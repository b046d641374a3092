"""A process of root that may do no more than its files' modes allow."""

import ctypes
import os

_VERSION_3 = 0x20080522  # of linux/capability.h, with two words a set


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def give_up_privileges() -> None:
    """Give up all capabilities, for good. Without it root writes whatever the modes say."""
    if os.getuid() != 0:
        return
    header, sets = _Header(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(header), sets):
        raise OSError(ctypes.get_errno(), "capset")
