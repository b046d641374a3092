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
    if number != 1:
        noun += "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}"


def span_text(names: Collection[str]) -> str:
    """The first and the last of some names, and their number: `sa_000000 to sa_000999 (1,000)`."""
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{min(names)} to {max(names)} ({len(names):,})"


def size_text(nbytes: float) -> str:
    """Bytes in the largest unit in which the number is at least 1: `3.67 GB`."""
    if nbytes < 999.5:
        return f"{nbytes:,.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{nbytes:,.3g} {unit}"
    return f"{nbytes / 1000:,.3g} PB"


def printable(text: object) -> str:
    """A text that is safe on a terminal: control characters, and what is not UTF-8, are escaped.

    For file names and text from files. Newlines are kept.
    """
    return "".join(map(_printable_character, str(text)))


def _printable_character(character: str) -> str:
    if character.isprintable() or character == "\n":
        return character
    return ascii(character)[1:-1]
