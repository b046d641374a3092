"""Final names, which files and folders get when they are complete, in one step."""

import ctypes
import errno
import os
from pathlib import Path

from sa1bpack.format.files import flush_folder, write_durably
from sa1bpack.format.removal import (
    discard_entry,
    remove_entry,
    remove_leftovers,
    remove_published,
    renamed_to_remove,
)
from sa1bpack.format.working_names import TEMPORARY_PREFIX, temporary_beside
from sa1bpack.paths import exists, is_file, is_folder, matching, naming

_SET_ASIDE = TEMPORARY_PREFIX + "old-"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.renameat2.argtypes = (
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint,
)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably: readers see the old bytes or the new ones.

    A file that has these bytes already stays. Raises OSError, which names `path`, if it cannot be
    written.
    """
    if is_file(path) and path.stat().st_size == len(data) and path.read_bytes() == data:
        return
    remove_leftovers(path)
    temporary = temporary_beside(path)
    try:
        with naming(path):
            write_durably(temporary, data)
            temporary.rename(path)
    except BaseException:
        discard_entry(temporary)
        raise
    flush_folder(path.parent)


def put_in_place(folder: Path, final: Path) -> None:
    """Give a complete folder a final name; whatever had that name is removed.

    Readers, also after a kill, find the old entry or the new one: the two exchange their names
    in one step. Where the file system cannot do that (NFS, for one), the old entry is
    renamed first, and renamed back if the second rename fails; after a kill between the two,
    `restore_set_aside` puts it back. An entry that cannot be renamed, see `renamed_to_remove`, is
    removed first.
    """
    old = None
    if not exists(final, follow_symlinks=False):  # also a link that leads nowhere is there
        folder.rename(final)
    elif exchange(folder, final):
        old = folder
    else:
        aside = final.with_name(_SET_ASIDE + final.name)
        if exists(aside, follow_symlinks=False):  # left by a killed run after it was replaced
            remove_published(aside)
        is_renamed = renamed_to_remove(final, aside) == aside
        if not is_renamed:
            remove_entry(final)
        try:
            folder.rename(final)
        except BaseException:
            if is_renamed:
                aside.rename(final)
            raise
        if is_renamed:  # what stays of it must not be taken for one that was not replaced
            old = temporary_beside(final)
            aside.rename(old)
    flush_folder(final.parent)
    if old is not None:
        remove_entry(old)


def exchange(path: Path, other: Path) -> bool:
    """Let two entries of a file system exchange their names, atomically.

    Returns False where the file system cannot. Raises OSError if it fails.
    """
    if _libc.renameat2(_AT_FDCWD, bytes(path), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV):
        return False
    raise OSError(code, os.strerror(code), str(other))


def restore_set_aside(folder: Path) -> None:
    """Put back what a killed `put_in_place` set aside in a folder and did not replace."""
    for path in matching(folder, _SET_ASIDE + "*"):
        final = path.with_name(path.name.removeprefix(_SET_ASIDE))
        if not exists(final, follow_symlinks=False):
            path.rename(final)
            flush_folder(folder)


def claim_name(folder: Path, final: Path) -> bool:
    """Give a complete, flushed folder its final name; False if there is one of that name.

    Another process may have made it, or this one: a rename over NFS may succeed and say that there
    was nothing to rename, and a call that was interrupted after the rename is repeated.
    """
    try:
        folder.rename(final)
    except OSError as error:
        is_taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        if not is_taken and not (error.errno == errno.ENOENT and is_folder(final)):
            raise
        return False
    flush_folder(final.parent)
    return True
