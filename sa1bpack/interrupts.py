"""Interruptions: where they wait for a safe moment, and where they are raised again if lost.

An exception that a signal raises within a callback from C into Python (kernels are loaded and
compiled with such callbacks), in a finalizer, or in code that catches everything, is printed or
swallowed, and the program continues as if nobody had asked it to end. So

- `interrupts_held` lets signals take effect after a block, not within it,
- a handler calls `record` before it raises, and `check` raises again what was recorded: a run calls
  it between any two samples, before it publishes, and while it waits for an object store.

Without such a handler, as in a Python session, nothing is recorded and `check` does nothing.
"""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_recorded: list[int] = []


def record(number: int) -> None:
    """Record a signal for which a handler is about to raise: the exception must end the program."""
    _recorded.append(number)


def end_at_once() -> None:
    """Let a signal end this process without an exception from here on: its work is done.

    Python would print one that is raised while the interpreter ends.
    """
    for number in SIGNALS:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def forget() -> None:
    """Forget what ended the program before: a new one begins in this process."""
    _recorded.clear()


def check() -> None:
    """Raise again what a handler raised and was lost. For the main thread, at safe points.

    Not for code that runs while a program ends, since its exception is not lost.
    """
    if _recorded:
        signal.raise_signal(_recorded[0])


def result_of(future: Future[Any], seconds: float) -> Any:
    """`future.result(seconds)`, with a `check` every second if this is the main thread."""
    limit = monotonic() + seconds
    while True:
        left = limit - monotonic()
        try:
            return future.result(min(left, 1.0))
        except TimeoutError:
            if left <= 1.0 or future.done():  # done: the error is that of the work
                raise
        if threading.current_thread() is threading.main_thread():
            check()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM take effect at the end of the block, not within it.

    Only signals with a handler in Python are held, and only in the main thread: no other runs
    handlers. (Blocking the signals would not help: the system delivers them to another thread, such
    as one of BLAS.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    try:
        with ExitStack() as restored:  # which continues if a signal raises in between
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    restored.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, frame: arrived.append(number))
            yield
    finally:
        if arrived:
            signal.raise_signal(arrived[0])
