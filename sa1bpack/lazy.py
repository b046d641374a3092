"""Packages that import their public names on first use: those that the stub beside them imports."""

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import (\w+) as", re.MULTILINE)


def names_of(
    package: str,
    renamed: Mapping[str, str] = MappingProxyType({}),
    internal: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package.

    Its public names are those that `__init__.pyi` imports, which type checkers read, too.

    Args:
        renamed: names of earlier releases, and those that people look for → what they are called.
        internal: names for the other packages of sa1bpack only → the module that has them.
    """
    stub = Path(sys.modules[package].__file__).with_suffix(".pyi").read_text("utf-8")
    public = {name: module for module, name in _IMPORT.findall(stub)}
    modules = {**public, **internal}

    def get(name: str) -> Any:
        if name not in modules:
            now = f": it is {renamed[name]}" if name in renamed else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{now}")
        if modules[name] == package:
            return import_module(f"{package}.{name}")
        found = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)  # from now on
        return found

    return sorted(public), get, lambda: sys.modules[package].__all__
