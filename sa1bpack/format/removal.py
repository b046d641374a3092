"""The removal of files and folders: of working names that were left, and of what is published.

What is in use elsewhere stays, under a name that a later run removes.
"""

import errno
import fcntl
import glob
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sa1bpack.errors import FormatError
from sa1bpack.format.file_locks import locked
from sa1bpack.format.files import flush_folder
from sa1bpack.format.working_names import (
    LOCK_SUFFIX,
    TEMPORARY_PREFIX,
    is_left_over,
    temporary_beside,
    working_name,
)
from sa1bpack.paths import is_folder, matching

_REMOVED = TEMPORARY_PREFIX + "removed-"
# Removal leaves what answers so: a file that is in use, and the folder that it is in.
_IN_USE = frozenset({errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST})


def make_way_for_file(path: Path) -> None:
    """Remove an empty folder that has the name of a file of a pack.

    Raises FormatError for one that is not empty: what is in it is not the pack's.
    """
    if path.is_symlink() or not is_folder(path):
        return
    _remove(os.rmdir, path)
    if is_folder(path):
        raise FormatError(
            f"{path}: a folder with other files, where a file of the pack must be; move it away, "
            "and repeat the command"
        )


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left under working names of a file or folder, in its place."""
    for left in matching(path.parent, glob.escape(working_name(path)) + "-*"):
        if is_left_over(left):
            discard_entry(left)


def remove_idle_locks(folder: Path) -> None:
    """Remove the files that killed processes have locked in a folder, `.tmp-….lock`.

    Who opens one at this moment notices that it has lost its name, see `side/writer.py`.
    """
    for path in matching(folder, f"{TEMPORARY_PREFIX}*{LOCK_SUFFIX}"):
        with suppress(OSError):
            lock = locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDWR)
            try:
                path.unlink()
            finally:
                os.close(lock)


def remove_all_leftovers(folder: Path) -> None:
    """Remove what killed processes left under working names in a folder, and nothing else."""
    for left in matching(folder, TEMPORARY_PREFIX + "*"):
        if is_left_over(left):
            discard_entry(left)


def remove_temporaries(folder: Path, keep: Path | None = None) -> None:
    """Remove what a killed run left under working names in a folder, except `keep`.

    Each folder loses its name first: should a process work in it that no lock has kept off, that
    ends with an error, and publishes nothing of which files are missing.
    """
    for path in matching(folder, TEMPORARY_PREFIX + "*"):
        if path == keep:
            continue
        doomed = path
        if is_folder(path) and not path.is_symlink() and not path.name.startswith(_REMOVED):
            try:
                doomed = renamed_to_remove(path, folder / f"{_REMOVED}{secrets.token_hex(8)}")
            except FileNotFoundError:  # another process removes it, too
                continue
        remove_entry(doomed)


def remove_entry(path: Path) -> None:
    """Remove a folder with its contents, or a file; of a symbolic link only the link.

    A file that some process has open is kept by network file systems under a name of their own
    (NFS: `.nfs…`), and so are the folders that it is in. These stay: give only working names, which
    a later run removes, or that of a file.

    Raises OSError, which names the file, for anything else that cannot be removed.
    """
    if path.is_symlink() or not is_folder(path):
        _remove(os.unlink, path)
        return
    for parent, folders, names in os.walk(path, topdown=False, onerror=_raise_unless_gone):
        for name in names:
            _remove(os.unlink, Path(parent, name))
        for name in folders:
            inner = Path(parent, name)
            _remove(os.unlink if inner.is_symlink() else os.rmdir, inner)
    _remove(os.rmdir, path)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that nothing was written into; another one stays."""
    with suppress(OSError):
        folder.rmdir()


def _remove(call: Callable[[Path], None], path: Path) -> None:
    """Call `os.unlink` or `os.rmdir`, unless the entry is gone or in use."""
    try:
        call(path)
    except FileNotFoundError:  # another process removes it, too
        pass
    except OSError as error:
        if error.errno not in _IN_USE:
            raise


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def discard_entry(path: Path) -> None:
    """Remove what has a working name, as far as possible: a later run removes the rest."""
    with suppress(OSError):
        remove_entry(path)


def remove_published(folder: Path) -> None:
    """Remove a folder that has a final name, which it loses first, durably.

    So whatever has a final name is complete, even if this is interrupted, the power fails, or a
    file of it is in use, see `remove_entry`. Of a shard or an index that was moved to another disk,
    only the link is removed.
    """
    doomed = renamed_to_remove(folder, temporary_beside(folder))
    flush_folder(folder.parent)
    remove_entry(doomed)


def renamed_to_remove(path: Path, name: Path) -> Path:
    """Rename an entry that is to be removed; returns its name, which is the old one if it must be.

    A folder in a lower layer of an overlay, as of an image of a container, can be removed and not
    renamed. If that is interrupted, what is left of it has its name and is found to be damaged.
    """
    try:
        path.rename(name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return path
    return name
