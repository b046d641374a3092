"""Arguments that users give: whole numbers, choices, timeouts, checked in one place and alike.

Options are declared once: type, default, bounds and help of each are those of a field. A group of
options is a dataclass that inherits from `Options`, with fields made by `option`. From them come
the keyword arguments, the checks, what `help()` shows, the flags of the command line
(`cli/arguments.py`) and the tables of the documents.
"""

import dataclasses
import functools
import glob
import inspect
import operator
import os
import re
import textwrap
import threading
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from math import inf, isfinite
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, overload

import numpy as np

from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

# Seeds, epochs and image ids of random choices: what 64 bits hold.
MAX_WORD = 2**64 - 1

# Seconds, 23 days: a queue between processes waits with poll(), whose milliseconds have 31 bits.
LEAST_SECONDS = 1e-3
MAX_SECONDS = min(2_000_000, threading.TIMEOUT_MAX)

Item = TypeVar("Item")
_Call = TypeVar("_Call", bound=Callable)

# Which part of a job: (K, N), the K-th of N.
Share = tuple[int, int]
ALL: Share = (1, 1)

# The second half: a URL that went through pathlib, which joins slashes.
_URL = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+)://|(s3|gs|gcs|az|abfss?|hf|hdfs|https?|ftp|file):/", re.IGNORECASE
)
# A drive and a folder of it, or a share of the network.
_WINDOWS_PATH = re.compile(r"([A-Za-z]):[\\/]+(.*)|\\\\[^\\]", re.DOTALL)


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int: an int, or what stands for one (of numpy, of torch), but no bool.

    Raises OptionError unless low <= value <= high; a `high` of None is no limit.
    """
    number = None
    with suppress(TypeError):
        if not isinstance(value, bool | np.bool_):  # numpy before 2.1 takes its own for numbers
            number = operator.index(value)
    if number is None or number < low or (high is not None and number > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise OptionError(f"{name} is {brief(value)}: choose a whole number {limits}")
    return number


def choice(name: str, value: Any, choices: Collection[str]) -> str:
    """`value`, one of the choices. Raises OptionError if it is none."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{name} is {brief(value)}: choose one of {', '.join(choices)}")
    return value


def flag(name: str, value: Any) -> bool:
    """A bool, from one of numpy as well. Raises OptionError for anything else."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(f"{name} is {brief(value)}: choose True or False")
    return bool(value)


def is_number(value: Any) -> bool:
    """True for a finite real number, of Python or numpy; a bool is not."""
    with suppress(OverflowError):  # of an int beyond all floats
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    return False


def number(
    name: str, value: Any, low: float | None = None, high: float | None = None, why: str = ""
) -> float:
    """A number as a float.

    Args:
        name: name of the argument, for the message.
        value: its value.
        low, high: limits, None for none; there is no lower one without an upper one.
        why: the reason for a limit, for the message.

    Raises:
        OptionError: the number is not finite, or not low <= number <= high.
    """
    least = -inf if low is None else low
    most = inf if high is None else high
    if is_number(value) and least <= value <= most:
        return float(value)
    limits = "" if high is None else f" of at most {high}"
    limits = limits if low is None else f" from {low} to {high}"
    raise OptionError(f"{name} is {brief(value)}: choose a number{limits}{why}")


def numbers_of(name: str, value: Any, count: int, each: str, low: float = -inf) -> np.ndarray:
    """An array of numbers (count,), one per `each`: "sample" or "mask".

    Raises OptionError for another shape or a type that is no number, and unless all of them are
    finite and at least `low`.
    """
    found = np.asarray(value)
    if found.shape != (count,) or found.dtype.kind not in "biuf":
        shown = f"{found.dtype} {found.shape}" if found.ndim else brief(value)
        raise OptionError(f"{name} is {shown}: give an array, one number per {each}, ({count},)")
    if len(bad := np.flatnonzero(~(np.isfinite(found) & (found >= low)))):
        least = "" if low == -inf else f" of at least {low}"
        raise OptionError(
            f"{name} must be finite numbers{least}; {each} {bad[0]} has {found[bad[0]]}"
        )
    return found


def part_of_job(value: Any) -> Share:
    """(K, N), the K-th of N parts of a job, as ints.

    Raises OptionError unless it is a tuple of two whole numbers, K from 1 to N.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise OptionError(f"part is {brief(value)}: choose (K, N), for the K-th of N parts")
    count = whole_number("part", value[1], 1)
    return whole_number("part", value[0], 1, count), count


def share_of(items: Sequence[Item], part: Share) -> Sequence[Item]:
    """The items of the K-th of N parts of a job: every N-th, from the K-th on."""
    number, count = part
    return items[number - 1 :: count]


_PREFIXES = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGTP]?)(i?)B\s*")


def bytes_of(name: str, value: Any) -> int:
    """A number of bytes: a whole number, or a text with a unit, such as "500 GB".

    Raises OptionError unless it is one, of at least 1.
    """
    if not isinstance(value, str):
        return whole_number(name, value, 1)
    size = 0.0
    if found := _SIZE.fullmatch(value):
        count, prefix, binary = found.groups()
        size = float(count) * (1024 if binary else 1000) ** _PREFIXES.index(prefix.upper())
    if size < 1:
        raise OptionError(f"{name} is {brief(value)}: choose a size such as '500 GB' or '1.5 TB'")
    return int(size)


def torch_subset(value: Any) -> tuple[Any, list[Any]]:
    """The dataset that a `torch.utils.data.Subset` selects from, and its indices.

    A Subset of a Subset has several, the outermost first: see `select_nested`. Anything else is
    returned as it is, without indices. torch need not be loaded to tell.
    """
    found = []
    while (type(value).__module__, type(value).__name__) == ("torch.utils.data.dataset", "Subset"):
        found.append(value.indices)
        value = value.dataset
    return value, found


def select_nested(dataset: Any, selections: list[Any]) -> Any:
    """The part of a dataset that the indices of nested Subsets, found by `torch_subset`, select.

    They mean what they mean as an index of the dataset: a list of bools is a mask, and numbers are
    not rounded. Raises OptionError for indices without a dimension, and what the dataset raises.
    """
    for indices in reversed(selections):
        found = np.asarray(indices)  # a tensor of one element would count as an integer
        if found.ndim == 0:
            raise OptionError(f"the indices of a torch Subset are {brief(indices)}: choose a list")
        dataset = dataset[found]
    return dataset


def local_path(name: str, value: str | os.PathLike[str]) -> Path:
    """A path of this machine, with `~` expanded.

    Raises OptionError for what is not a path, and for a URL or a path of Windows, which `Path`
    would take for a folder named `s3:` or `D:\\packed`.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        raise OptionError(
            f"{name} is {brief(value)}: give a path as text; that of the current folder is '.'"
        )
    if "\0" in text:
        raise OptionError(f"{name} is {brief(value)}: give a path without a NUL character")
    refuse_url(name, text)
    refuse_windows_path(name, text)
    # Keeps "~" if there is no such home folder, where Path.expanduser raises RuntimeError.
    return Path(os.path.expanduser(text))  # noqa: PTH111


def check_can_be_folder(path: Path, choose: str) -> None:
    """Raise OptionError if a path, or one above it, is there and is not a folder.

    Args:
        choose: what to give instead, for the message.
    """
    existing = path.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        what = "a file" if existing.exists() else "a link to what does not exist"
        raise OptionError(f"{path}: {existing} is {what}; {choose}")


def paths_of(name: str, value: Any) -> list[Path]:
    """The paths that a path, a glob pattern, or a list of both stands for, in order.

    A pattern stands for what it matches, sorted by name; a path that exists is never a pattern.

    Raises OptionError for what is not a path, such as a Dataset, for a pattern that matches
    nothing, an empty list, and a path that is given twice.
    """
    refuse_dataset(name, value)
    paths: list[Path] = []
    for each in listed(value):
        path = local_path(name, each)
        if path.exists() or not glob.has_magic(str(path)):
            paths.append(path)
        elif matches := sorted(glob.glob(str(path))):
            paths += map(Path, matches)
        else:
            raise OptionError(f"{name} is {str(each)!r}: nothing matches this pattern")
    if not paths:
        raise OptionError(f"{name} is an empty list: name at least one")
    seen: dict[Path, Path] = {}
    for path in paths:
        if (first := seen.setdefault(path.resolve(), path)) is not path:
            raise OptionError(f"{name} has the same folder twice: {first} and {path}")
    return paths


def listed(value: Any) -> list[Any]:
    """The items of an iterable, as a list; a path, a URL or anything else as a list of one."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike)
    return list(value) if several else [value]


def items_of(value: Any) -> Any:
    """An option that takes several items, of which None is none, as an empty tuple."""
    return () if value is None else value


def patterns_of(name: str, value: Any) -> list[str | Path]:
    """A path, a pattern, a URL, or a list of them as a list, not yet expanded.

    Raises OptionError for anything else, such as a Dataset, which would be iterated over.
    """
    if hasattr(value, "spec"):
        raise OptionError(f"{name} is {brief(value)}: give a path, a pattern, or a list of them")
    patterns: list[str | Path] = []
    for each in listed(value):
        if not isinstance(each, str | os.PathLike):
            raise OptionError(f"{name} has {brief(each)}: give paths and patterns")
        patterns.append(each if isinstance(each, str) else Path(each))
    return patterns


# Of the keys of a TypedDict of keyword arguments, their defaults, see `keywords_of`.
_DEFAULTS: dict[type, Mapping[str, Any]] = {}


class _Unchanged:
    """The default of an option that a call leaves as it is, in signatures."""

    def __repr__(self) -> str:
        return "<unchanged>"


UNCHANGED = _Unchanged()


def keywords_of(keywords: type, *sources: Callable, **defaults: Any) -> None:
    """Declare the defaults of the keyword arguments in a TypedDict, for signatures.

    Args:
        keywords: as in `**options: Unpack[Keywords]`; `checks_options` shows its keys in their
            place.
        sources: dataclasses and functions that have arguments of these names.
        defaults: defaults of other arguments, or where they differ from those of the sources.
    """
    found: dict[str, Any] = {}
    for source in sources:
        for name, parameter in inspect.signature(source).parameters.items():
            found.setdefault(name, parameter.default)
    found |= defaults
    _DEFAULTS[keywords] = {name: found[name] for name in keywords.__annotations__}


# Call → its options that people look for in another call. A test compares them with signatures.
PLACES = {
    "Loader": "max_masks mask_select pad_to_max shuffle order bucket_by relations batch_size "
    "threads device io prefetch drop_last pad_last seed timeout max_dropped",
    "open": "mask_format coordinates transform verify_checksums duplicates features cache_dir "
    "cache_size",
    "pack": "image_size fit resample empty samples_per_shard workers md5sums max_rejects",
    "TarDataset": "index_folder cache_dir_size",
}
_PLACE_OF = {name: place for place, names in PLACES.items() for name in names.split()}


@overload
def checks_options(call: _Call, /) -> _Call: ...
@overload
def checks_options(**elsewhere: str) -> Callable[[_Call], _Call]: ...
def checks_options(call: Any = None, /, **elsewhere: str) -> Any:
    """A decorator of what users call: an option that it does not have is an OptionError.

    The message says what is meant, or where the option belongs. Of `**options: Unpack[Keywords]`
    the keys of Keywords are options, and the signature has them with the defaults that
    `keywords_of` declares. On a class, it applies to `__init__`, `__call__` and the public methods;
    it may also decorate a single method.

    Args:
        elsewhere: options of other libraries → what to use here.
    """
    if call is None:
        return functools.partial(checks_options, **elsewhere)
    if not isinstance(call, type):
        return _checked(elsewhere, call, method="." in call.__qualname__.rpartition(">.")[2])
    for name, member in [*vars(call).items()]:
        if name in ("__init__", "__call__") or not name.startswith("_"):
            if inspect.isfunction(member):
                setattr(call, name, _checked(elsewhere, member, method=True))
            elif isinstance(member, classmethod):
                setattr(call, name, classmethod(_checked(elsewhere, member.__func__, method=True)))
    return call


def _checked(elsewhere: Mapping[str, str], call: Callable, method: bool) -> Callable:
    signature = _signature(call)
    own = [*signature.parameters.values()][method:]
    alone = {each.name for each in own if each.kind is each.KEYWORD_ONLY}
    known = alone | {each.name for each in own if each.kind is each.POSITIONAL_OR_KEYWORD}
    several = any(each.kind is each.VAR_POSITIONAL for each in own)
    positional = inf if several else method + len(own) - len(alone)

    @functools.wraps(call)
    def checked(*args, **options):
        if len(args) <= positional and known.issuperset(options):
            return call(*args, **options)
        owner = call.__name__
        if method:
            cls = args[0] if isinstance(args[0], type) else type(args[0])
            owner = cls.__name__ if owner == "__init__" else f"{cls.__name__}.{owner}"
        if len(args) > positional:
            raise OptionError(
                f"{owner} has no place for {brief(args[positional])}: give options by their "
                f"names: {', '.join(sorted(alone)) or 'it has none'}"
            )
        name = min(options.keys() - known)
        near = get_close_matches(name, known, 1)
        hint = f"{f': is {near[0]} meant?' if near else ';'} valid options: "
        hint += ", ".join(sorted(known)) or "none"
        if place := _PLACE_OF.get(name):
            hint = f": it is an option of {place}"
        if meant := elsewhere.get(name):
            hint = f": use {meant}"
        raise OptionError(f"{owner} has no option {brief(name)}{hint}")

    checked.__signature__ = signature
    return checked


def _signature(call: Callable) -> inspect.Signature:
    """The signature of a call, with each of its keywords in place of `**options`."""
    signature = inspect.signature(call)
    own = [*signature.parameters.values()]
    if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature
    keyword = inspect.Parameter.KEYWORD_ONLY
    (keywords,) = get_args(own.pop().annotation)
    for name, kind in keywords.__annotations__.items():
        default = _DEFAULTS[keywords][name]
        own.append(inspect.Parameter(name, keyword, default=default, annotation=kind))
    return signature.replace(parameters=own)


def refuse_dataset(name: str, value: Any) -> None:
    """Raise OptionError for a dataset, which would be iterated over, sample by sample."""
    if hasattr(value, "spec"):
        raise OptionError(
            f"{name} is {brief(value)}: give the path of its pack, or that of a file that "
            "ds.save_selection has written, where a selection is accepted"
        )


def looks_like_url(text: str) -> bool:
    """True for a text that begins like a URL, also one that went through pathlib."""
    return _URL.match(text) is not None


def refuse_url(name: str, text: str) -> None:
    """Raise OptionError for a URL."""
    if found := _URL.match(text):
        shown = re.split("[?#]", text)[0]  # a query may be a signature
        shown = re.sub("(:/+)[^/]*@", r"\1", shown)  # and a user has a password
        raise OptionError(
            f"{name} is {shown!r}: {(found[1] or found[2]).lower()} URLs are not supported; give a "
            "path of this machine, such as a mounted folder or a local copy"
        )


def refuse_windows_path(name: str, text: str) -> None:
    """Raise OptionError for a path of Windows, unless there is a file or folder of that name."""
    found = _WINDOWS_PATH.match(text)
    if found is None or os.path.lexists(text.partition("/")[0]):
        return
    remedy = "mount the share, and give the path of the mount"
    if found[1] is not None:
        inner = found[2].replace("\\", "/")
        remedy = f"give a path of this system; in WSL, {f'/mnt/{found[1].lower()}/{inner}'!r}"
    raise OptionError(
        f"{name} is {text!r}: a path of Windows, which here is a name in the current folder; "
        f"{remedy}"
    )


# ---------------------------------------------------------------------------------------- options

_KEY = "option"  # in the metadata of a field


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The declaration of an option, besides its name, type and default.

    Attributes:
        help: what it does, without a full stop; "" where the docstring of a public call says it.
        choices: the texts that it may be.
        low, high: the least and the largest number; None for no limit.
        multiple: what a whole number must be a multiple of.
        why: the reason for a limit, for the message.
        none: what None is called on the command line, in messages and in the help; may be empty.
        metavar: what the command line calls its value.
    """

    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    multiple: int = 1
    why: str = ""
    none: str = "none"
    metavar: str | None = None


def option(default: Any, help: str = "", **declared: Any) -> Any:
    """A field of `Options` with this default and help; see `Declaration` for the others."""
    return dataclasses.field(default=default, metadata={_KEY: Declaration(help, **declared)})


class Options:
    """The base of groups of options; a value that cannot be used is an OptionError."""

    def __init_subclass__(cls) -> None:
        """Complete the documentation of the class by that of its options."""
        lines = []
        for name, field in (vars(cls) | getattr(cls, "__dataclass_fields__", {})).items():
            if (declared := _declared(field)) and declared.help:
                text = f"    {name}: {text_of(declared, field.default)}"
                lines.append(textwrap.fill(text, 96, subsequent_indent=" " * 8))
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Options:", *lines])

    def __post_init__(self) -> None:
        """Check every option, and store numbers as Python's, whatever their type."""
        for name, (declared, kind, optional) in declarations(type(self)).items():
            value = getattr(self, name)
            low = declared.low
            high = declared.high
            why = f"; {declared.why}" if declared.why else ""
            if value is None and optional:
                continue
            if declared.choices:
                value = choice(name, value, declared.choices)
            elif kind is bool:
                value = flag(name, value)
            elif kind is Path:
                value = local_path(name, value)
            elif kind is float:  # 1 and 1.0 are the same option
                value = number(name, value, low, high, why)
            elif (value := whole_number(name, value, low, high)) % declared.multiple:
                multiple = declared.multiple
                raise OptionError(f"{name} is {value}: choose a multiple of {multiple}{why}")
            object.__setattr__(self, name, value)


@functools.cache
def declarations(cls: type[Options]) -> dict[str, tuple[Declaration, type, bool]]:
    """Name of each declared option → its declaration, its type, and whether it may be None.

    Those of the class itself come first, then those that it inherits.
    """
    kinds = typing.get_type_hints(cls)
    found = {}
    for name in (name for each in cls.__mro__ for name in vars(each).get("__annotations__", ())):
        if declared := _declared(cls.__dataclass_fields__.get(name)):
            given = get_args(kinds[name]) or (kinds[name],)
            kind = next(each for each in given if each is not NoneType)
            found[name] = declared, kind, NoneType in given
    return found


def text_of(declared: Declaration, default: Any) -> str:
    """The help of an option, with its bounds and its default, if that need be said."""
    shown = declared.none if default is None else default
    if shown is False or shown == "":
        return declared.help
    within = f"{limits}, " if (limits := bounds(declared)) else ""
    return f"{declared.help} ({within}default: {shown})"


def bounds(declared: Declaration) -> str:
    """The bounds in words; none where only files set the upper one."""
    low = declared.low
    high = declared.high
    if declared.choices or high is None or high >= 1 << 24:
        return ""
    found = f"at most {high}" if low is None else f"{low} to {high}"
    return f"a multiple of {declared.multiple}, {found}" if declared.multiple > 1 else found


def _declared(field: Any) -> Declaration | None:
    return field.metadata.get(_KEY) if isinstance(field, dataclasses.Field) else None
