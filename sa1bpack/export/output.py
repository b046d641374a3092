"""What is written: its path is checked first, and an export has its name when it is complete."""

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sa1bpack.arguments import check_can_be_folder, local_path
from sa1bpack.errors import OptionError, OutputRefused
from sa1bpack.format.files import TEMPORARY_PREFIX, flush_folder, naming, temporary_beside
from sa1bpack.format.manifest import refuse_in_pack


def check_folder(output: str | Path) -> Path:
    """The folder to export to. Raises OptionError for a URL, a file or a folder in a pack."""
    path = local_path("output", output)
    refuse_in_pack("output", path, itself=True)
    check_can_be_folder(path, "name a new folder, or one of an earlier export")
    return path


def check_file(output: str | Path) -> Path:
    """The file to export to. Raises OptionError for a URL, a folder or a place in a pack."""
    path = local_path("output", output)
    refuse_in_pack("output", path, itself=True)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise OptionError(
            f"{output}: name a file, such as annotations.json, in a folder that exists"
        )
    return path


def check_output(output: str | Path, *suffixes: str) -> Path:
    """The path to write to. An existing file will be replaced; no folder is created.

    suffixes  of which it must have one, in lower case

    Raises OptionError for a URL, another suffix, a missing folder, a folder in place of the file,
    and a path inside a pack, where a check reports every foreign file; OSError if no file can be
    made there. So nothing is drawn or measured whose result could not be written.
    """
    path = local_path("output", output)
    if path.suffix.lower() not in suffixes:
        raise OptionError(f"{output}: name it {' or '.join(f'*{each}' for each in suffixes)}")
    if path.is_dir():
        raise OptionError(f"{output} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OptionError(f"{output}: the folder {path.parent} does not exist; create it first")
    refuse_in_pack("output", path)
    probe = temporary_beside(path)
    with naming(path):
        probe.touch()
        probe.unlink()
    return path


@contextmanager
def writing(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Yields the function that appends bytes to a file, which has its name once it is complete.

    An existing file must hold the same bytes. Raises OutputRefused as soon as it does not.
    """
    if path.exists():
        with path.open("rb") as there:
            yield lambda data: require_same(path, there.read(len(data)) == data)
            require_same(path, not there.read(1))
        return
    for left in path.parent.glob(f"{TEMPORARY_PREFIX}{glob.escape(path.name)}-*"):
        left.unlink()  # by an export that was killed
    temporary = temporary_beside(path)
    try:
        with temporary.open("xb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def require_same(path: Path, same: bool) -> None:
    """Raise OutputRefused unless an existing file holds what is written."""
    if not same:
        raise OutputRefused(
            f"{path}: exists already with other contents; remove it, or export to another place"
        )
