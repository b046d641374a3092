"""A system call of a program fails: every call below a folder is counted, and one refused, or all
of its kind from that one on.

A program runs in a forked process, whose other calls are real. The faults are errors of the system,
Ctrl-C, and SIGKILL.
"""

import errno
import io
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults import path_of
from forked import fork

from sa1bpack.errors import Sa1bpackError
from sa1bpack.format import replacing

# Calls by what they do. Those on descriptors are known by the file.
CALLS = {
    "open": ("open",),
    "write": ("pwrite", "ftruncate"),
    "fsync": ("fsync",),
    "rename": ("rename", "replace"),
    "link": ("link", "symlink"),
    "unlink": ("unlink", "rmdir"),
    "mkdir": ("mkdir",),
    "stat": ("stat", "lstat"),
    "list": ("listdir", "scandir"),
    "read": ("preadv", "pread"),
}
SIGNAL = "Ctrl-C"
KILL = "SIGKILL"
ENDS = (SIGNAL, KILL)
# What a call can be refused for. Reading is not refused for lack of space.
FAULTS: dict[str, tuple[int | str, ...]] = {
    "open": (errno.EIO, errno.EMFILE, errno.ENOSPC, errno.EINTR, *ENDS),
    "write": (errno.EIO, errno.ENOSPC, errno.EINTR, *ENDS),
    "fsync": (errno.EIO, errno.ENOSPC, *ENDS),
    "rename": (errno.EIO, errno.ENOSPC, errno.EINTR, *ENDS),
    "link": (errno.EIO, errno.ENOSPC, errno.EMLINK, *ENDS),
    "unlink": (errno.EIO, errno.EBUSY, *ENDS),
    "mkdir": (errno.EIO, errno.ENOSPC, *ENDS),
    "stat": (errno.EIO, errno.EINTR, *ENDS),
    "list": (errno.EIO, errno.EMFILE, *ENDS),
    "read": (errno.EIO, errno.EINTR, *ENDS),
}
_PATIENCE = 120  # seconds; a process that takes longer has hung


@dataclass(frozen=True)
class Fault:
    """A call that fails.

    Attributes:
        kind: key of CALLS.
        at: number of the call among those of its kind, from 0.
        error: number of the error; or SIGNAL or KILL, which comes just before the call.
        lasting: all later calls of the kind fail as well.
    """

    kind: str
    at: int
    error: int | str
    lasting: bool = False

    def __str__(self) -> str:
        error = self.error if isinstance(self.error, str) else errno.errorcode[self.error]
        return f"{error} at {self.kind} {self.at}{' and after it' * self.lasting}"


class _Calls:
    """The calls of this process below a folder, one of which fails."""

    def __init__(self, root: Path, fault: Fault | None):
        self.counts: Counter[str] = Counter()
        self._below = f"{root}/"
        self._fault = fault
        self._lock = threading.Lock()

    def install(self) -> None:
        """Put every call of this process through `around`, for good."""
        for kind, names in CALLS.items():
            for name in names:
                setattr(os, name, self.around(kind, name, getattr(os, name)))
        io.open = self.around("open", "io.open", io.open)
        replacing.exchange = self.around("rename", "exchange", replacing.exchange)

    def around(self, kind: str, name: str, call: Callable) -> Callable:
        """A call of this kind that may fail."""

        def made(target=".", *arguments, **named):
            if name == "io.open" and isinstance(target, int):
                return call(target, *arguments, **named)
            named_path = arguments[0] if name in ("link", "symlink") else target
            path = path_of(named_path, named.get("dir_fd"))
            if f"{path}/".startswith(self._below) and self._fails(kind):
                if self._fault.error == SIGNAL:
                    os.kill(os.getpid(), signal.SIGINT)
                elif self._fault.error == KILL:
                    os.kill(os.getpid(), signal.SIGKILL)
                else:
                    error = self._fault.error
                    shown = () if isinstance(target, int) else (os.fspath(target),)
                    raise OSError(error, os.strerror(error), *shown)
            return call(target, *arguments, **named)

        return made

    def _fails(self, kind: str) -> bool:
        with self._lock:
            number = self.counts[kind]
            self.counts[kind] += 1
        fault = self._fault
        if fault is None or fault.kind != kind:
            return False
        return number >= fault.at if fault.lasting else number == fault.at


def run_with(
    program: Callable[[], object], root: Path, log: Path, fault: Fault | None = None
) -> tuple[str, Counter[str]]:
    """Run a program in a forked process, one of whose calls below `root` fails.

    Returns:
        How it ended: "" without an error, else the error that it raised, or KILL; and how many
        calls of each kind it made, which is not known of one that was killed.

    Raises:
        AssertionError: it raised an error that is neither the system's nor sa1bpack's, or hung.
    """
    child = fork()
    if child == 0:
        _end_with(program, root, log, fault)
    _, status = os.waitpid(child, 0)
    said = log.read_text()
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL and fault is not None and fault.error == KILL:
        return KILL, Counter()
    if code not in (0, 3):
        raise AssertionError(f"{fault}: exit code {code}\n{said}")
    first, _, error = said.rpartition("COUNTS ")[2].partition("\n")
    counts: Counter[str] = Counter()
    for word in first.split():
        kind, _, count = word.partition("=")
        counts[kind] = int(count)
    return error, counts


def _end_with(program: Callable[[], object], root: Path, log: Path, fault: Fault | None) -> None:
    """Run the program in this process, and end it."""
    code = 1
    text = ""
    calls = _Calls(root, fault)
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with _quiet(log):
            calls.install()
            program()
        code = 0
    except (OSError, Sa1bpackError, KeyboardInterrupt):
        code = 3
        text = traceback.format_exc()
    except BaseException:
        text = traceback.format_exc()
    finally:
        counted = " ".join(f"{kind}={count}" for kind, count in calls.counts.items())
        with log.open("a") as file:
            file.write(f"COUNTS {counted}\n{text}")
        os._exit(code)


@contextmanager
def _quiet(log: Path) -> Iterator[None]:
    """What this process prints goes into a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    yield
