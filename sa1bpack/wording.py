"""Numbers, and values found in files, as text for messages."""

import reprlib
from collections.abc import Collection

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxlong = 80
_brief.maxother = 200  # of objects, such as orders
_brief.maxlist = 20
_brief.maxlevel = 3


def brief(value: object) -> str:
    """The `repr` of a value on one line, short whatever the size and depth of the value."""
    return " ".join(_brief.repr(value).split())


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 shard" for `counted(1, "shard")`, "2,000 shards" for 2000.

    A noun in "ch" ends in "es": "2 batches".
    """
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def span_text(names: Collection[str]) -> str:
    """The first and the last of some names, and their number: `sa_000000 to sa_000999 (1,000)`."""
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{min(names)} to {max(names)} ({len(names):,})"


def size_text(nbytes: float) -> str:
    """Bytes in the largest unit in which the number is at least 1: `3.67 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if nbytes < 999.5 or unit == "PB":
            break
        nbytes /= 1000
    return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.3g} {unit}"


def printable(text: object) -> str:
    """A text that is safe on a terminal: control characters, and what is not UTF-8, are escaped.

    For file names and text from files. Newlines are kept.
    """
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in str(text)
    )
