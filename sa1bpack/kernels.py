"""numba, for the modules that define kernels: they import it from here alone.

numba reads where to keep compiled kernels when it is imported, and checks the place when a kernel
is defined, so the place is chosen first. What needs no kernel imports neither this module nor
numba, and leaves the file system untouched.
"""

from sa1bpack.kernel_cache import ensure_kernel_cache, remove_outdated_kernels

ensure_kernel_cache()
remove_outdated_kernels()

from numba import njit, types  # noqa: E402
from numba.extending import intrinsic  # noqa: E402

__all__ = ["intrinsic", "memcpy", "memset", "njit", "types"]

_word = types.uintp
# Of the C library, on addresses.
memcpy = types.ExternalFunction("memcpy", _word(_word, _word, _word))
memset = types.ExternalFunction("memset", _word(_word, types.intc, _word))
