"""The output of commands: results on standard output, what is wrong on standard error."""

import json
import os
import sys

from sa1bpack.wording import printable


def say(text: object) -> None:
    """Print a result to standard output; what would control a terminal is escaped.

    An error names the stream, as those of a file name the file.
    """
    try:
        print(printable(text))
        sys.stdout.flush()
    except OSError as error:
        error.filename = "standard output"
        discard_output()
        raise


def say_json(record: dict[str, object]) -> None:
    """Print an object on one line, in ASCII."""
    say(json.dumps(record))


def warn(text: object) -> None:
    """Print to standard error, after the name of the program."""
    print(f"sa1bpack: {printable(text)}", file=sys.stderr)


def discard_output() -> None:
    """Discard what standard output cannot take, so that the interpreter does not fail on it too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
