"""A preload for child processes: a signal that arrives exactly where its exception is lost.

`write_preload` makes a folder to put on PYTHONPATH. The `sitecustomize` in it waits until a module
is imported, and then has the process send itself a signal, within a callback from C, as those
that llvmlite makes while kernels are loaded and compiled.
"""

import signal
from pathlib import Path

_SITECUSTOMIZE = '''
import ctypes, importlib.abc, importlib.machinery, os, sys


def send():
    """Send the signal within a callback from C: what its handler raises is printed and lost."""
    def callback():
        os.kill(os.getpid(), {number})
        for _ in range(100):  # the handler runs at one of these at the latest
            pass

    ctypes.CFUNCTYPE(None)(callback)()


def arrange(module):
    {arrange}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            arrange(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
'''

# Moment → (module, what is done to it once it is imported).
MOMENTS = {
    "while modules load": ("numba", "send()"),
    "while a kernel is loaded or compiled": (
        "llvmlite.binding.executionengine",
        "set_object_cache, sent = module.ExecutionEngine.set_object_cache, []\n"
        "    def wrapped(self, notify, get):\n"
        "        def asked(*arguments):\n"
        "            if not sent:\n"
        "                sent.append(1)\n"
        "                send()\n"
        "            return get(*arguments)\n"
        "        set_object_cache(self, notify, asked)\n"
        "    module.ExecutionEngine.set_object_cache = wrapped",
    ),
    "between two samples": (
        "sa1bpack.packing.shard_builder",
        "resolve, calls = module.ShardBuilder.resolve, []\n"
        "    def resolved(*arguments):\n"
        "        resolve(*arguments)\n"
        "        calls.append(1)\n"
        "        if len(calls) == 2:\n"
        "            send()\n"
        "    module.ShardBuilder.resolve = resolved",
    ),
}


def write_preload(folder: Path, moment: str, number: signal.Signals) -> Path:
    """Write a preload that sends a signal at one of MOMENTS; returns its folder."""
    module, arrange = MOMENTS[moment]
    folder.mkdir()
    text = _SITECUSTOMIZE.format(number=int(number), module=module, arrange=arrange)
    (folder / "sitecustomize.py").write_text(text)
    return folder
