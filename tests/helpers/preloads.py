"""Preloads for child processes: code that runs there when a module is imported.

Written as `sitecustomize.py` into a folder on PYTHONPATH, Python runs one at its start.
"""

import signal

_AROUND_IMPORT = """
import importlib.abc, importlib.machinery, os, sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        {before}
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            exec({after!r}, {{**globals(), "module": module}})

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
"""


def after_import(module: str, change: str) -> str:
    """A preload that runs the code `change` once a module is imported.

    The code sees the names of the preload, and the imported module as `module`.
    """
    return _AROUND_IMPORT.format(module=module, before="pass", after=change)


_SIGNALS = """
import ctypes, os


def kill():
    os.kill(os.getpid(), {number})
    for _ in range(100):  # the handler runs at one of these at the latest
        pass


def send():
    '''Within a callback from C, as those that llvmlite makes while kernels are loaded and compiled:
    what the handler raises is printed and lost.'''
    ctypes.CFUNCTYPE(None)(kill)()
"""


def signal_before_import(module: str, number: signal.Signals) -> str:
    """A preload that sends the process a signal when it is about to import a module."""
    around = _AROUND_IMPORT.format(module=module, before="kill()", after="")
    return _SIGNALS.format(number=int(number)) + around


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
        "sa1bpack.packing.decoder",
        """
new, calls = module.Promises.new, []


def promised(promises):
    calls.append(1)
    if len(calls) == 2:
        send()
    return new(promises)


module.Promises.new = promised
""",
    ),
}


def lost_signal(moment: str, number: signal.Signals) -> str:
    """A preload that sends a signal, whose exception is lost, at one of MOMENTS."""
    return _SIGNALS.format(number=int(number)) + after_import(*MOMENTS[moment])
