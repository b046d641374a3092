"""The parsers of the commands: each is made of the signature and the docstring of its `run`.

A parameter before `*` is an argument, one after it is an option; its annotation is the type, its
default the default. The docstring has the description, a section `Args:` with the help of each
parameter, as `name (METAVAR): help`, and what follows the options in the help. A parameter that is
a dataclass stands for its fields, which are options: their help is in the same section, or, if they
are declared options (`sa1bpack.arguments`), with them.
"""

import argparse
import dataclasses
import inspect
import os
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Literal, NoReturn

from sa1bpack.cli import exits
from sa1bpack.errors import OptionError

# Command, which is also the name of its module → its line in the help.
COMMANDS = {
    "pack": "decode tars into shards",
    "finalize": "make one pack of what the parts of a job have packed",
    "verify": "check a pack against its checksums",
    "repair": "rebuild the damaged parts of a pack from its tars",
    "merge": "merge packs into one, by links where possible",
    "export": "write the annotations of a pack as SA-1B JSON or COCO JSON",
    "subset": "select samples of a pack, and save their ids in a small file",
    "info": "show what is in a pack, or what this machine has",
    "show": "draw samples of a pack with their masks, as a PNG",
    "report": "write a report on a pack, as an HTML page",
    "derive": "compute an array per image or per mask, such as embeddings",
    "bench": "measure this machine with a pack: memory, disk, device, loaders",
}

# What the functions behind the commands call what they are given, where names differ.
_NAMES_OF_PACKS = ("pack", "path", "root")
_OTHER_NAMES = {"seconds": "duration"}

_FIRST_STEPS = """\
first steps:
  sa1bpack pack sa_000000.tar --out packed    # again: resumes, or adds tars
  sa1bpack verify packed
  sa1bpack show packed -o sheet.png           # look at it before you train

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
    name, words = arguments[0], arguments[1:]
    if name not in COMMANDS:
        main.refuse_unknown([name])
        main.parse_args([name])  # --help and --version end here
        _refuse_command(main, name)
    command = command_parser(name)
    command.refuse_unknown(words)
    # Only plain parsing treats what follows "--" as arguments.
    options = (command.parse_args if "--" in words else command.parse_intermixed_args)(words)
    options.run = partial(_run, import_module(f"sa1bpack.cli.{name}").run, vars(options).copy())
    options.shown_names = {
        action.dest: action.option_strings[-1] if action.option_strings else action.metavar
        for action in command._actions  # argparse has no public list of them
    }
    for name, shown in tuple(options.shown_names.items()):
        others = _NAMES_OF_PACKS if shown == "PACK" else (f"{name}s", _OTHER_NAMES.get(name, name))
        for other in others:
            options.shown_names.setdefault(other, shown)
    return options


def _run(run: Callable[..., int], values: Mapping[str, Any]) -> int:
    """Call a command with what was parsed; raises OptionError for declared options, too."""
    given = {}
    for name, kind in typing.get_type_hints(run).items():
        if name != "return":
            if dataclasses.is_dataclass(kind):
                fields = {field.name: values[field.name] for field in dataclasses.fields(kind)}
                given[name] = kind(**fields)
            else:
                given[name] = values[name]
    return run(**given)


# ------------------------------------------------------------------------------ types of arguments


def _user_path(text: str) -> str:
    """Expands `~`, and refuses URLs."""
    from sa1bpack.arguments import refuse_url

    try:
        refuse_url("the path", text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return os.path.expanduser(text)  # noqa: PTH111 - a Path drops a trailing slash


UserPath = Annotated[str, _user_path]  # of this machine, where Python's call takes URLs as well


def one_or_several(paths: list[str]) -> str | list[str]:
    """The argument of `sa1bpack.open`: one path alone, which may be a selection, or a list."""
    return paths[0] if len(paths) == 1 else paths


_NUMBERS = {int: "a whole number", float: "a number"}


def _converter(kind: type, more: str = "", none: str | None = None) -> Callable[[str], Any]:
    """The type of an argument of this kind.

    more  follows, in messages, what the text is not
    none  the word that stands for None
    """

    def converted(text: str) -> Any:
        try:
            return None if text == none is not None else kind(text)
        except ValueError:
            what = f"{text!r} is not {_NUMBERS[kind]}{more}"
            raise argparse.ArgumentTypeError(what) from None

    return converted


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
            raise OptionError(f"part is {self.part!r}: choose K/N with K from 1 to N, such as 3/8")
        return int(found[1]), int(found[2])

    @property
    def prefix(self) -> str:
        """ "part 3/8: ", for what is said of a part; otherwise nothing."""
        return "" if self.share is None else "part {}/{}: ".format(*self.share)

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

    shown_names
        Name of each of the command's options in Python → on the command line: "max_masks" →
        "--max-masks", or "name" → "NAME" for one without a flag.
    """
    choices = "|".join(map(re.escape, shown_names))
    message = re.sub(
        rf"(^|\n  )({choices})(?= is | must be |: the pack has | has the same )",
        lambda found: found[1] + shown_names[found[2]],
        message,
    )
    return re.sub(rf"`({choices})`", lambda found: shown_names[found[1]], message)


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, and what was meant.

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
        see = " See" if message.endswith("?") else "; see"
        self.exit(exits.USAGE, f"sa1bpack: {message}{see} `{self.prog} --help`\n")

    def _meant(self, name: str) -> str:
        """The options nearest to an unknown one; also the arguments, which have no flag."""
        known = {
            flag.removeprefix("--"): flag
            for flag in self._option_string_actions
            if flag.startswith("--")
        }
        for action in self._actions:
            if not action.option_strings:
                known |= dict.fromkeys((action.dest, str(action.metavar).lower()), action)
        word = name.lstrip("-").lower()
        near = [each for each in known if each.startswith(word)]
        near = near or get_close_matches(word, known, 1)
        if not near:
            return ""
        if isinstance(action := known[near[0]], argparse.Action):
            return f": {action.metavar} is given without a flag"
        flags = [flag for flag in map(known.get, near) if isinstance(flag, str)]
        return f": is {' or '.join(flags[:4])} meant?"


def _refuse_command(main: Parser, name: str) -> NoReturn:
    """Leave with exits.USAGE, and name the command that is nearest to what was typed."""
    near = get_close_matches(name.lower(), COMMANDS, 1)
    meant = f"is {near[0]} meant?" if near else f"the commands are {', '.join(COMMANDS)}"
    main.error(f"there is no command {name!r}: {meant}")


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
    listed = "\n".join(f"  {name:<8} {summary}" for name, summary in COMMANDS.items())
    commands = parser.add_argument_group("commands", listed)
    commands.add_argument(
        "command", nargs="?", metavar="COMMAND", help="one of these; see `sa1bpack COMMAND --help`"
    )
    return parser


def command_parser(name: str) -> Parser:
    """The parser of one command, a key of COMMANDS."""
    run = import_module(f"sa1bpack.cli.{name}").run
    description, helps, epilog = _sections(inspect.getdoc(run) or "")
    parser = Parser(
        prog=f"sa1bpack {name}",
        description=description,
        epilog=f"{epilog}\n\n{exits.SUMMARY}".lstrip(),
    )
    for parameter, kind in _parameters(run, helps):
        metavar, text = helps[parameter.name]
        if dataclasses.is_dataclass(kind):
            _add_declared(parser.add_argument_group(text), kind)
        else:
            _add(parser, parameter, kind, metavar, text)
    return parser


def _parameters(run: Callable, helps: Mapping) -> Iterator[tuple[inspect.Parameter, Any]]:
    """The parameters of a command, each with its type; of a record without help, its fields."""
    kinds = typing.get_type_hints(run, include_extras=True)
    for parameter in inspect.signature(run).parameters.values():
        kind = kinds[parameter.name]
        if parameter.name in helps:
            yield parameter, kind
        else:
            kinds_of_fields = typing.get_type_hints(kind, include_extras=True)
            for name, field in inspect.signature(kind).parameters.items():
                yield field.replace(kind=field.KEYWORD_ONLY), kinds_of_fields[name]


def _sections(documentation: str) -> tuple[str, dict[str, tuple[str | None, str]], str]:
    """The description, name of a parameter → (metavar, help), and what follows in the help."""
    description, _, rest = documentation.partition("\n\nArgs:\n")
    arguments, _, epilog = rest.partition("\n\n")
    entries = re.findall(
        r"^ {4}(\w+)(?: \((.+?)\))?: (.*(?:\n {8}.*)*)", arguments, flags=re.MULTILINE
    )
    helps = {name: (metavar or None, " ".join(text.split())) for name, metavar, text in entries}
    return description, helps, epilog


def _add_declared(group: argparse._ArgumentGroup, options: type) -> None:
    """Add the flags of declared options; their bounds are checked when the group is made."""
    from sa1bpack.arguments import declarations, text_of

    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    for name, (declared, kind, optional) in declarations(options).items():
        is_word = optional and declared.none.isalpha()  # else it only describes the default
        none = (f", nor {declared.none!r}", declared.none) if is_word else ()
        kind = str if issubclass(kind, os.PathLike) else kind  # a Path would lose slashes of URLs
        flag = f"--{name.replace('_', '-')}"
        if kind is bool:
            group.add_argument(flag, action="store_true", help=_escaped(declared.help))
            continue
        group.add_argument(
            flag,
            type=_converter(kind, *none),
            default=defaults[name],
            choices=declared.choices or None,
            metavar=declared.metavar,
            help=_escaped(text_of(declared, defaults[name])),
        )


def _add(
    parser: Parser, parameter: inspect.Parameter, kind: Any, metavar: str | None, text: str
) -> None:
    """Add one argument, or one option, of a command."""
    default = None if parameter.default is parameter.empty else parameter.default
    details: dict[str, Any] = {"help": _escaped(text)}
    if type(None) in (kinds := typing.get_args(kind)):
        (kind,) = (each for each in kinds if each is not type(None))
    several = typing.get_origin(kind)
    if several in (list, tuple):
        kind = typing.get_args(kind)[0]
    else:
        several = None
    if parameter.kind is parameter.KEYWORD_ONLY:
        flags = [f"--{parameter.name.replace('_', '-')}"]
        names = ["-o", *flags] if parameter.name == "out" else flags
        details["required"] = parameter.default is parameter.empty
        details["default"] = list(default) if several is list else default
    else:
        names = [parameter.name]
    if kind is bool:
        parser.add_argument(*names, action="store_true", help=details["help"])
        return
    if typing.get_origin(kind) is Literal:
        details["choices"] = typing.get_args(kind)
    else:
        details["metavar"] = metavar
        details["type"] = (
            kind.__metadata__[0] if hasattr(kind, "__metadata__") else _converter(kind)
        )
    if parameter.kind is not parameter.KEYWORD_ONLY:
        details["nargs"] = None if several is not list else "+" if default is None else "*"
    elif several is tuple:
        first = "; if it is an argument of its own, put it first"
        details |= {"nargs": "+", "type": _converter(kind, first)}
    elif several is list:
        details["action"] = "append"
    if several is None and default is not None:
        details["help"] += f" (default: {default})"
    parser.add_argument(*names, **details)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")  # argparse would expand it
