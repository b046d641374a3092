"""The output of commands: results on standard output, what is wrong on standard error."""

import json
import os
import sys

from sa1bpack.wording import counted, printable


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


def say_json(found: dict[str, object]) -> None:
    """Print an object on one line, in ASCII."""
    say(json.dumps(found))


def warn(text: object) -> None:
    """Print to standard error, after the name of the program."""
    print(f"sa1bpack: {printable(text)}", file=sys.stderr)


def discard_output() -> None:
    """Lose what standard output cannot take, so that the interpreter does not fail on it too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_totals(result, place: object, of: str = "", more: str = "") -> None:
    """Say what a pack holds now, of a PackResult or a FinalizeResult.

    of    what follows the number of masks
    more  a line that follows the first
    """
    images, annotations = counted(result.images, "image"), counted(result.annotations, "mask")
    say(f"{place}: {images}, {result.masks:,} of {annotations}{of}")
    if more:
        say(more)
    say(f"identity of the sources: {result.identity}")
    if result.left_out:
        say(f"masks: {result.left_out}")
    if result.dropped:
        dropped = counted(result.dropped, "image")
        say(f"dropped: no masks remained in {dropped}, not counted above")
    if result.rejects:
        say(f"rejected: {counted(result.rejects, 'member')}, see {result.root / 'rejects.jsonl'}")
