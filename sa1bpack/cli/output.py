"""What commands print."""

from sa1bpack.wording import printable


def say(text: object) -> None:
    """Print a result to standard output; what would control a terminal is escaped."""
    print(printable(text))
