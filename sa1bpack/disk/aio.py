"""Many reads at once, past the page cache: the system calls of Linux AIO.

A file opened with O_DIRECT is read by the device straight into the memory of the caller: the
processor copies nothing, and the page cache stays as it is. `read_all` submits up to DEPTH requests
at a time and waits for all of them, so many are in flight without many threads or cores.

Linux AIO and not io_uring, which many containers forbid and which is no faster for requests of this
size (docs/decisions/0008-direct-reading.md).
"""

import errno as errno_numbers
import os
import platform
from pathlib import Path

import numpy as np

from sa1bpack.disk.direct import BLOCK
from sa1bpack.errors import ResourceShortage
from sa1bpack.kernels import memcpy, njit, types

# Requests in flight per context. The system allows fs.aio-max-nr (65,536) in all contexts.
DEPTH = 64

# Values of `status` besides 0 and errno.
CUT_SHORT = -1

# Columns of a request.
FILE, POSITION, COUNT, ADDRESS, NEEDED = range(5)
REQUEST_COLUMNS = 5

# io_setup, io_destroy, io_submit, io_getevents; by the kernel's tables of system calls.
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}
_SETUP, _DESTROY, _SUBMIT, GET_EVENTS = _NUMBERS.get(platform.machine(), (0, 0, 0, 0))

EINTR = 4
EBADF = 9
_EAGAIN = 11
_EIO = 5
# A read transfers at most 2 GiB - 4 KiB.
MAX_READ_BYTES = 1 << 30

_word = types.uintp
_syscall = types.ExternalFunction(
    "syscall", types.intp(types.intp, _word, _word, _word, _word, _word)
)
_errno_at = types.ExternalFunction("__errno_location", _word())


@njit
def errno():
    """The error number of this thread's last system call."""
    code = np.empty(1, np.int32)
    memcpy(code.ctypes.data, _errno_at(), 4)
    return np.int64(code[0])


@njit
def set_up(depth):
    """A new context, or -errno."""
    context = np.zeros(1, np.int64)
    if _syscall(_SETUP, depth, context.ctypes.data, 0, 0, 0) < 0:
        return -errno()
    return context[0]


@njit
def _destroy(context):
    _syscall(_DESTROY, context, 0, 0, 0, 0)


@njit
def fill_block(blocks, requests, k):
    """Make the control block of request k, int64 (8,): struct iocb of linux/aio_abi.h."""
    for n in range(8):
        blocks[k, n] = 0
    blocks[k, 0] = k
    blocks[k, 2] = requests[k, FILE] << 32  # the operation, in the low half, is PREAD: 0
    blocks[k, 3] = requests[k, ADDRESS]
    blocks[k, 4] = min(requests[k, COUNT], MAX_READ_BYTES)
    blocks[k, 5] = requests[k, POSITION]


@njit
def read_all(context, requests, count, status):
    """Read the first `count` requests, at most DEPTH at a time.

    Args:
        context: `value` of a `Context`; no other thread may use it meanwhile.
        requests: int64 (n, 5), overwritten: an open file, the first byte, the number of bytes, and
            the address that they go to, all but the file multiples of BLOCK; and how many of the
            bytes are needed: the file may end after those.
        count: number of requests to read.
        status: int64 (n,), out: 0, an errno, or CUT_SHORT if the file ends too early.

    Returns:
        0; or an errno if the context is unusable, and then its requests may still be in progress:
        destroying it waits for them.
    """
    blocks = np.empty((count, 8), np.int64)
    todo = np.arange(count)  # the last ones are submitted next
    left = waiting = count
    pointers = np.empty(DEPTH, np.int64)
    events = np.empty((DEPTH, 4), np.int64)
    flying = 0
    for k in range(count):
        status[k] = 0
    while left:
        while waiting and flying < DEPTH:
            want = min(waiting, DEPTH - flying)
            for n in range(want):
                k = todo[waiting - 1 - n]
                fill_block(blocks, requests, k)
                pointers[n] = np.int64(blocks.ctypes.data) + k * 64
            got = _syscall(_SUBMIT, context, want, pointers.ctypes.data, 0, 0)
            if got > 0:
                waiting -= got
                flying += got
                continue
            code = errno() if got < 0 else _EIO
            if code == EINTR:
                continue
            if code == _EAGAIN and flying:
                break  # as soon as others are done
            status[todo[waiting - 1]] = code  # of the first that was submitted
            waiting -= 1
            left -= 1
        if flying == 0:
            continue
        got = _syscall(GET_EVENTS, context, 1, DEPTH, events.ctypes.data, 0)
        if got < 0:
            code = errno()
            if code == EINTR:
                continue
            return code
        flying -= got
        for n in range(got):
            k = events[n, 0]
            result = events[n, 2]
            if result >= requests[k, NEEDED]:
                left -= 1
            elif result > 0 and result % BLOCK == 0:  # the rest: of a large request, for one
                requests[k, POSITION] += result
                requests[k, ADDRESS] += result
                requests[k, COUNT] -= result
                requests[k, NEEDED] -= result
                todo[waiting] = k
                waiting += 1
            elif result >= 0:
                status[k] = CUT_SHORT
                left -= 1
            else:
                status[k] = -result
                left -= 1
    return 0


class Context:
    """A queue of the system for the requests of one thread at a time."""

    def __init__(self):
        """Set up a queue of the system.

        Raises:
            ResourceShortage: all queues that the system allows are in use.
            OSError: the system forbids them.
        """
        if platform.machine() not in _NUMBERS:
            raise OSError(errno_numbers.ENOSYS, f"it is not used on {platform.machine()}")
        found = set_up(DEPTH)
        if found == -errno_numbers.EAGAIN:
            limit = Path("/proc/sys/fs/aio-max-nr").read_text().strip()
            raise ResourceShortage(
                "the system refuses another Linux AIO context: all processes together have reached "
                f"fs.aio-max-nr = {limit}. Use fewer threads or io='cached', or raise the limit: "
                "`sysctl -w fs.aio-max-nr=1048576`"
            )
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        self.value = found
        self.pid = os.getpid()

    def read(self, requests: np.ndarray) -> np.ndarray:
        """`read_all` for int64 (n, 5) requests: their status, int64 (n,).

        Raises OSError if the context is unusable.
        """
        status = np.zeros(len(requests), np.int64)
        code = read_all(self.value, requests, len(requests), status)
        if code:
            raise OSError(code, os.strerror(code))
        return status

    def close(self) -> None:
        """Destroy it; waits for requests in progress."""
        if self.pid == os.getpid():  # a forked child does not inherit it
            _destroy(self.value)


class Contexts(list[Context]):
    """Contexts that no thread uses at the moment: making and destroying one takes milliseconds.

    Append one again once it has no requests in progress.
    """

    def take(self) -> Context:
        """A context for this thread alone. Raises as Context does."""
        while True:
            try:
                context = self.pop()  # one step, so no lock is needed
            except IndexError:
                return Context()
            if context.pid == os.getpid():  # a forked child does not inherit contexts
                return context


CONTEXTS = Contexts()
