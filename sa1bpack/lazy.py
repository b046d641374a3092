"""Packages that import their public names on first use, by a table."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any


def names_of(
    package: str, modules: Mapping[str, str], renamed: Mapping[str, str] = MappingProxyType({})
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    modules  public name → the module that has it
    renamed  names of earlier releases, and those that people look for → what they are called
    """

    def get(name: str) -> Any:
        if name not in modules:
            now = f": it is {renamed[name]}" if name in renamed else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{now}")
        found = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)  # from now on
        return found

    return get, lambda: sys.modules[package].__all__
