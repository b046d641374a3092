"""What commands print."""

import json

from sa1bpack.wording import printable


def say(text: object) -> None:
    """Print a result to standard output; what would control a terminal is escaped."""
    print(printable(text))


def say_json(found: dict[str, object]) -> None:
    """Print an object on one line, in ASCII."""
    print(json.dumps(found))
