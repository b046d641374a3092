"""Lists of files: of tars at URLs, and of their md5 sums."""

import re
from collections.abc import Iterator
from pathlib import Path

from sa1bpack.errors import OptionError, SourceError
from sa1bpack.urls import Address, is_url, parse_address
from sa1bpack.wording import brief

MAX_LINKS_BYTES = 64 << 20  # that of SA-1B is 0.5 MB
MAX_LIST_BYTES = 16 << 20  # of md5 sums; that of SA-1B's 1000 tars is 50 kB


def _lines(path: Path, what: str, most: int) -> Iterator[tuple[int, str]]:
    """The lines of a list with their numbers, but for empty ones and those that begin with #.

    Raises SourceError if the list cannot be read, or has more than `most` bytes.
    """
    try:
        with Path(path).open("rb") as file:  # it may be a pipe, which has no size
            data = file.read(most + 1)
        if len(data) > most:
            raise SourceError(f"{path}: more than {most} bytes: not a list of {what}")
        lines = data.decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        # The text of a decoding error has the bytes at fault.
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SourceError(f"{path}: the list of {what} cannot be read: {why}") from None
    return (
        (number, line)
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.startswith("#")
    )


def read_links(path: Path) -> list[Address]:
    """The addresses in a list of links, in its order.

    The first line may be a header (`file_name<TAB>cdn_link`); empty lines and lines that begin with
    # are skipped. A line that is repeated counts once.

    Raises SourceError for a list that cannot be read or names no link, a line in any other format,
    a name with two different links, and what cannot be a name of a file. No message shows a link.
    """
    found: dict[str, Address] = {}
    begun = False
    for number, line in _lines(path, "links", MAX_LINKS_BYTES):
        name, _, url = line.strip().partition("\t")
        header, begun = not begun and not is_url(url.strip()), True
        if header and url and "://" not in line:
            continue
        address = _address(f"{path}, line {number}", name.strip(), url.strip())
        if found.setdefault(address.name, address).url != address.url:
            raise SourceError(f"{path}, line {number}: a second, different link for {brief(name)}")
    if not found:
        raise SourceError(f"{path}: the list names no link")
    return list(found.values())


def _address(where: str, name: str, url: str) -> Address:
    if not is_url(url) or "://" in name:
        raise SourceError(
            f"{where}: not a file name, a tab and a URL (https://...), as the download page of "
            "SA-1B lists them"
        )
    if "/" in name or name in ("", ".", ".."):
        raise SourceError(f"{where}: {brief(name)} is no name of a file")
    try:
        return parse_address(where, url, name)
    except OptionError as error:
        raise SourceError(str(error)) from None


# "<32 hex digits> <space or *><name>"; md5sum marks escaped names with a leading backslash.
_LINE = re.compile(r"([0-9a-fA-F]{32}) [ *](.+)")


def read_md5sums(path: Path) -> dict[str, str]:
    """Read a list in md5sum's format: file name (without folders) → 32 lower-case hex digits.

    Empty lines and lines that start with # are skipped. Raises SourceError for a line in any other
    format, for a name with two different sums, and for a list of more than `MAX_LIST_BYTES`.
    """
    sums: dict[str, str] = {}
    for number, line in _lines(path, "md5 sums", MAX_LIST_BYTES):
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise SourceError(
                f"{path}, line {number}: {brief(line)} is not in md5sum's format "
                "('<32 hex digits>  <file name>')"
            )
        digest, name = match[1].lower(), match[2].rsplit("/", 1)[-1]
        if sums.setdefault(name, digest) != digest:
            raise SourceError(f"{path}, line {number}: a second, different sum for {brief(name)}")
    return sums
