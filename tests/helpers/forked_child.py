"""A block of a test in a fork of this process."""

import os
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 60  # seconds; a child that takes longer has hung


@contextmanager
def forked_child() -> Iterator[int]:
    """The number 0 in a child, which ends with the block and must not fail; here the child's id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        child = os.fork()
    if child:
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
