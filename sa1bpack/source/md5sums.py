"""Lists of md5 sums, as md5sum(1) writes them."""

import re
from pathlib import Path

from sa1bpack.errors import SourceError
from sa1bpack.wording import brief

MAX_LIST_BYTES = 16 << 20  # SA-1B's list of 1000 tars is 50 kB
# "<32 hex digits> <space or *><name>"; md5sum marks escaped names with a leading backslash.
_LINE = re.compile(r"([0-9a-fA-F]{32}) [ *](.+)")


def read_md5sums(path: Path) -> dict[str, str]:
    """Read a list in md5sum's format: file name (without folders) → 32 lower-case hex digits.

    Empty lines and lines that start with # are skipped. Raises SourceError for a line in any other
    format, for a name with two different sums, and for a list of more than `MAX_LIST_BYTES`.
    """
    sums: dict[str, str] = {}
    try:
        with Path(path).open("rb") as file:  # it may be a pipe, which has no size
            data = file.read(MAX_LIST_BYTES + 1)
        if len(data) > MAX_LIST_BYTES:
            raise SourceError(
                f"{path}: more than {MAX_LIST_BYTES} bytes: not a list of md5 sums of tars"
            )
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SourceError(f"{path}: the list of md5 sums cannot be read: {why}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
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
