"""The folder of a pack, as the processes that write into it share it: locks and working folders.

A command that needs the folder for itself (`pack`, `repair`, `merge`, `finalize`) locks it alone.
The parts of a job hold a shared lock, which only keeps these commands off; a part that changes what
belongs to the whole pack holds PACK/.parts/lock for a moment.
"""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

from sa1bpack.errors import OutputLocked, OutputRefused
from sa1bpack.format import file_locks, files, removal, working_names
from sa1bpack.format.manifest import LOCK_NAME, MANIFEST_NAME, PARTS_NAME, SHARDS_NAME
from sa1bpack.paths import exists, is_folder, matching

# Whoever asks whether a folder is locked (`manifest.is_being_packed`) locks it for an instant.
_LOCK_TRIES = 3
_LOCK_PAUSE = 0.02  # seconds
_PARTS_LOCK = "lock"
_WORKING = f"{working_names.TEMPORARY_PREFIX}work-"
_WITHOUT_LOCKS = (
    "nothing keeps a second command out of a folder there, so run one at a time; whatever has a "
    "final name is complete all the same"
)


def check_can_hold_pack(root: Path) -> None:
    """Raise OutputRefused for a folder of something else, before anything in it is changed."""
    unfinished = (LOCK_NAME, PARTS_NAME, working_names.TEMPORARY_PREFIX + MANIFEST_NAME)
    others = False
    for path in root.iterdir():
        if not (path.name.startswith(unfinished) or working_names.is_of_system(path.name)):
            others = True
    # Asked last: the manifest is the first file of a pack that another process makes meanwhile.
    if others and not exists(root / MANIFEST_NAME):
        raise OutputRefused(
            f"{root} is not empty and holds no {MANIFEST_NAME}; choose an empty or a new folder. "
            f"If it is a pack that lost its manifest: sa1bpack repair {quote(str(root))} TARS"
        )


def existing_parent(path: Path) -> Path:
    """The path, made absolute, or the nearest one above it that exists."""
    path = path.absolute()
    while not exists(path):
        path = path.parent
    return path


@contextmanager
def pack_folder(root: Path) -> Iterator[None]:
    """Make a folder for a pack, if there is none; checks that nothing else is in it.

    One that was made is removed again if the block raises and has left nothing but its lock in it,
    unless another process works there.

    Raises OutputRefused if it holds something else.
    """
    is_new = not exists(root)
    files.make_folder(root)
    check_can_hold_pack(root)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OutputLocked, OSError), locked_folder(root):
                if {path.name for path in root.iterdir()} <= {LOCK_NAME}:
                    removal.discard_entry(root)
        raise


@contextmanager
def locked_folder(
    root: Path, *, shared: bool = False, of_part: bool = False, create: bool = True
) -> Iterator[None]:
    """Lock a folder within a `with` block, or until the process ends, however it ends.

    The lock is on a file in the folder, which stays. Where the file system has no locks, that is
    said, and the block is entered without one.

    Args:
        root: the folder.
        shared: lock it together with others that do so; otherwise alone.
        of_part: the lock is that of a part of a job, shared with others, which need it.
        create: create the lock's file, and open it for writing; a folder that only lends its
            files need not be writable.

    Raises:
        OutputLocked: another process holds the lock.
        OutputRefused: the lock is of a part, and the file system has no locks.
        OSError: the folder has no such file that can be opened.
    """
    flags = os.O_RDONLY
    if create:
        flags = os.O_RDWR | os.O_CREAT
    kind = fcntl.LOCK_EX
    if shared or of_part:
        kind = fcntl.LOCK_SH
    descriptor = _lock(root, kind | fcntl.LOCK_NB, flags, of_part)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(root: Path, kind: int, flags: int, of_part: bool) -> int:
    """The descriptor of a folder's lock; see `locked_folder`."""
    for _ in range(_LOCK_TRIES):
        try:
            return file_locks.locked(root / LOCK_NAME, kind, flags)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        except file_locks.NoFileLocks as error:
            _go_on_or_refuse(error, of_part)
            return os.open(root / LOCK_NAME, flags | os.O_CLOEXEC, 0o666)
    raise OutputLocked(
        f"{root}: another process packs into this folder, or a part of a job; wait for its end"
    )


def check_locks(root: Path, of_part: bool = False) -> None:
    """Say, or raise, what `locked_folder` would if the file system has no locks. Writes nothing."""
    try:
        file_locks.try_locks(existing_parent(root))
    except file_locks.NoFileLocks as error:
        _go_on_or_refuse(error, of_part)


def _go_on_or_refuse(error: file_locks.NoFileLocks, of_part: bool) -> None:
    """Say that a folder is not locked; raise OutputRefused for a part of a job, which must be."""
    if not of_part:
        file_locks.go_on_unlocked(error, _WITHOUT_LOCKS)
        return
    raise OutputRefused(
        f"{error}, without which parts of a job cannot share a folder: mount it with locks "
        "(Lustre: -o flock; NFS: with a lock manager), or let each machine pack its tars into a "
        "folder of its own, without a part, and join these by `sa1bpack merge`; repair without a "
        "part"
    ) from None


@contextmanager
def alone_among_parts(root: Path) -> Iterator[None]:
    """Let one part of a job at a time into the block, which takes a moment."""
    files.make_folder(root / PARTS_NAME)
    with os.fdopen(file_locks.locked(root / PARTS_NAME / _PARTS_LOCK)):
        yield


@contextmanager
def working_folder(root: Path, *, of_part: bool) -> Iterator[Path]:
    """A folder under shards/ of this process, where shards are made until they get their names.

    As long as a part of a job is in the block, it holds a lock in the folder: a folder that nobody
    has locked was left by a killed process, and is removed by the next part. A command that has
    the pack alone needs no such lock. Raises OSError.
    """
    folder = root / SHARDS_NAME / (_WORKING + secrets.token_hex(8))
    lock = None
    if of_part:
        with alone_among_parts(root):
            _remove_abandoned(folder.parent)
            files.make_folder(folder)
            lock = file_locks.locked(folder / _PARTS_LOCK)
    else:
        files.make_folder(folder)
    try:
        yield folder
    finally:
        if lock is not None:  # first: a file that is open may keep its folder
            os.close(lock)
        removal.discard_entry(folder)


def _remove_abandoned(shards_dir: Path) -> None:
    """Remove the working folders of killed parts; the caller is alone among parts."""
    for folder in matching(shards_dir, _WORKING + "*"):
        try:
            lock = file_locks.locked(folder / _PARTS_LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except FileNotFoundError:  # its owner has removed it right now
            lock = None
        if lock is not None:
            os.close(lock)
        removal.discard_entry(folder)


def remove_unused_parts_folder(root: Path) -> None:
    """Remove PACK/.parts if no part has left anything for `finalize`; no part runs now."""
    folder = root / PARTS_NAME
    if is_folder(folder) and all(path.name == _PARTS_LOCK for path in folder.iterdir()):
        removal.remove_published(folder)
