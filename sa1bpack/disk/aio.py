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
from sa1bpack.kernels import external, memcpy, njit, types

# Requests in flight per context. The system allows fs.aio-max-nr (65,536) in all contexts.
DEPTH = 64

# Values of `status` besides 0 and errno.
CUT_SHORT = -1

# A request: `count` bytes from a position of an open file to an address, all multiples of BLOCK, of
# which some are needed: the file may end after those.
REQUEST = np.dtype([(n, np.int64) for n in ("file", "position", "count", "address", "needed")])

# struct iocb of linux/aio_abi.h, whose operation 0 is PREAD.
_CONTROL_BLOCK = np.dtype(
    {
        "names": ["request", "file", "address", "count", "position"],
        "formats": ["i8", "u4", "i8", "i8", "i8"],
        "offsets": [0, 20, 24, 32, 40],
        "itemsize": 64,
    }
)
# struct io_event: the number of the request, and the bytes that were read, or -errno.
_EVENT = np.dtype(
    {"names": ["request", "result"], "formats": ["i8", "i8"], "offsets": [0, 16], "itemsize": 32}
)
# io_setup, io_destroy, io_submit, io_getevents; by the kernel's tables of system calls.
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4), "riscv64": (0, 1, 2, 4)}
_SETUP, _DESTROY, _SUBMIT, GET_EVENTS = _NUMBERS.get(platform.machine(), (0, 0, 0, 0))

EINTR = 4
EBADF = 9
_EAGAIN = 11
_EIO = 5
# A read transfers at most 2 GiB - 4 KiB.
MAX_READ_BYTES = 1 << 30

_CONTROL_BLOCK_BYTES = _CONTROL_BLOCK.itemsize

_word = types.uintp
_syscall = external("syscall", types.intp(types.intp, _word, _word, _word, _word, _word))
_errno_at = external("__errno_location", _word())


@njit
def errno() -> int:
    """The error number of this thread's last system call."""
    code = np.empty(1, np.int32)
    memcpy(code.ctypes.data, _errno_at(), 4)
    return int(code[0])


@njit
def set_up(depth: int) -> int:
    """A new context, or -errno."""
    context = np.zeros(1, np.int64)
    if _syscall(_SETUP, depth, context.ctypes.data, 0, 0, 0) < 0:
        return -errno()
    return int(context[0])


@njit
def _destroy(context: int) -> None:
    _syscall(_DESTROY, context, 0, 0, 0, 0)


@njit
def fill_block(block: np.record, request: np.record, number: int) -> None:
    """Fill the control block, zero so far, of the request with this number."""
    block.request = number
    block.file = np.uint32(request.file)
    block.address = request.address
    block.count = min(request.count, MAX_READ_BYTES)
    block.position = request.position


@njit
def read_all(context: int, requests: np.ndarray, status: np.ndarray) -> int:
    """Read requests, at most DEPTH at a time.

    Args:
        context: `value` of a `Context`; no other thread may use it meanwhile.
        requests: REQUEST (n,), overwritten.
        status: int64 (n,), out: 0, an errno, or CUT_SHORT if the file ends too early.

    Returns:
        0; or an errno if the context is unusable, and then its requests may still be in progress:
        destroying it waits for them.
    """
    count = len(requests)
    blocks = np.zeros(count, _CONTROL_BLOCK)
    first_block = np.int64(blocks.ctypes.data)
    pending = np.arange(count)  # the last ones are submitted next
    waiting = count
    unfinished = count
    in_flight = 0
    pointers = np.empty(DEPTH, np.int64)
    events = np.empty(DEPTH, _EVENT)
    for k in range(count):
        status[k] = 0
    while unfinished:
        while waiting and in_flight < DEPTH:
            most = min(waiting, DEPTH - in_flight)
            for n in range(most):
                k = pending[waiting - 1 - n]
                fill_block(blocks[k], requests[k], k)
                pointers[n] = first_block + k * _CONTROL_BLOCK_BYTES
            submitted = _syscall(_SUBMIT, context, most, pointers.ctypes.data, 0, 0)
            if submitted > 0:
                waiting -= submitted
                in_flight += submitted
                continue
            code = errno() if submitted < 0 else _EIO
            if code == EINTR:
                continue
            if code == _EAGAIN and in_flight:
                break  # as soon as others are done
            status[pending[waiting - 1]] = code  # of the first that was submitted
            waiting -= 1
            unfinished -= 1
        if in_flight == 0:
            continue
        finished = _syscall(GET_EVENTS, context, 1, DEPTH, events.ctypes.data, 0)
        if finished < 0:
            code = errno()
            if code == EINTR:
                continue
            return code
        in_flight -= finished
        for n in range(finished):
            k = events[n].request
            count_read = events[n].result
            if count_read >= requests[k].needed:
                unfinished -= 1
            elif count_read > 0 and count_read % BLOCK == 0:  # as of a large request
                requests[k].position += count_read
                requests[k].address += count_read
                requests[k].count -= count_read
                requests[k].needed -= count_read
                pending[waiting] = k
                waiting += 1
            elif count_read >= 0:
                status[k] = CUT_SHORT
                unfinished -= 1
            else:
                status[k] = -count_read
                unfinished -= 1
    return 0


class Context:
    """A queue of the system for the requests of one thread at a time."""

    def __init__(self) -> None:
        """Set up a queue of the system.

        Raises:
            ResourceShortage: all queues that the system allows are in use.
            OSError: the system forbids them.
        """
        if platform.machine() not in _NUMBERS:
            raise OSError(errno_numbers.ENOSYS, f"it is not used on {platform.machine()}")
        context = set_up(DEPTH)
        if context == -errno_numbers.EAGAIN:
            limit = Path("/proc/sys/fs/aio-max-nr").read_text().strip()
            raise ResourceShortage(
                "the system refuses another Linux AIO context: all processes together have reached "
                f"fs.aio-max-nr = {limit}. Use fewer threads or io='cached', or raise the limit: "
                "`sysctl -w fs.aio-max-nr=1048576`"
            )
        if context < 0:
            raise OSError(-context, os.strerror(-context))
        self.value = context
        self.pid = os.getpid()

    def read(self, requests: np.ndarray) -> np.ndarray:
        """`read_all` for REQUEST (n,): their status, int64 (n,).

        Raises OSError if the context is unusable.
        """
        status = np.zeros(len(requests), np.int64)
        code = read_all(self.value, requests, status)
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
