"""Paths: those that users give, or lists and glob patterns of them; and their names in errors."""

import errno
import functools
import glob
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any

from sa1bpack.errors import OptionError, Sa1bpackError
from sa1bpack.wording import brief

_log = logging.getLogger("sa1bpack")

# The second half: a URL that went through pathlib, which joins slashes.
_URL = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]+)://|(s3|gs|gcs|az|abfss?|hf|hdfs|https?|ftp|file):/", re.IGNORECASE
)
# What stat answers where there is nothing, also below a file, and of links in a circle.
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_OF_ROOT = "lost+found"
# A drive and a folder of it, or a share of the network.
_WINDOWS_PATH = re.compile(r"([A-Za-z]):[\\/]+(.*)|\\\\[^\\]", re.DOTALL)


def local_path(name: str, value: Any, instead: str | None = None) -> Path:
    """A path of this machine, with `~` expanded.

    Args:
        name: name of the argument, for messages.
        value: the path.
        instead: why it cannot be a URL, and what to do; None: a mount, or a copy, helps.

    Raises:
        OptionError: what is not a path, or a URL or a path of Windows, which `Path` would take for
            a folder named `s3:` or `D:\\packed`.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if not isinstance(text, str) or not text:
        raise OptionError(
            f"{name} is {brief(value)}: give a path as text; that of the current folder is '.'"
        )
    if "\0" in text:
        raise OptionError(f"{name} is {brief(value)}: give a path without a NUL character")
    refuse_url(name, text, instead)
    refuse_windows_path(name, text)
    # Keeps "~" if there is no such home folder, where Path.expanduser raises RuntimeError.
    return Path(os.path.expanduser(text))  # noqa: PTH111


def exists(path: Path, *, follow_symlinks: bool = True) -> bool:
    """True if there is an entry at a path; of a symbolic link, one where it leads to.

    Unlike `Path.exists`, and the like, of Python 3.14, for which what cannot be looked at does not
    exist: a manifest on a disk that fails, or in a folder without permission, is not a missing one.

    Args:
        path: the path.
        follow_symlinks: False: a link itself is an entry, wherever it leads.

    Raises:
        OSError: the path cannot be looked at.
    """
    return _mode_of(path, follow_symlinks) != 0


def is_folder(path: Path) -> bool:
    """True for a folder, or a link to one. Raises OSError as `exists` does."""
    return stat.S_ISDIR(_mode_of(path))


def is_file(path: Path) -> bool:
    """True for a regular file, or a link to one. Raises OSError as `exists` does."""
    return stat.S_ISREG(_mode_of(path))


def _mode_of(path: Path, follow_symlinks: bool = True) -> int:
    """The type and permissions of what is at a path, `st_mode`; 0 if there is nothing."""
    try:
        return os.stat(path, follow_symlinks=follow_symlinks).st_mode  # noqa: PTH116
    except OSError as error:
        if error.errno not in _NOTHING:
            raise
        return 0
    except ValueError:  # no file has a name with a NUL character
        return 0


def paths_of(name: str, value: Any, instead: str | None = None) -> list[Path]:
    """The paths that a path, a glob pattern, or a list of both stands for, in order.

    A pattern stands for what it matches, sorted by name; a path that exists is never a pattern.
    `instead` is that of `local_path`.

    Raises OptionError for what is not a path, such as a Dataset, for a pattern that matches
    nothing, an empty list, and a path that is given twice; OSError as `matches_of` does.
    """
    refuse_dataset(name, value)
    paths: list[Path] = []
    for pattern in listed(value):
        path = local_path(name, pattern, instead)
        if exists(path) or not glob.has_magic(str(path)):
            paths.append(path)
        elif matches := matches_of(str(path)):
            paths += map(Path, matches)
        else:
            raise OptionError(f"{name} is {str(pattern)!r}: nothing matches this pattern")
    if not paths:
        raise OptionError(f"{name} is an empty list: name at least one")
    seen: dict[Path, Path] = {}
    for path in paths:
        _refuse_loop(name, path)
        first = seen.setdefault(real_path(path), path)
        if first is not path:
            raise OptionError(f"{name} has the same folder twice: {first} and {path}")
    return paths


def matches_of(pattern: str, *, recursive: bool = False) -> list[str]:
    """What a glob pattern stands for, sorted.

    What lies in a folder that this user may not list is passed over, as by a shell; a warning names
    the folder. Any other error is raised: a disk that fails must not look like one that has less.

    Args:
        recursive: `**` stands for folders at any depth.

    Raises:
        OSError: a folder cannot be listed.
    """
    matches = sorted(glob.glob(pattern, recursive=recursive))
    for error in _errors_of(pattern, recursive):
        if error.errno in _NOTHING:
            continue
        if not isinstance(error, PermissionError):
            raise error
        if not is_of_root(error):
            _warn_once(f"{error.filename}: passed over by {pattern!r}: {error.strerror}")
    return matches


def _errors_of(pattern: str, recursive: bool) -> Iterator[OSError]:
    """The errors of the folders that a glob pattern looks into, such as a mount that is gone."""
    head = pattern
    while head and head != os.path.dirname(head):  # noqa: PTH120 - a Path drops a closing slash
        head, tail = os.path.split(head)
        if recursive and os.path.basename(head) == "**":  # noqa: PTH119 - all of it is walked below
            continue
        folders = [head or "."]
        if glob.has_magic(head):
            folders = glob.glob(head, recursive=recursive)
        for folder in folders:
            if recursive and tail == "**":
                yield from _errors_below(folder)
                continue
            try:
                if glob.has_magic(tail):
                    os.scandir(folder).close()
                elif glob.has_magic(head):
                    os.lstat(os.path.join(folder, tail))  # noqa: PTH118
            except OSError as error:
                yield error


def _errors_below(folder: str) -> list[OSError]:
    """The errors of listing a folder and those in it at any depth, but hidden ones."""
    errors: list[OSError] = []
    for _, names, _ in os.walk(folder, onerror=errors.append, followlinks=True):
        names[:] = [name for name in names if not name.startswith(".")]
    return errors


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def matching(folder: Path, pattern: str) -> list[Path]:
    """The entries of a folder whose names match a pattern, sorted; none if there is no folder.

    Unlike `Path.glob`, which takes a folder that cannot be listed for an empty one: without
    permission, and since Python 3.12 also where the disk fails.

    Raises OSError if the folder cannot be listed.
    """
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - strings, by which there may be many
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names if fnmatchcase(name, pattern)]


def paths_below(folder: Path) -> Iterator[Path]:
    """Files and folders in a folder and below it; links to folders are not followed.

    What disappears meanwhile is passed over, as by `Path.rglob`, and unlike there nothing else.

    Raises OSError if a folder cannot be listed.
    """

    def fail(error: OSError) -> None:
        if error.errno not in _NOTHING and not is_of_root(error):
            raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        for name in (*folders, *names):
            yield Path(parent, name)


def is_of_root(error: OSError) -> bool:
    """True for the error of listing `lost+found`: every ext4 has it, and only root may list it."""
    return isinstance(error, PermissionError) and _OF_ROOT in Path(error.filename).parts


def real_path(path: Path) -> Path:
    """A path without symbolic links, as far as there are no loops of them.

    Of a loop `Path.resolve` raises a RuntimeError before Python 3.13, and nothing since.
    """
    return Path(os.path.realpath(path))


def _refuse_loop(name: str, path: Path) -> None:
    """Raise OptionError for symbolic links that lead to one another."""
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OptionError(f"{name} is {str(path)!r}: {error.strerror}") from None


def patterns_of(name: str, value: Any) -> list[str | Path]:
    """A path, a pattern, a URL, or a list of them as a list, not yet expanded.

    Raises OptionError for anything else, such as a Dataset, which would be iterated over.
    """
    if hasattr(value, "spec"):
        raise OptionError(f"{name} is {brief(value)}: give a path, a pattern, or a list of them")
    patterns: list[str | Path] = []
    for pattern in listed(value):
        if not isinstance(pattern, str | os.PathLike):
            raise OptionError(f"{name} has {brief(pattern)}: give paths and patterns")
        patterns.append(pattern if isinstance(pattern, str) else Path(pattern))
    return patterns


def listed(value: Any) -> list[Any]:
    """The items of an iterable, as a list; a path, a URL or anything else as a list of one.

    A single number of numpy or torch says that it is an iterable, and is none.
    """
    is_one = isinstance(value, str | bytes | os.PathLike) or getattr(value, "ndim", None) == 0
    if isinstance(value, Iterable) and not is_one:
        return list(value)
    return [value]


def check_can_be_folder(path: Path, remedy: str) -> None:
    """Raise OptionError if a path, or one above it, is there and is not a folder.

    Args:
        remedy: what to give instead, for the message.
    """
    existing = path.absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not is_folder(existing):
        kind = "a file" if exists(existing) else "a link to what does not exist"
        raise OptionError(f"{path}: {existing} is {kind}; {remedy}")


def refuse_dataset(name: str, value: Any) -> None:
    """Raise OptionError for a dataset, which would be iterated over, sample by sample."""
    if hasattr(value, "spec"):
        raise OptionError(
            f"{name} is {brief(value)}: give the path of its pack, or that of a file that "
            "ds.save_selection has written, where a selection is accepted"
        )


def looks_like_url(text: str) -> bool:
    """True for a text that begins like a URL, also one that went through pathlib."""
    return _URL.match(text) is not None


def refuse_url(name: str, text: str, instead: str | None = None) -> None:
    """Raise OptionError for a URL; `instead` is that of `local_path`."""
    if match := _URL.match(text):
        scheme = match[1] or match[2]
        shown = re.split("[?#]", text)[0]  # a query may be a signature
        shown = re.sub("(:/+)[^/]*@", r"\1", shown)  # and a user has a password
        if instead is None:
            instead = (
                f"{scheme.lower()} URLs are not supported; give a path of this machine, such as a "
                "mounted folder or a local copy"
            )
        raise OptionError(f"{name} is {shown!r}: {instead}")


def refuse_windows_path(name: str, text: str) -> None:
    """Raise OptionError for a path of Windows, unless there is a file or folder of that name."""
    match = _WINDOWS_PATH.match(text)
    if match is None or os.path.lexists(text.partition("/")[0]):
        return
    drive, folder = match.groups()
    remedy = "mount the share, and give the path of the mount"
    if drive is not None:
        mounted = f"/mnt/{drive.lower()}/" + folder.replace("\\", "/")
        remedy = f"give a path of this system; in WSL, {mounted!r}"
    raise OptionError(
        f"{name} is {text!r}: a path of Windows, which here is a name in the current folder; "
        f"{remedy}"
    )


class _Naming:
    """What `naming` returns.

    Not a generator: CPython 3.13 keeps the frame of one that raises, and with it the frames of all
    callers and what they have open, until garbage is collected.
    """

    def __init__(self, path: Path | str):
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, Sa1bpackError):
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def naming(path: Path | str) -> AbstractContextManager[None]:
    """Name `path` in an OSError of the calls within: calls on descriptors do not know it."""
    return _Naming(path)


def temporary_folder() -> Path:
    """The system's temporary folder; if none can be written to, the one that was tried first.

    What is never written there needs none, and what is fails with an error that names the folder.
    """
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path(os.environ.get("TMPDIR") or "/tmp")
