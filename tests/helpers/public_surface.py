"""The public surface of sa1bpack as text, one name per line, and the files that hold it.

`python tests/helpers/public_surface.py` renews them after a deliberate change: public_api.txt, and
the stubs of modules that import their names on first use, which type checkers read.
"""

import ast
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import sa1bpack

ROOT = Path(__file__).parents[2]
HELD = ROOT / "tests/public_api.txt"
INTERNAL = runpy.run_path(str(ROOT / "scripts/site/internal_members.py"))["INTERNAL"]


def public_objects() -> Iterator[tuple[str, Any]]:
    """(full name, object) of every public name that is not a module: shortest path first."""
    for module in (sa1bpack, sa1bpack.errors, sa1bpack.masks, sa1bpack.transforms):
        names = module.__all__ if hasattr(module, "__all__") else classes_of(module)
        for name in sorted(names, key=str.lower):
            value = getattr(module, name)
            if not inspect.ismodule(value):
                yield f"{module.__name__}.{name}", value


def classes_of(module: ModuleType) -> list[str]:
    """Names of the classes that a module defines."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def members_of(cls: type) -> Iterator[tuple[str, Any]]:
    """(name, value) of the public methods and properties that sa1bpack defines for a class."""
    seen = {name for base in cls.__mro__ for name in INTERNAL.get(base.__name__, ())}
    for base in cls.__mro__:
        if not base.__module__.startswith("sa1bpack"):
            continue
        for name, value in vars(base).items():
            callable_ = inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)
            if name.startswith("_") or name in seen:
                continue
            if callable_ or isinstance(value, property) or hasattr(value, "func"):
                seen.add(name)
                yield name, value


def signature_of(value: Any) -> str:
    """Its signature as text, the same in every version of Python."""
    text = str(inspect.signature(value)).replace("pathlib._local.", "pathlib.")
    return re.sub(r"<(\w+)>", r"\1", text)


def surface() -> str:
    """Every public name with its signature, and the members of classes below it."""
    lines = []
    for name, value in public_objects():
        if inspect.isclass(value):
            bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
            own = issubclass(value, Exception) and "__init__" not in vars(value)
            called = "" if own else signature_of(value).removesuffix(" -> None")
            lines.append(f"{name}{called}" + f": {bases}" * bool(bases))
            lines += [f"{name}.{member}{text}" for member, text in sorted(texts_of(value))]
        elif callable(value):
            lines.append(f"{name}{signature_of(value)}")
        else:
            lines.append(f"{name}: {type(value).__name__}")
    return "\n".join(lines) + "\n"


def texts_of(cls: type) -> Iterator[tuple[str, str]]:
    for name, value in members_of(cls):
        function = getattr(value, "fget", None) or getattr(value, "func", None)
        if function is not None:
            yield name, signature_of(function).partition(") -> ")[2] and f": {shown(function)}"
        else:
            yield name, signature_of(getattr(value, "__func__", value))


def shown(function: Any) -> str:
    return signature_of(function).partition(") -> ")[2]


def stub_of(module: ModuleType) -> str:
    """The .pyi of a module whose tables, name → module, say what it imports on first use."""
    tree = ast.parse(Path(module.__file__).read_text())
    tables = [ast.literal_eval(node.value) for node in tree.body
              if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)]  # fmt: skip
    sources = {
        name: source
        for table in tables
        for name, source in table.items()
        if name in module.__all__  # not those of earlier releases
    }
    for name, source in sources.items():
        if not source.startswith("sa1bpack."):
            sources[name] = f"{module.__name__}.{source}"
    for name in {*module.__all__} - {*sources, "__version__"}:
        sources[name] = module.__name__

    def place(item: tuple[str, str]) -> tuple:  # as Ruff sorts them
        name, source = item
        return source, not name.isupper(), name[0].islower(), name

    lines = [
        f"from {source} import {name} as {name}"
        for name, source in sorted(sources.items(), key=place)
    ]
    if "__version__" in module.__all__:
        lines += ["", "__version__: str"]
    path = f"{module.__name__.replace('.', '/')}/__init__.py"
    head = f'"""Types of the names that `{path}` imports on first use."""\n\n'
    return head + "\n".join(lines) + "\n"


def stub_path(module: ModuleType) -> Path:
    return Path(module.__file__).with_suffix(".pyi")


LAZY = (sa1bpack, sa1bpack.masks, sa1bpack.transforms)

if __name__ == "__main__":
    for module in LAZY:
        stub_path(module).write_text(stub_of(module))
    HELD.write_text(surface())
