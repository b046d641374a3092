"""Preloads for child processes: code that runs there once a module has been imported.

Written as `sitecustomize.py` into a folder on PYTHONPATH, Python runs one at its start.
"""

_AFTER_IMPORT = """
import importlib.abc, importlib.machinery, sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            exec({change!r}, {{**globals(), "module": module}})

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
"""


def after_import(module: str, change: str) -> str:
    """A preload that runs the code `change` once a module is imported.

    The code sees the names of the preload, and the imported module as `module`.
    """
    return _AFTER_IMPORT.format(module=module, change=change)


_BEFORE_IMPORT = """
import importlib.abc, os, sys


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})
            for _ in range(100):  # the handler runs at one of these at the latest
                pass


sys.meta_path.insert(0, _Finder())
"""


def signal_before_import(module: str, number: int) -> str:
    """A preload that sends the process a signal when it is about to import a module."""
    return _BEFORE_IMPORT.format(module=module, number=int(number))
