"""Options that are declared once: type, default, bounds and help of each are those of a field.

A group of options is a dataclass that inherits from `Options`, with fields made by `option`. From
them come the keyword arguments, the checks, what `help()` shows, the flags of the command line
(`cli/arguments.py`) and the tables of the documents (`table`).
"""

import dataclasses
import inspect
import textwrap
import typing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

from sa1bpack.arguments import choice, flag, local_path, number, whole_number
from sa1bpack.errors import OptionError

_KEY = "option"  # in the metadata of a field


@dataclass(frozen=True)
class Declaration:
    """The declaration of an option, besides its name, type and default.

    help      what it does, without a full stop
    choices   the texts that it may be
    low       the least number, and
    high      the largest; None for no limit
    multiple  of which a whole number must be one
    why       the reason for a limit, for the message
    none      what None is called on the command line, in messages and in the help; may be empty
    metavar   what the command line calls its value
    """

    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    multiple: int = 1
    why: str = ""
    none: str = "none"
    metavar: str | None = None


def option(default: Any, help: str, **declared: Any) -> Any:
    """A field of `Options` with this default and help; see `Declaration` for the others."""
    return dataclasses.field(default=default, metadata={_KEY: Declaration(help, **declared)})


class Options:
    """The base of groups of options; a value that cannot be used is an OptionError."""

    def __init_subclass__(cls) -> None:
        """Complete the documentation of the class by that of its options."""
        own = {name: value for name, value in vars(cls).items() if _declared(value)}
        inherited = getattr(cls, "__dataclass_fields__", {})
        lines = [
            textwrap.fill(
                f"{name}: {text_of(declared, field.default)}",
                width=96,
                initial_indent="    ",
                subsequent_indent="        ",
            )
            for name, field in (own | inherited).items()
            if (declared := _declared(field))
        ]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Options:", *lines])

    def __post_init__(self) -> None:
        """Check every option, and store numbers as Python's, whatever their type."""
        for name, (declared, kind, optional) in declarations(type(self)).items():
            value = getattr(self, name)
            if value is not None or not optional:
                object.__setattr__(self, name, _checked(name, value, declared, kind))


@cache
def declarations(cls: type[Options]) -> dict[str, tuple[Declaration, type, bool]]:
    """Name of each declared option → its declaration, its type, and whether it may be None.

    Those of the class itself come first, then those that it inherits.
    """
    kinds = typing.get_type_hints(cls)
    found = {}
    fields = {field.name: field for field in dataclasses.fields(cls)}
    own = [name for each in cls.__mro__ for name in vars(each).get("__annotations__", ())]
    for field in (fields[name] for name in own if name in fields):
        if declared := _declared(field):
            given = typing.get_args(kinds[field.name]) or (kinds[field.name],)
            kind = next(each for each in given if each is not NoneType)
            found[field.name] = declared, kind, NoneType in given
    return found


def text_of(declared: Declaration, default: Any) -> str:
    """The help of an option, with its bounds and its default, if that need be said."""
    shown = declared.none if default is None else default
    if shown is False or shown == "":
        return declared.help
    return f"{declared.help} ({_bounds(declared, '{}, ')}default: {shown})"


def table(cls: type[Options]) -> str:
    """Options as a table in Markdown: flag, values, default, help."""
    lines = ["| option | values | default | |", "|---|---|---|---|"]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name, (declared, kind, optional) in declarations(cls).items():
        default = fields[name].default
        shown = declared.none if default is None else default
        word = f", or `{declared.none}`" if optional and declared.none == shown else ""
        values = _values(declared, kind) + (word if len(word) < 12 else "")
        flag = f"--{name.replace('_', '-')}"
        lines.append(f"| `{flag}` | {values} | {shown} | {declared.help} |")
    return "\n".join(lines)


def _values(declared: Declaration, kind: type) -> str:
    if declared.choices:
        return ", ".join(f"`{each}`" for each in declared.choices)
    return f"{'a whole number' if kind is int else 'a number'}{_bounds(declared, ', {}')}"


def _bounds(declared: Declaration, form: str) -> str:
    """The bounds in words, in this form; none where only files set the upper one."""
    low, high = declared.low, declared.high
    if declared.choices or high is None or high >= 1 << 24:
        return ""
    found = f"at most {high}" if low is None else f"{low} to {high}"
    return form.format(
        f"a multiple of {declared.multiple}, {found}" if declared.multiple > 1 else found
    )


def _declared(field: Any) -> Declaration | None:
    return field.metadata.get(_KEY) if isinstance(field, dataclasses.Field) else None


def _checked(name: str, value: Any, declared: Declaration, kind: type) -> Any:
    """The value as it is stored. Raises OptionError if it cannot be used."""
    if declared.choices:
        return choice(name, value, declared.choices)
    if kind is bool:
        return flag(name, value)
    if kind is Path:
        return local_path(name, value)
    if kind is int:
        found = whole_number(name, value, declared.low, declared.high)
        if found % declared.multiple:
            raise OptionError(
                f"{name} is {found}: choose a multiple of {declared.multiple}{_why(declared)}"
            )
        return found
    # 1 and 1.0 are the same option.
    return number(name, value, declared.low, declared.high, _why(declared))


def _why(declared: Declaration) -> str:
    return f"; {declared.why}" if declared.why else ""
