"""What commands print."""

import argparse
import json

from sa1bpack.wording import printable


def say(text: object) -> None:
    """Print a result to standard output; what would control a terminal is escaped."""
    print(printable(text))


def add_json(parser: argparse.ArgumentParser, keys: str) -> None:
    """Add `--json`, which has one form in all commands; `keys` names those after "pack"."""
    parser.add_argument(
        "--json",
        action="store_true",
        help=f"print an object on one line in place of the text: pack, {keys}",
    )


def say_json(found: dict[str, object]) -> None:
    """Print an object on one line, in ASCII."""
    print(json.dumps(found))
