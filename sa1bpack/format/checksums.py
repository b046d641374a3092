"""Checksums: XXH3-128 per file, in a form that `xxhsum -c` checks, and XXH3-64 per sample."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.format.array_reader import REMEDY, missing
from sa1bpack.format.files import byte_view, naming, open_file, read_metadata_file
from sa1bpack.format.image_bytes import canvas_spans
from sa1bpack.format.layout import Layout
from sa1bpack.wording import brief

CHECKSUMS_NAME = "checksums.xxh128"
READ_BYTES = 1 << 20
_LINE = re.compile(r"([0-9a-f]{32})  (\S.*)")
_ZEROS = np.zeros(1 << 20, np.uint8)


def file_digest(path: Path) -> str:
    """XXH3-128 of a file as 32 hexadecimal digits, as `xxh128sum` prints it.

    Raises FormatError if it is not a regular file, OSError if it cannot be read.
    """
    digest = xxhash.xxh3_128()
    buffer = bytearray(READ_BYTES)
    view = memoryview(buffer)
    with naming(path), os.fdopen(open_file(path), "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest()


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
    """Whether a relative path stays below its folder: not absolute, no empty, `.` or `..` part.

    Unprintable characters are refused too: no file of a pack has any, and a NUL would end the path.
    """
    return path.isprintable() and all(part not in ("", ".", "..") for part in path.split("/"))


def update_zeros(digest, count: int) -> None:
    """Update a hash with `count` zero bytes."""
    while count > 0:
        part = min(count, _ZEROS.size)
        digest.update(_ZEROS[:part])
        count -= part


def rows_checksum(layout: Layout, rows: Mapping[str, np.ndarray], stored_height: int) -> int:
    """XXH3-64 of one sample, from its rows.

    rows           the sample's rows of every array of the layout except `checksum`, C-contiguous;
                   of an offset array the lengths (differences of neighbours, int64), so that the
                   value does not depend on the position of the sample in the pack
    stored_height  rows of a canvas from here on are zero; they are not read, and may be missing

    The hash covers the bytes in the order of `layout.arrays`.
    """
    digest = xxhash.xxh3_64()
    for name in (spec.name for spec in layout.arrays if spec.name != "checksum"):
        if name == "image" and not layout.flat:
            part = byte_view(rows[name])
            done = 0
            for start, stop in canvas_spans(layout, stored_height):
                update_zeros(digest, start - done)
                digest.update(part[start:stop])
                done = stop
            update_zeros(digest, layout.array(name).row_bytes - done)
        else:
            digest.update(rows[name])
    return digest.intdigest()
