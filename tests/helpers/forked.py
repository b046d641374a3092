"""Forks of this process: a block of a test, or the `sa1bpack` command.

All modules are loaded and kernels compiled, so a command starts working immediately: it takes a
tenth of the time of a new process, and a kill at a random moment hits its work.
"""

import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from sa1bpack.cli.main import main

_PATIENCE = 120  # seconds; a process that takes longer has hung


def fork() -> int:
    """As os.fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        return os.fork()


@contextmanager
def forked_child() -> Iterator[int]:
    """The number 0 in a child, which ends with the block and must not fail; here the child's id."""
    if child := fork():
        yield child
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        return
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE)
        yield 0
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Forked:
    """A running command, in its own process group.

    Args:
        log: file for its output.
        prepare: called in the process before the command. Flushes to disk do nothing there: they
            would take most of the time, and only a power cut shows the difference.
    """

    def __init__(self, *arguments, log: Path, prepare: Callable[[], None] = lambda: None):
        self.arguments = [str(word) for word in arguments]
        self._log = Path(log)
        self.pid = fork()
        if self.pid == 0:
            code = 70
            try:
                _detach(self._log)
                prepare()
                code = main(self.arguments)
            except SystemExit as ended:
                code = ended.code
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        with suppress(ProcessLookupError):  # the child does this too, whichever is first
            os.setpgid(self.pid, self.pid)
        self._status: int | None = None

    def ended(self) -> bool:
        """Whether it has ended."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def wait(self) -> tuple[int, str]:
        """Wait for its end: (exit code, or -signal if a signal killed it; output)."""
        self.wait_until(lambda: False)
        return os.waitstatus_to_exitcode(self._status), self._log.read_text()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds or it ends."""
        end = time.monotonic() + _PATIENCE
        while not self.ended() and not condition():
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
                raise AssertionError(f"no end within {_PATIENCE} s: {self._log.read_text()}")
            time.sleep(0.0005)


def _detach(log: Path) -> None:
    """Give this process its own group and output, and flushes that do nothing."""
    os.setpgid(0, 0)
    # Of a file that was being opened when a signal came, which Python itself does not show either.
    warnings.simplefilter("ignore", ResourceWarning)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
    os.fsync = os.fdatasync = lambda descriptor: None
    tqdm.set_lock(threading.RLock())  # forks share the default one, and one may die holding it
