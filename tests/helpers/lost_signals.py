"""A preload for child processes: a signal that arrives exactly where its exception is lost.

`write_preload` makes a folder to put on PYTHONPATH. The `sitecustomize` in it waits until a module
is imported, and then has the process send itself a signal, within a callback from C, as those
that llvmlite makes while kernels are loaded and compiled.
"""

import signal
from pathlib import Path

from preloads import after_import

_SEND = '''
import ctypes, os


def send():
    """Send the signal within a callback from C: what its handler raises is printed and lost."""
    def callback():
        os.kill(os.getpid(), {number})
        for _ in range(100):  # the handler runs at one of these at the latest
            pass

    ctypes.CFUNCTYPE(None)(callback)()
'''

# Moment → (module, what is done to it once it is imported).
MOMENTS = {
    "while modules load": ("numba", "send()"),
    "while a kernel is loaded or compiled": (
        "llvmlite.binding.executionengine",
        """
set_object_cache, sent = module.ExecutionEngine.set_object_cache, []


def wrapped(self, notify, get):
    def asked(*arguments):
        if not sent:
            sent.append(1)
            send()
        return get(*arguments)

    set_object_cache(self, notify, asked)


module.ExecutionEngine.set_object_cache = wrapped
""",
    ),
    "between two samples": (
        "sa1bpack.packing.source_packer",
        """
take, calls = module.SourcePacker._take, []


def taken(*arguments):
    take(*arguments)
    calls.append(1)
    if len(calls) == 2:
        send()


module.SourcePacker._take = taken
""",
    ),
}


def write_preload(folder: Path, moment: str, number: signal.Signals) -> Path:
    """Write a preload that sends a signal at one of MOMENTS; returns its folder."""
    folder.mkdir()
    text = _SEND.format(number=int(number)) + after_import(*MOMENTS[moment])
    (folder / "sitecustomize.py").write_text(text)
    return folder
