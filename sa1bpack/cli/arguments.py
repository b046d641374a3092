"""The parsers of the commands, and argument types that they share."""

import argparse
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from sa1bpack.arguments import part_of_job, refuse_url
from sa1bpack.cli import exits
from sa1bpack.errors import OptionError
from sa1bpack.urls import is_pack_url

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

# What the functions behind the commands call the packs that they are given.
_NAMES_OF_PACKS = ("pack", "path", "root")

_FIRST_STEPS = """\
first steps:
  sa1bpack pack sa_000000.tar --out packed    # again: resumes, or adds tars
  sa1bpack verify packed
  sa1bpack show packed -o sheet.png           # look at it before you train

"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse a command line; among the options, `run` is the function of the command.

    `shown_names` of the result has each option's name on the command line, for messages.

    Raises SystemExit after --help and --version, and with exits.USAGE for wrong usage. Options are
    added only for the command that is named: their defaults come from modules that take a while to
    load, and `sa1bpack --help` needs none.
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
    options.shown_names = {
        action.dest: action.option_strings[-1] if action.option_strings else action.metavar
        for action in command._actions  # argparse has no public list of them
    }
    for name, shown in tuple(options.shown_names.items()):
        for other in _NAMES_OF_PACKS if shown == "PACK" else (f"{name}s",):
            options.shown_names.setdefault(other, shown)
    return options


def user_path(text: str) -> str:
    """The type of every argument that is a path: expands `~`, and refuses URLs."""
    try:
        refuse_url("the path", text)
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return os.path.expanduser(text)  # noqa: PTH111 - a Path drops a trailing slash


def user_pack(text: str) -> str:
    """The type of an argument that is a pack: a path, or a URL that a pack can be read from."""
    return text if is_pack_url(text) else user_path(text)


def one_or_several(paths: list[str]) -> str | list[str]:
    """What `sa1bpack.open` takes: one path alone, which may be a selection, or a list."""
    return paths[0] if len(paths) == 1 else paths


def whole(text: str) -> int:
    """The type of an option that is a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def real(text: str) -> float:
    """The type of an option that is a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def number(text: str) -> int:
    """The type of an option that takes several numbers, and everything that follows them."""
    try:
        return whole(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{error}; if it is an argument of its own, put it first"
        ) from None


def part(text: str | None) -> tuple[int, int] | None:
    """What `--part` means: "3/8" is the third of eight parts of a job. Raises OptionError."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise OptionError(f"part is {text!r}: choose K/N with K from 1 to N, such as 3/8")
    return part_of_job((int(found[1]), int(found[2])))


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


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Writes `-o, --out OUT` on every version of Python, as 3.13 does."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, and what was meant.

    An option is written out: an abbreviation would change its meaning, or fail, when another option
    is added.
    """

    def __init__(self, **options):
        super().__init__(**options, allow_abbrev=False, formatter_class=HelpFormatter)

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
    """The parser of one command, with its options: a key of COMMANDS."""
    parser = Parser(prog=f"sa1bpack {name}")
    import_module(f"sa1bpack.cli.{name}").add_options(parser)
    parser.epilog = f"{parser.epilog}\n\n{exits.SUMMARY}"
    return parser
