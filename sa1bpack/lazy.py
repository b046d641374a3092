"""Packages that import their public names on first use: those that the stub beside them imports.

A stub has a line `from MODULE import NAME as NAME` for each, which type checkers read, too. Why not
the package lazy_loader: docs/decisions/0022-lazy-imports.md.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any


def names_of(
    package: str, other_names: "Mapping[str, str] | None" = None
) -> "tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]":
    """The `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        other_names: names that people look for → what they are called.

    Raises:
        ImportError: the package is in a zip file.
    """
    module = sys.modules[package]
    home = {}  # public name → the module that has it
    try:
        # pathlib would take longer to import than all the rest.
        with open(f"{module.__file__}i", encoding="utf-8") as stub:  # noqa: PTH123
            for line in stub:
                words = line.split()  # from MODULE import NAME as NAME
                if words[:1] == ["from"]:
                    home[words[3]] = words[1]
    except NotADirectoryError:  # it is in a file
        raise ImportError(
            f"{module.__file__}: {package} cannot be imported from a zip file, as it reads files "
            "beside its modules: install it with pip, or unpack the file"
        ) from None

    def get(name: str) -> "Any":
        if name not in home:
            hint = f": it is {other_names[name]}" if other_names and name in other_names else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        if home[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(home[name]), name)
        setattr(module, name, value)  # from now on
        return value

    return sorted(home), get, lambda: module.__dict__["__all__"]
