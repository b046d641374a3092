"""Checksums of files: XXH3-128, in a form that `xxhsum -c` checks."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.files import REMEDY, missing, open_file, read_metadata_file
from sa1bpack.paths import naming
from sa1bpack.wording import brief

CHECKSUMS_NAME = "checksums.xxh128"
_LINE = re.compile(r"([0-9a-f]{32})  (\S.*)")
_ZEROS = np.zeros(1 << 20, np.uint8)


def file_digest(path: Path) -> str:
    """XXH3-128 of a file as 32 hexadecimal digits, as `xxh128sum` prints it.

    Raises FormatError if it is not a regular file, OSError if it cannot be read.
    """
    with naming(path), os.fdopen(open_file(path), "rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def format_checksums(digests: Mapping[str, str]) -> bytes:
    """The text of a checksum file: one `<digest>  <path>` line per file, sorted by path."""
    return "".join(f"{digests[path]}  {path}\n" for path in sorted(digests)).encode()


def read_checksums(path: Path) -> dict[str, str]:
    """Read a checksum file into {path: digest}.

    Raises FormatError if it is missing, differs from the exact form that `format_checksums` writes,
    or names a path outside its folder.
    """
    try:
        text = read_metadata_file(path)
    except FileNotFoundError:
        raise missing(path) from None
    digests: dict[str, str] = {}
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or not is_inside(match[2]):
            raise FormatError(
                f"{path}, line {number}: {brief(line)} is not '<32 hex digits>  <path below this "
                f"folder>'; {REMEDY}"
            )
        digests[match[2]] = match[1]
    if format_checksums(digests) != text:
        raise FormatError(
            f"{path}: lines are repeated, out of order or not separated by newlines; {REMEDY}"
        )
    return digests


def is_inside(path: str) -> bool:
    """True if a relative path stays below its folder: not absolute, no empty name, no `.` or `..`.

    Unprintable characters are refused too: no file of a pack has any, and a NUL would end the path.
    """
    return path.isprintable() and all(name not in ("", ".", "..") for name in path.split("/"))


def update_zeros(digest: xxhash.xxh3_128 | xxhash.xxh3_64, count: int) -> None:
    """Update a hash with `count` zero bytes."""
    while count > 0:
        digest.update(_ZEROS[:count].data)
        count -= _ZEROS.size
