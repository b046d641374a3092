"""Read an extracted tar: a folder of `sa_<id>.jpg` and `sa_<id>.json` files.

Files are sorted by their number, so that the two halves of a pair are adjacent and packing the
folder twice produces the same bytes. Subfolders are searched. Links to files are followed, because
Hugging Face caches, DVC and git-annex consist of them; links to folders are not.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.errors import SourceError
from sa1bpack.source.tar import Member, decode_name, split_name

_NUMBERED = re.compile(r"(.*?)(\d+)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class FolderFile:
    """An entry named like a JPEG or JSON file; `size` is 0 unless it is a regular file."""

    path: str
    name: str  # relative to the folder, undecodable bytes as \\xNN
    problem: str  # as in Member
    size: int
    is_file: bool


def list_folder(folder: Path) -> list[FolderFile]:
    """Every entry below the folder that is named like a JPEG or JSON file, in pack order.

    Raises SourceError if a folder cannot be listed.
    """
    files = [_look_at(path, folder) for path in _walk(folder) if split_name(path)[1]]
    return sorted(files, key=lambda file: _pack_order(file.name))


class FolderStream:
    """The members of an extracted folder; `read` returns the data of the current one.

    `bytes_read` counts the bytes of files read. A folder has no digest.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.bytes_read = 0
        self._current: FolderFile | None = None

    def __iter__(self) -> Iterator[Member]:
        for file in list_folder(self.folder):
            self._current = file
            kind = "file" if file.is_file else "special"
            yield Member(file.name, file.size, kind, file.problem)

    def read(self) -> bytes:
        """All bytes of the current file.

        Raises SourceError if it cannot be read or its size has changed since it was listed.
        """
        file = self._current
        try:
            with Path(file.path).open("rb") as opened:
                data = opened.read(file.size + 1)  # one more, to detect growth
        except OSError as error:
            raise SourceError(f"{file.path}: cannot be read: {error.strerror}") from error
        if len(data) != file.size:
            raise SourceError(
                f"{file.path}: its size changed from {file.size} bytes since the folder was "
                "listed; wait until nothing writes to the folder any more"
            )
        self.bytes_read += len(data)
        return data

    @property
    def raw(self) -> "FolderStream":
        """What has the methods of a RawFile."""
        return self

    def xxh128(self) -> None:
        """None: a folder has no bytes of its own."""

    def md5(self) -> None:
        """None, as for `xxh128`."""

    def cancel(self) -> None:
        """Nothing is waited for."""

    def close(self) -> None:
        """Nothing is held open between files."""


def _walk(folder: Path) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise SourceError(f"{error.filename}: cannot be listed: {error.strerror}") from error

    for parent, _, names in os.walk(folder, onerror=fail):
        for name in names:
            yield os.path.join(parent, name)  # noqa: PTH118 - avoids an object per file


def _look_at(path: str, folder: Path) -> FolderFile:
    name, problem = decode_name(os.fsencode(os.path.relpath(path, folder)))
    try:
        status = os.stat(path)  # noqa: PTH116 - as in _walk
    except OSError:  # a dangling link is reported as a member that is not a file
        return FolderFile(path, name, problem, 0, False)
    is_file = stat.S_ISREG(status.st_mode)  # opening a pipe would hang
    return FolderFile(path, name, problem, status.st_size if is_file else 0, is_file)


def _pack_order(name: str) -> tuple:
    """Sorts sa_5 before sa_10, in whatever folders they are; names without a number come last."""
    stem, _ = split_name(name)
    numbered = _NUMBERED.match(stem)
    if numbered is None:
        return (1, stem, 0, name)
    return (0, numbered[1], int(numbered[2]), name)
