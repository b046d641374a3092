"""Interruptions that wait for a safe moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
    arrived: list[int] = []
    try:
        with ExitStack() as restored:  # which goes on when a signal raises in between
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    restored.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, frame: arrived.append(number))
            yield
    finally:
        if arrived:
            signal.raise_signal(arrived[0])
