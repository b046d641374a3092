"""Lists of md5 sums, as md5sum(1) writes them."""

import re
from pathlib import Path

from sa1bpack.errors import SourceError

# "<32 hex digits> <space or *><name>"; md5sum escapes odd names with a leading backslash.
_LINE = re.compile(r"([0-9a-fA-F]{32}) [ *](.+)")


def read_md5sums(path: Path) -> dict[str, str]:
    """Read a list in md5sum's format: file name (without its folders) → 32 lower-case hex digits.

    Empty lines and lines that start with # are skipped. Raises SourceError for a line in any other
    form, and for one name with two sums.
    """
    sums: dict[str, str] = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: the list of md5 sums cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise SourceError(
                f"{path}, line {number}: {line[:80]!r} is not in md5sum's format "
                "('<32 hex digits>  <file name>')"
            )
        digest, name = match[1].lower(), match[2].rsplit("/", 1)[-1]
        if sums.setdefault(name, digest) != digest:
            raise SourceError(f"{path}, line {number}: a second, different sum for {name}")
    return sums
