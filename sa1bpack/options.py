"""Groups of options, each declared once: its type, default, bounds and text are those of a field.

A group is a dataclass that inherits from `Options`, with fields made by `option`. From them come
the keyword arguments (`keywords.py`), the checks, what `help()` shows, the flags of the command
line (`cli/arguments.py`) and the tables of the documents.

A type checker runs nothing: it can only read what keyword arguments there are. It reads
`option_keywords.pyi`, which `scripts/write_option_keywords.py` writes from the fields; a test
compares them, and finds options that are declared again elsewhere.
"""

import dataclasses
import functools
import inspect
import os
import textwrap
import typing
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

from sa1bpack.arguments import choice, flag, number, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.paths import local_path

# Choices that a heavy module and the command, which loads quickly, declare both: the layouts of
# masks in a batch (`loading.batch.spec.MaskLayout`), how much of a pack a report checks
# (`export.report.Verification`), the masks that `measuring.bench` reads, and what becomes of packs
# whose layouts differ (`sa1bpack.open`).
MASK_LAYOUTS = ("padded", "concat", "padded_bits", "concat_bits")
BENCH_MASKS = ("bits", "bool", "runs", "none")
REPORT_CHECKS = ("sample", "quick", "full", "none")
LAYOUTS = ("equal", "shared")

_KEY = "option"  # in the metadata of a field


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The declaration of an option, besides its name.

    Attributes:
        help: what it does, without a full stop; "" where the docstring of a public call says it.
        choices: the texts that it may be.
        low, high: the least and the largest number; None for no limit.
        multiple: what a whole number must be a multiple of.
        why: the reason for a limit, for the message.
        none: what None is called on the command line, in messages and in the help; may be empty.
        metavar: what the command line calls its value.
        accepts: type of what calls take, if the field has another one, made of it.
        instead: of a path, why it cannot be a URL, and what to do; None: a mount, or a copy, helps.
        words: words that stand for numbers, which calls and the command line take in their place.
        kind, optional, default: of its field: the type, None if it has several, which are not
            checked here; whether it may be None; and the default.
    """

    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    multiple: int = 1
    why: str = ""
    none: str = "none"
    metavar: str | None = None
    accepts: Any = None
    instead: str | None = None
    words: Mapping[str, int] = dataclasses.field(default_factory=dict)
    kind: Any = str
    optional: bool = False
    default: Any = None

    @property
    def text(self) -> str:
        """The help, with the bounds and the default, if that need be said."""
        shown = self.default
        if shown is None:
            shown = self.none
        if shown is False or shown in ("", ()):
            return self.help
        within = ", ".join(filter(None, [self.bounds, f"default: {shown}"]))
        return f"{self.help} ({within})"

    @property
    def bounds(self) -> str:
        """The bounds in words; none where only files set the upper one."""
        if self.choices or self.high is None or self.high >= 1 << 24:
            return ""
        limits = f"{self.low} to {self.high}"
        if self.low is None:
            limits = f"at most {self.high}"
        if self.multiple > 1:
            limits = f"a multiple of {self.multiple}, {limits}"
        return limits

    def checked(self, name: str, value: Any) -> Any:
        """The value, a number as Python's, whatever its type. Raises OptionError."""
        why = f"; {self.why}" if self.why else ""
        if value is None and self.optional:
            return None
        if isinstance(value, str) and value in self.words:
            value = self.words[value]
        if self.choices:
            return choice(name, value, self.choices)
        if self.kind is bool:
            return flag(name, value)
        if self.kind is Path:
            return local_path(name, value, self.instead)
        if self.kind is float:  # 1 and 1.0 are the same option
            return number(name, value, self.low, self.high, why)
        if self.kind is int:
            high = None if self.high is None else int(self.high)
            value = whole_number(name, value, int(self.low or 0), high)
            if value % self.multiple:
                raise OptionError(f"{name} is {value}: choose a multiple of {self.multiple}{why}")
        return value


def option(default: Any, help: str = "", **declared: Any) -> Any:
    """A field of `Options` with this default and help; see `Declaration` for the others."""
    declaration = Declaration(help, **declared, default=default)
    return dataclasses.field(default=default, metadata={_KEY: declaration})


@dataclasses.dataclass(frozen=True)
class Options:
    """The base of groups of options; a value that cannot be used is an OptionError."""

    def __init_subclass__(cls) -> None:
        """Complete the documentation of the class by that of its options."""
        fields = {**vars(cls), **cls.__dataclass_fields__}
        texts = {name: _declaration_of(field) for name, field in fields.items()}
        cls.__doc__ = inspect.cleandoc(cls.__doc__ or "") + "\n\n" + section_of(texts)

    def __post_init__(self) -> None:
        """Check every option, and store numbers as Python's, whatever their type."""
        for name, declaration in declarations(type(self)).items():
            object.__setattr__(self, name, declaration.checked(name, getattr(self, name)))


Group = TypeVar("Group", bound=Options)


def section_of(declared: Mapping[str, Declaration | None]) -> str:
    """The section `Options:` of a docstring: name and text of each option that has a text."""
    lines = ["Options:"]
    for name, declaration in declared.items():
        if declaration is not None and declaration.help:
            text = f"    {name}: {declaration.text}"
            lines.append(textwrap.fill(text, 96, subsequent_indent=" " * 8))
    return "\n".join(lines)


def group_of(group: type[Group], keywords: Mapping[str, Any]) -> Group:
    """The group of the keywords of a call, whose types may be wider than what it stores."""
    return group(**keywords)


def declarations(group: type[Options]) -> Mapping[str, Declaration]:
    """Name of each declared option of a group → its declaration.

    Those of the class itself come first, then those that it inherits.
    """
    hashable: Any = group  # which mypy does not know of the class of a dataclass
    return _declarations(hashable)


@functools.cache
def _declarations(cls: Any) -> Mapping[str, Declaration]:
    kinds = typing.get_type_hints(cls)
    declared = {}
    for owner in cls.__mro__:
        for name in vars(owner).get("__annotations__", ()):
            declaration = _declaration_of(cls.__dataclass_fields__.get(name))
            if declaration is None:
                continue
            accepts = declaration.accepts or kinds[name]
            alternatives = get_args(kinds[name]) or (kinds[name],)
            optional = NoneType in alternatives
            types = [alternative for alternative in alternatives if alternative is not NoneType]
            kind = types[0] if len(types) == 1 else None
            if kind is Path:
                accepts = str | os.PathLike[str]
                if optional:
                    accepts |= None
            declared[name] = dataclasses.replace(
                declaration, kind=kind, optional=optional, accepts=accepts
            )
    return declared


def _declaration_of(field: Any) -> Declaration | None:
    return field.metadata.get(_KEY) if isinstance(field, dataclasses.Field) else None
