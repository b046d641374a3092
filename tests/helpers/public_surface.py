"""The public surface of sa1bpack as text, one name per line, and the file that holds it.

`python tests/helpers/public_surface.py` renews it, public_api.txt, after a deliberate change.
"""

import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sa1bpack

ROOT = Path(__file__).parents[2]
HELD = ROOT / "tests/public_api.txt"
INTERNAL = runpy.run_path(str(ROOT / "scripts/site/internal_members.py"))["INTERNAL"]


def public_objects() -> Iterator[tuple[str, Any]]:
    """(full name, object) of every public name that is not a module: shortest path first."""
    for module in (sa1bpack, sa1bpack.errors, sa1bpack.masks, sa1bpack.transforms):
        own = [name for name, value in vars(module).items()
               if inspect.isclass(value) and value.__module__ == module.__name__]  # fmt: skip
        names = getattr(module, "__all__", own)
        for name in sorted(names, key=str.lower):
            value = getattr(module, name)
            if not inspect.ismodule(value):
                yield f"{module.__name__}.{name}", value


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
            returned = signature_of(function).partition(") -> ")[2]
            yield name, returned and f": {returned}"
        else:
            yield name, signature_of(getattr(value, "__func__", value))


if __name__ == "__main__":
    HELD.write_text(surface())
