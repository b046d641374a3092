"""numba, for the modules that define kernels: they import it from here alone.

numba reads where to keep compiled kernels when it is imported, and checks the place when a kernel
is defined, so the place is chosen first. What needs no kernel imports neither this module nor
numba, and leaves the file system untouched.
"""

from sa1bpack.kernel_cache import digest_of_sources, ensure_kernel_cache

ensure_kernel_cache()

import numba  # noqa: E402
from numba import types  # noqa: E402
from numba.extending import intrinsic  # noqa: E402

__all__ = ["intrinsic", "memcpy", "memset", "njit", "types"]

_word = types.uintp
# Of the C library, on addresses.
memcpy = types.ExternalFunction("memcpy", _word(_word, _word, _word))
memset = types.ExternalFunction("memset", _word(_word, types.intc, _word))

_SOURCES = digest_of_sources()


def njit(**options):
    """`numba.njit`, whose compiled code is kept only as long as no module of the package changes.

    numba has no public way to say so; without `cache` there is no file.
    """

    def compiled(function):
        dispatcher = numba.njit(**options)(function)
        cache = getattr(dispatcher, "_cache", None)  # with NUMBA_DISABLE_JIT there is none
        if (file := getattr(cache, "_cache_file", None)) is not None:
            file._source_stamp = file._source_stamp, _SOURCES
        return dispatcher

    return compiled
