"""The parsers of the commands: each is made of the signature and the docstring of a function.

A parameter before `*` is an argument, one after it is an option; its annotation has the type and a
`Help`, its default is the default. A parameter that is a dataclass stands for its fields, which are
options, whose help is declared with them (`sa1bpack.options`); a dict whose `Help` names such a
class holds those options that are on the command line. The docstring is the description,
and from `examples:` on what follows the options in the help.
"""

import argparse
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

from sa1bpack.cli import exits
from sa1bpack.errors import OptionError
from sa1bpack.urls import is_pack_url
from sa1bpack.wording import brief

if TYPE_CHECKING:
    from sa1bpack.options import Declaration, Options

# Command, which is also the name of its function → module of this package, line in the help.
COMMANDS = {
    "pack": ("packs", "decode tars into shards"),
    "finalize": ("packs", "make one pack of what the parts of a job have packed"),
    "verify": ("checking", "check a pack against its checksums"),
    "repair": ("checking", "rebuild what is damaged in a pack from its tars"),
    "merge": ("packs", "merge packs into one, by links where possible"),
    "export": ("selecting", "write the annotations of a pack as SA-1B JSON or COCO JSON"),
    "subset": ("selecting", "select samples of a pack, and save their ids in a small file"),
    "info": ("looking", "show what is in a pack, or what this machine has"),
    "show": ("looking", "draw samples of a pack with their masks, as a PNG"),
    "report": ("looking", "write a report on a pack, as an HTML page"),
    "explore": ("looking", "serve a page to look at a pack, with filters and selections"),
    "attach": ("features", "add arrays or text that exist: captions, latents, maps"),
    "derive": ("selecting", "compute an array per image or per mask, such as embeddings"),
    "bench": ("looking", "measure this machine with a pack: memory, disk, device, loaders"),
}

# What the functions behind the commands call what they are given, where names differ.
_NAMES_OF_PACKS = ("pack", "path", "root")
_OTHER_NAMES = {"duration": "--seconds"}

# Commands by the names that people look for.
_ALSO_CALLED = {
    "check": "verify",
    "convert": "pack",
    "browse": "explore",
    "draw": "show",
    "filter": "subset",
    "join": "merge",
    "select": "subset",
    "serve": "explore",
    "stats": "info",
    "view": "explore",
}

_OUTPUT = "-o/--output"  # as argparse names it

_FIRST_STEPS = """\
first steps:
  sa1bpack pack sa_000000.tar -o packed    # again: resumes, or adds tars
  sa1bpack verify packed
  sa1bpack show packed                     # sheet.png: look before you train

"""


@dataclasses.dataclass(frozen=True)
class Help:
    """What the help of a command says of a parameter, as `Annotated[type, Help(...)]`.

    Attributes:
        text: what it does; of a group of declared options, its title.
        metavar: what its value is called.
        choices: the values that it may have.
        given_of: group of options of which the parameter, a dict, has those that are given; a
            default is not.
    """

    text: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    given_of: "type[Options] | None" = None


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
    name, *words = arguments
    if name not in COMMANDS:
        main.refuse_unknown([name])
        main.parse_args([name])  # --help and --version end here
        main.error(f"there is no command {name!r}: {_meant_command(name)}")
    parser = command_parser(name)
    parser.refuse_unknown(words)
    # Only plain parsing treats what follows "--" as arguments.
    options = (parser.parse_args if "--" in words else parser.parse_intermixed_args)(words)
    options.run = partial(_run, _function(name), vars(options).copy())
    options.shown_names = parser.shown_names()
    return options


def _meant_command(name: str) -> str:
    near = get_close_matches(name.lower(), COMMANDS, 1)
    meant = _ALSO_CALLED.get(name) or "".join(near)
    return f"is {meant} meant?" if meant else f"the commands are {', '.join(COMMANDS)}"


def _function(command: str) -> Callable[..., int]:
    module, _ = COMMANDS[command]
    return getattr(import_module(f"sa1bpack.cli.{module}"), command)


def _run(function: Callable[..., int], values: Mapping[str, Any]) -> int:
    """Call a command with what was parsed; raises OptionError for declared options, too."""
    parameters: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, kind in get_type_hints(function).items():
        help = next(iter(get_args(hints[name])[1:]), None)
        if isinstance(help, Help) and help.given_of is not None:
            names = [field.name for field in dataclasses.fields(help.given_of)]
            parameters[name] = {option: values[option] for option in names if option in values}
        elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields = {field.name: values[field.name] for field in dataclasses.fields(kind)}
            parameters[name] = kind(**fields)
        elif name in values:
            parameters[name] = values[name]
    return function(**parameters)


# ------------------------------------------------------------------------------ types of arguments


def one_or_several(paths: Sequence[str]) -> str | list[str]:
    """The argument of `sa1bpack.open`: one path or URL alone, which may be a selection, or a list.

    Raises OptionError for a URL of what is no pack.
    """
    from sa1bpack.paths import refuse_url

    for path in paths:
        if not is_pack_url(path):
            refuse_url("pack", path)
    return paths[0] if len(paths) == 1 else list(paths)


# Of the options with which a command is shared among machines, those that mean the same for all.
Engine = Annotated[
    str,
    Help(
        "where the work is done: on this machine, or, in tasks, on a Ray cluster whose nodes share "
        "all folders",
        choices=("local", "ray"),
    ),
]
Address = Annotated[
    str | None,
    Help("of the Ray cluster (default: RAY_ADDRESS, or this machine alone)", "ADDRESS"),
]


@dataclasses.dataclass(frozen=True)
class Machines:
    """The machines that work on a command: this one, all of it or a part, or a Ray cluster.

    Attributes:
        part: K/N, the K-th of N parts, as on the command line; None for all.
        engine: local or ray.
        address: of the Ray cluster.
    """

    part: str | None
    engine: str
    address: str | None

    @property
    def share(self) -> tuple[int, int] | None:
        """(3, 8) for "3/8", the third of eight parts. Raises OptionError."""
        if self.part is None:
            return None
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", self.part)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise OptionError(
                f"part is {brief(self.part)}: choose K/N with K from 1 to N, such as 3/8"
            )
        return int(match[1]), int(match[2])

    @property
    def prefix(self) -> str:
        """ "part 3/8: ", for what is said of a part; otherwise nothing."""
        return f"part {self.part}: " if self.part else ""

    def on_ray(self, **other_options: Any) -> bool:
        """True on a Ray cluster.

        Raises OptionError if then a part or one of the other options is given, or if only an
        address is.
        """
        if self.engine != "ray":
            if self.address is not None:
                raise OptionError("--address is that of a Ray cluster: add --engine ray")
            return False
        refused = {"part": self.part, **other_options}
        flags = [_flag(name) for name, value in refused.items() if value not in (None, False, [])]
        if flags:
            raise OptionError(f"--engine ray does all of the work: leave out {' and '.join(flags)}")
        return True


# ---------------------------------------------------------------------------------------- messages


def in_flags(message: str, shown_names: Mapping[str, str]) -> str:
    """The message of an error, with flags in place of the Python names of options.

    Args:
        shown_names: name of each of the command's options in Python → on the command line:
            "max_masks" → "--max-masks", or "name" → "NAME" for one without a flag.
    """
    names = "|".join(map(re.escape, shown_names))
    verbs = "(?= is | must be |: the pack has | has the same )"
    return re.sub(
        rf"(^|\n  )({names}){verbs}|`({names})`",
        lambda match: (match[1] or "") + shown_names[match[2] or match[3]],
        message,
    )


class Parser(argparse.ArgumentParser):
    """A parser that says in one line what is wrong with a command line, and what was meant.

    An option is written out: an abbreviation would change its meaning, or fail, when another option
    is added.
    """

    def __init__(self, **options: Any):
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False, formatter_class=form)

    def shown_names(self) -> dict[str, str]:
        """Name of each option in Python → on the command line, see `in_flags`."""
        shown = {}
        for action in self._actions:  # argparse has no public list of them
            words = action.option_strings or [str(action.metavar)]
            shown[action.dest] = words[-1]
        plurals = {f"{name}s": word for name, word in shown.items()}
        names = {**_OTHER_NAMES, **plurals}
        if "PACK" in shown.values():
            names |= dict.fromkeys(_NAMES_OF_PACKS, "PACK")
        return names | shown

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
        message += " See" if message.endswith("?") else "; see"
        self.exit(exits.USAGE, f"sa1bpack: {message} `{self.prog} --help`\n")

    def _meant(self, name: str) -> str:
        """The options nearest to an unknown one; also the arguments, which have no flag."""
        known = {}
        for action in self._actions:
            for flag in action.option_strings:
                known[flag.lstrip("-")] = action.option_strings[-1]
            if not action.option_strings:
                known[action.dest] = str(action.metavar)
                known[str(action.metavar).lower()] = str(action.metavar)
        word = name.lstrip("-").lower()
        stem = word.removesuffix("s") or word
        near = [other for other in known if other.startswith(stem)]
        near = near or get_close_matches(word, known, 1)
        if not near:
            return ""
        shown = list(dict.fromkeys(known[other] for other in near))
        if not shown[0].startswith("-"):
            return f": {shown[0]} is given without a flag"
        flags = [flag for flag in shown if flag.startswith("-")]
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
    from sa1bpack.options import Declaration, Options, declarations

    function = _function(name)
    documentation = inspect.getdoc(function) or ""
    description, _, rest = documentation.partition("\n\nexamples:\n")
    parser = Parser(
        prog=f"sa1bpack {name}",
        description=description,
        epilog=f"examples:\n{rest}\n\n{exits.SUMMARY}",
    )
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        kind, *extras = get_args(hints[parameter.name])
        help = extras[0]
        options = help.given_of
        if options is None and isinstance(kind, type) and issubclass(kind, Options):
            options = kind
        if options is not None:
            group = parser.add_argument_group(help.text)
            has_defaults = help.given_of is None
            for option, declaration in declarations(options).items():
                _add(group, option, declaration, is_option=True, has_default=has_defaults)
            continue
        declaration = Declaration(
            help.text,
            choices=help.choices,
            none="",
            metavar=help.metavar,
            kind=kind,
            default=parameter.default,
        )
        _add(parser, parameter.name, declaration, parameter.kind is parameter.KEYWORD_ONLY)
    return parser


def _add(
    group: argparse._ActionsContainer,
    name: str,
    declaration: "Declaration",
    is_option: bool,
    has_default: bool = True,
) -> None:
    """Add one argument, or one option, of a command; bounds are checked when the command runs.

    An option that is left out is not in the result if it is to have no default.
    """
    default = declaration.default
    required = default is inspect.Parameter.empty
    kind = declaration.kind
    if NoneType in get_args(kind):
        kind = next(alternative for alternative in get_args(kind) if alternative is not NoneType)
    several = get_origin(kind)  # a list, a tuple, or None
    if several:
        kind = get_args(kind)[0]
    if required or several:
        declaration = dataclasses.replace(declaration, default=None)
    details: dict[str, Any] = {"help": declaration.text.replace("%", "%%")}  # it would be expanded
    words = [name]
    if is_option:
        words = [_flag(name)]
        details["required"] = required
        details["default"] = declaration.default if has_default else argparse.SUPPRESS
    if name == "output":
        words.insert(0, "-o")
    if kind is bool and default is True:
        details["help"] = f"do not {declaration.help}"
        group.add_argument(
            f"--no-{name.replace('_', '-')}", dest=name, action="store_false", **details
        )
        return
    if kind is bool:
        action: Any = "store_true"
        if default is None:  # what is said either way differs from what is left out
            action = argparse.BooleanOptionalAction
        group.add_argument(*words, action=action, **details)
        return
    details["metavar"] = declaration.metavar
    if declaration.choices:
        details["choices"] = declaration.choices
    if kind in _NUMBERS:
        details["type"] = _number_type(kind, declaration, put_first=several is tuple)
    if several is tuple:
        details["nargs"] = "+"
    elif several and is_option:
        details["action"] = "append"
        if has_default:
            details["default"] = list(default)
    elif several:
        details["nargs"] = "+" if required else "*"
    group.add_argument(*words, **details)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_NUMBERS = {int: "a whole number", float: "a number"}


def _number_type(
    kind: type, declaration: "Declaration", put_first: bool
) -> Callable[[str], float | str | None]:
    """What argparse makes numbers with.

    Args:
        put_first: the option takes several numbers, and would take what follows it, too.
    """
    none = None  # the word that stands for None
    hint = ""
    if put_first:
        hint = "; if it is an argument of its own, put it first"
    elif declaration.optional and declaration.none.isalpha():  # else it only describes the default
        none = declaration.none
        hint = f", nor {none!r}"

    def number(text: str) -> float | str | None:
        if text in declaration.words:
            return text
        try:
            return None if text == none else kind(text)
        except ValueError:
            message = f"{text!r} is not {_NUMBERS[kind]}{hint}"
            raise argparse.ArgumentTypeError(message) from None

    return number
