"""Interruptions that wait for a safe moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM take effect at the end of the block, not within it.

    Compiled kernels are loaded with callbacks from C into Python. An exception that a signal raises
    there is printed and lost, and the program goes on as if nobody had asked it to end.

    Only what has a handler in Python is held, and in the main thread alone: no other runs handlers.
    (Blocking the signals would not do: the system hands them to another thread, such as BLAS's.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    arrived: list[int] = []
    try:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            if callable(handler):
                signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
