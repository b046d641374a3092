"""Numbers, and values found in files, in sentences."""

import reprlib

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 80
_brief.maxlist, _brief.maxlevel = 20, 3


def brief(value: object) -> str:
    """The `repr` of a value that a file holds, in few characters whatever its size and depth."""
    return _brief.repr(value)


def counted(number: int, noun: str) -> str:
    """`counted(1, "shard")` is "1 shard", `counted(2000, "shard")` is "2,000 shards"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(nbytes: float) -> str:
    """Bytes in the largest unit that leaves 1 or more: `3.67 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if nbytes < 999.5 or unit == "PB":
            break
        nbytes /= 1000
    return f"{nbytes:,.0f} {unit}" if unit == "B" else f"{nbytes:,.3g} {unit}"


def printable(text: object) -> str:
    """A text fit for a terminal: what moves its cursor, or has no UTF-8, is escaped.

    For names of files and what files say; lines stay lines.
    """
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in str(text)
    )
