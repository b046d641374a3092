"""The parsers of the commands: each is made of the signature and the docstring of a function.

A parameter before `*` is an argument, one after it is an option; its annotation is the type, its
default the default. The docstring has the description, a section `Args:` with the help of each
parameter, as `name (METAVAR): help`, and what follows the options in the help. A parameter that is
a dataclass stands for its fields, which are options: their help is in the same section, or, if they
are declared options (`sa1bpack.options`), with them.
"""

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from sa1bpack.cli import exits
from sa1bpack.errors import OptionError
from sa1bpack.wording import brief

# Command, which is also the name of its function → module of this package, line in the help.
COMMANDS = {
    "pack": ("packs", "decode tars into shards"),
    "finalize": ("packs", "make one pack of what the parts of a job have packed"),
    "verify": ("packs", "check a pack against its checksums"),
    "repair": ("packs", "rebuild what is damaged in a pack from its tars"),
    "merge": ("packs", "merge packs into one, by links where possible"),
    "export": ("reading", "write the annotations of a pack as SA-1B JSON or COCO JSON"),
    "subset": ("reading", "select samples of a pack, and save their ids in a small file"),
    "info": ("reading", "show what is in a pack, or what this machine has"),
    "show": ("reading", "draw samples of a pack with their masks, as a PNG"),
    "report": ("reading", "write a report on a pack, as an HTML page"),
    "derive": ("reading", "compute an array per image or per mask, such as embeddings"),
    "bench": ("reading", "measure this machine with a pack: memory, disk, device, loaders"),
}

# What the functions behind the commands call what they are given, where names differ.
_NAMES_OF_PACKS = ("pack", "path", "root")
_OTHER_NAMES = {"duration": "--seconds"}

# Commands by the names that people look for.
_ALSO_CALLED = {"check": "verify", "convert": "pack", "draw": "show", "filter": "subset"}
_ALSO_CALLED |= {"join": "merge", "select": "subset", "stats": "info"}

_OUTPUT = "-o/--output"  # as argparse names it

_FIRST_STEPS = """\
first steps:
  sa1bpack pack sa_000000.tar -o packed    # again: resumes, or adds tars
  sa1bpack verify packed
  sa1bpack show packed -o sheet.png        # look at it before you train

"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse a command line; among the options, `run` calls the command, and returns its exit code.

    `shown_names` of the result has each option's name on the command line, for messages.

    Raises SystemExit after --help and --version, and with exits.USAGE for wrong usage. Only the
    module of the command that is named is loaded, and none by `sa1bpack --help`.
    """
    main = _main_parser()
    if not arguments:
        main.print_help()
        main.exit(exits.USAGE)
    name = arguments[0]
    words = arguments[1:]
    if name not in COMMANDS:
        main.refuse_unknown([name])
        main.parse_args([name])  # --help and --version end here
        near = get_close_matches(name.lower(), COMMANDS, 1)
        near = [_ALSO_CALLED[name]] if name in _ALSO_CALLED else near
        meant = f"is {near[0]} meant?" if near else f"the commands are {', '.join(COMMANDS)}"
        main.error(f"there is no command {name!r}: {meant}")
    parser = command_parser(name)
    parser.refuse_unknown(words)
    # Only plain parsing treats what follows "--" as arguments.
    options = (parser.parse_args if "--" in words else parser.parse_intermixed_args)(words)
    shown = {
        action.dest: action.option_strings[-1] if action.option_strings else action.metavar
        for action in parser._actions  # argparse has no public list of them
    }
    others = {f"{name}s": flag for name, flag in shown.items()}
    if "PACK" in shown.values():
        others |= dict.fromkeys(_NAMES_OF_PACKS, "PACK")
    options.run = partial(_run, _function(name), vars(options).copy())
    options.shown_names = {**_OTHER_NAMES, **others, **shown}
    return options


def _function(command: str) -> Callable[..., int]:
    return getattr(import_module(f"sa1bpack.cli.{COMMANDS[command][0]}"), command)


def _run(function: Callable[..., int], values: Mapping[str, Any]) -> int:
    """Call a command with what was parsed; raises OptionError for declared options, too."""
    given = {}
    for name, kind in get_type_hints(function).items():
        if dataclasses.is_dataclass(kind):
            fields = {field.name: values[field.name] for field in dataclasses.fields(kind)}
            given[name] = kind(**fields)
        elif name in values:
            given[name] = values[name]
    return function(**given)


# ------------------------------------------------------------------------------ types of arguments


def one_or_several(paths: list[str]) -> str | list[str]:
    """The argument of `sa1bpack.open`: one path alone, which may be a selection, or a list.

    Raises OptionError for a URL, which Python's call takes if there is a cache.
    """
    from sa1bpack.paths import refuse_url

    for path in paths:
        refuse_url("pack", path)
    return paths[0] if len(paths) == 1 else paths


@dataclasses.dataclass(frozen=True)
class Job:
    """The machines that work on a command: this one, all of it or a part, or a Ray cluster."""

    part: str | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None

    @property
    def share(self) -> tuple[int, int] | None:
        """(3, 8) for "3/8", the third of eight parts. Raises OptionError."""
        if self.part is None:
            return None
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", self.part)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise OptionError(
                f"part is {brief(self.part)}: choose K/N with K from 1 to N, such as 3/8"
            )
        return int(found[1]), int(found[2])

    @property
    def prefix(self) -> str:
        """ "part 3/8: ", for what is said of a part; otherwise nothing."""
        return f"part {self.part}: " if self.part else ""

    def on_ray(self, **without: Any) -> bool:
        """True on a Ray cluster.

        Raises OptionError if then a part or one of the other options is given, or if only an
        address is.
        """
        if self.engine != "ray":
            if self.address is not None:
                raise OptionError("--address is that of a Ray cluster: add --engine ray")
            return False
        without = {"part": self.part, **without}
        if given := [name for name, value in without.items() if value not in (None, False, [])]:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise OptionError(f"--engine ray does all of the work: leave out {flags}")
        return True


# ---------------------------------------------------------------------------------------- messages


def in_flags(message: str, shown_names: Mapping[str, str]) -> str:
    """The message of an error, with flags in place of the Python names of options.

    Args:
        shown_names: name of each of the command's options in Python → on the command line:
            "max_masks" → "--max-masks", or "name" → "NAME" for one without a flag.
    """
    choices = "|".join(map(re.escape, shown_names))
    says = "(?= is | must be |: the pack has | has the same )"
    return re.sub(
        rf"(^|\n  )({choices}){says}|`({choices})`",
        lambda found: (found[1] or "") + shown_names[found[2] or found[3]],
        message,
    )


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong with a command line, and what was meant.

    An option is written out: an abbreviation would change its meaning, or fail, when another option
    is added.
    """

    def __init__(self, **options):
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False, formatter_class=form)

    def refuse_unknown(self, words: list[str]) -> None:
        """Leave with exits.USAGE if one of the words is an option that there is not.

        That is said before anything else: `--dry` must not be answered with what is missing.
        """
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0]
            short = name[:2]  # what follows it may be its value
            known = name in self._option_string_actions or short in self._option_string_actions
            if re.match(r"--?[A-Za-z]", name) and " " not in name and not known:
                self.error(f"there is no option {name}{self._meant(name)}")

    def error(self, message: str) -> NoReturn:
        """Leave with exits.USAGE; `--help` has the usage."""
        if message.endswith(f"required: {_OUTPUT}"):
            message += ", which names what is written"
        see = " See" if message.endswith("?") else "; see"
        self.exit(exits.USAGE, f"sa1bpack: {message}{see} `{self.prog} --help`\n")

    def _meant(self, name: str) -> str:
        """The options nearest to an unknown one; also the arguments, which have no flag."""
        known = {}
        for action in self._actions:
            for word in action.option_strings or (action.dest, str(action.metavar).lower()):
                known[word.lstrip("-")] = (action.option_strings or [f"{action.metavar}"])[-1]
        word = name.lstrip("-").lower()
        stem = word.removesuffix("s") or word
        near = [each for each in known if each.startswith(stem)]
        near = near or get_close_matches(word, known, 1)
        found = [*dict.fromkeys(known[each] for each in near)]
        if not found:
            return ""
        if not found[0].startswith("-"):
            return f": {found[0]} is given without a flag"
        flags = [flag for flag in found if flag.startswith("-")]
        return f": is {' or '.join(flags[:4])} meant?"


# ----------------------------------------------------------------------------------------- parsers


def _main_parser() -> Parser:
    from sa1bpack import __version__

    parser = Parser(
        prog="sa1bpack",
        usage="sa1bpack [-h] [--version] COMMAND ...",
        description="Decode SA-1B tars once into memory-mapped Zarr v3 shards, and check them.",
        epilog=_FIRST_STEPS + exits.EXPLAINED,
    )
    parser.add_argument("--version", action="version", version=f"sa1bpack {__version__}")
    listed = "\n".join(f"  {name:<8} {summary}" for name, (_, summary) in COMMANDS.items())
    commands = parser.add_argument_group("commands", listed)
    commands.add_argument(
        "command", nargs="?", metavar="COMMAND", help="one of these; see `sa1bpack COMMAND --help`"
    )
    return parser


def command_parser(name: str) -> Parser:
    """The parser of one command, a key of COMMANDS."""
    from sa1bpack.options import Declaration, declarations

    function = _function(name)
    description, helps, epilog = _sections(inspect.getdoc(function))
    parser = Parser(
        prog=f"sa1bpack {name}",
        description=description,
        epilog=f"{epilog}\n\n{exits.SUMMARY}".lstrip(),
    )

    def add(owner: Callable, is_option: bool) -> None:
        """Add the parameters of a command, or the fields of a record in it."""
        kinds = get_type_hints(owner)
        for each in inspect.signature(owner).parameters.values():
            kind = kinds[each.name]
            if not dataclasses.is_dataclass(kind):
                declared = Declaration(helps[each.name][1], none="", metavar=helps[each.name][0])
                option = is_option or each.kind is each.KEYWORD_ONLY
                _add(parser, each.name, kind, each.default, declared, option)
            elif each.name in helps:
                group = parser.add_argument_group(helps[each.name][1])
                for field, declared in declarations(kind).items():
                    field_kind = declared.kind | None if declared.optional else declared.kind
                    _add(group, field, field_kind, declared.default, declared, True)
            else:
                add(kind, True)

    add(function, False)
    return parser


def _sections(documentation: str) -> tuple[str, dict[str, tuple[str | None, str]], str]:
    """The description, name of a parameter → (metavar, help), and what follows in the help."""
    description, _, rest = documentation.partition("\n\nArgs:\n")
    arguments, _, epilog = rest.partition("\n\n")
    entries = re.findall(
        r"^ {4}(\w+)(?: \((.+?)\))?: (.*(?:\n {8}.*)*)", arguments, flags=re.MULTILINE
    )
    helps = {name: (metavar or None, " ".join(text.split())) for name, metavar, text in entries}
    return description, helps, epilog


def _add(
    group: argparse._ActionsContainer,
    name: str,
    kind: Any,
    default: Any,
    declared: Any,
    is_option: bool,
) -> None:
    """Add one argument, or one option, of a command; bounds are checked when the command runs."""
    required = default is inspect.Parameter.empty
    if optional := NoneType in get_args(kind):
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    several = get_origin(kind) if get_origin(kind) in (list, tuple) else None
    kind = get_args(kind)[0] if several else kind
    shown = None if required or several else default
    text = dataclasses.replace(declared, default=shown).text
    details: dict[str, Any] = {"help": text.replace("%", "%%")}  # argparse would expand it
    words = [name]
    if is_option:
        words = ["-o"] * (name == "output") + [f"--{name.replace('_', '-')}"]
        details |= {"required": required, "default": None if required else default}
    if kind is bool:
        group.add_argument(*words, action="store_true", **details)
        return
    more = ""
    none = None
    if several is tuple:
        details["nargs"] = "+"
        more = "; if it is an argument of its own, put it first"
    elif several and is_option:
        details |= {"action": "append", "default": list(default)}
    elif several:
        details["nargs"] = "+" if required else "*"
    elif optional and declared.none.isalpha():  # else it only describes the default
        more = f", nor {declared.none!r}"
        none = declared.none
    if kind in _NUMBERS:
        details["type"] = partial(_number, kind, more, none)
    choices = get_args(kind) if get_origin(kind) is Literal else declared.choices
    group.add_argument(*words, choices=choices or None, metavar=declared.metavar, **details)


_NUMBERS = {int: "a whole number", float: "a number"}


def _number(kind: type, more: str, none: str | None, text: str) -> float | None:
    """A word of the command line as a number.

    Args:
        more: follows, in messages, what the text is not.
        none: the word that stands for None.
    """
    try:
        return None if text == none else kind(text)
    except ValueError:
        what = f"{text!r} is not {_NUMBERS[kind]}{more}"
        raise argparse.ArgumentTypeError(what) from None
