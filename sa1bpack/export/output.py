"""The output of an export: its path is checked first, and a file has its name when complete."""

import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sa1bpack.arguments import check_can_be_folder, local_path
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.files import TEMPORARY_PREFIX, flush_folder, temporary_beside
from sa1bpack.format.manifest import refuse_in_pack


def check_folder(out: str | Path) -> Path:
    """The folder to export to. Raises OptionError for a URL, a file or a folder in a pack."""
    path = local_path("out", out)
    refuse_in_pack("out", path, itself=True)
    check_can_be_folder(path, "name a new folder, or one of an earlier export")
    return path


def check_file(out: str | Path) -> Path:
    """The file to export to. Raises OptionError for a URL, a folder or a place in a pack."""
    path = local_path("out", out)
    refuse_in_pack("out", path, itself=True)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise OptionError(f"{out}: name a file, such as annotations.json, in a folder that exists")
    return path


class NewFile:
    """A file being written, under a temporary name."""

    same = False

    def __init__(self, path: Path):
        for left in path.parent.glob(f"{TEMPORARY_PREFIX}{glob.escape(path.name)}-*"):
            left.unlink()  # by an export that was killed
        self._path = path
        self._temporary = temporary_beside(path)
        self._file = self._temporary.open("xb")

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def finish(self) -> None:
        """Flush the file to disk and give it its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.rename(self._path)
        flush_folder(self._path.parent)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class SameFile:
    """A file that exists already, and must hold the bytes that would be written."""

    same = True

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("rb")

    def write(self, data: bytes) -> None:
        """Compare bytes. Raises OutputRefused if they differ."""
        if self._file.read(len(data)) != data:
            self._refuse()

    def finish(self) -> None:
        """Check that the file ends here."""
        if self._file.read(1):
            self._refuse()
        self._file.close()

    def discard(self) -> None:
        """Close the file."""
        self._file.close()

    def _refuse(self) -> None:
        raise OutputRefused(
            f"{self._path}: exists already with other contents; remove it, or export to another "
            "file"
        )


@contextmanager
def replacing(path: Path) -> Iterator[NewFile | SameFile]:
    """A file to write to, which gets its name once the block ends without an error."""
    file = SameFile(path) if path.exists() else NewFile(path)
    try:
        yield file
        file.finish()
    except BaseException:
        file.discard()
        raise
