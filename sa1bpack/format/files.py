"""Files written completely or not at all, and their checksums.

Short writes, flushing, atomic replacement and mapping are handled here; checksums are XXH3-128, in
a form that `xxhsum -c` checks.
"""

import ctypes
import errno
import fcntl
import functools
import glob
import hashlib
import logging
import mmap
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import xxhash

from sa1bpack.errors import FormatError
from sa1bpack.paths import exists, is_file, is_folder, matching, naming
from sa1bpack.wording import brief

# All of SA-1B has 1 MB of manifest, and 100 kB of metadata per shard; a source of MAX_REJECTS
# rejects adds 40 MB. Hostile JSON takes 25 times its size in memory.
MAX_METADATA_BYTES = 1 << 28

REMEDY = "restore the file from a copy, or rebuild it with `sa1bpack repair PACK TARS`"

# Working names of an unfinished file or folder: always beside its final name, never read back.
TEMPORARY_PREFIX = ".tmp-"
_SET_ASIDE = TEMPORARY_PREFIX + "old-"
LOCK_SUFFIX = ".lock"  # of a file under a working name that only locks another
# The end of a working name: the process that uses it, see `temporary_beside`.
_OWNED = re.compile(r"-([0-9a-f]{8})\.([0-9]{1,10})\.([0-9]{1,18})-[0-9a-f]{8}$")
_LONGEST_STEM = 150  # bytes of a name in a working name; a file name has 255
_SECONDS_OF_OTHERS = 86_400.0
_REMOVED = TEMPORARY_PREFIX + "removed-"

# What flock(2) answers where the file system has no locks: ENOSYS by Lustre mounted without them,
# ENOLCK by NFS without a lock manager and by 9p, EBADF by EFS and some NFS servers, EOPNOTSUPP and
# EINVAL by file systems in user space. Other errors are those of a disk or a server that fails.
_NO_LOCKS = frozenset(
    {errno.ENOSYS, errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
)
# Removal leaves what answers so: a file that is in use, and the folder that it is in.
_IN_USE = frozenset({errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST})
# Beginnings of the names under which network file systems keep a removed file that is in use: NFS,
# FUSE (sshfs, s3fs), SMB and AFS. They remove it themselves when it is closed.
_KEPT_PREFIXES = (".nfs", ".fuse_hidden", ".smb", ".__afs")
# Of macOS, Windows, desktops, network disks and file systems.
_SYSTEM_NAMES = frozenset(
    {
        ".DS_Store",
        ".directory",
        ".fseventsd",
        ".localized",
        ".snapshot",
        ".Spotlight-V100",
        ".TemporaryItems",
        ".Trashes",
        "$RECYCLE.BIN",
        "@eaDir",
        "desktop.ini",
        "Desktop.ini",
        "ehthumbs.db",
        "lost+found",
        "System Volume Information",
        "Thumbs.db",
    }
)
_SYSTEM_PREFIXES = ("._", ".Trash-")

_log = logging.getLogger("sa1bpack")
# File systems without locks that a warning of this process has named, with what it said is lost.
told: set[tuple[int, str]] = set()


class NoFileLocks(OSError):
    """The file system of a file has no locks of files."""

    def __str__(self) -> str:
        return f"{self.filename}: its file system has no file locks (flock: {self.strerror})"


def byte_view(array: np.ndarray) -> np.ndarray:
    """The bytes of a C-contiguous array as a flat uint8 view, without copying."""
    return array.reshape(-1).view(np.uint8)


def is_shortage(error: OSError) -> bool:
    """True if the system refused memory or an open file for lack of resources."""
    return error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def write_at(fd: int, data: bytes | memoryview | np.ndarray, offset: int, path: Path) -> None:
    """Write all of `data` at a byte offset; `path` is named in the OSError.

    The kernel may write less than asked (a signal, at most 2 GiB per call, a disk that fills up),
    so the rest is written until nothing is left.
    """
    view = memoryview(data)  # type: ignore[arg-type]  # arrays are buffers, as types say from 3.12
    with naming(path):
        while view.nbytes:
            count = os.pwrite(fd, view, offset)
            view = view[count:]
            offset = offset + count


def read_at(fd: int, out: np.ndarray, offset: int, path: Path | str) -> None:
    """Read from a byte offset until a flat uint8 array is full; `path` is named in errors.

    Raises FormatError if the file ends earlier, OSError if it cannot be read.
    """
    filled = 0
    with naming(path):
        while filled < out.size:
            count = os.preadv(fd, [out[filled:].data], offset + filled)
            if count == 0:
                raise cut_short(path, offset + filled, offset + out.size)
            filled += count


def cut_short(path: Path | str, end: int, needed: int) -> FormatError:
    """The error for a file that ends at a byte, but must have rows up to another."""
    return FormatError(
        f"{path}: cut short: it ends at byte {end}, but must have rows up to byte {needed}; "
        "restore it"
    )


def missing(path: Path) -> FormatError:
    """The error for a file of a pack that is missing, alone or with folders above it."""
    gone = path
    while not exists(gone.parent):
        gone = gone.parent
    extent = ""
    if gone != path:
        extent = f", with all of {gone} (if that was moved or is not mounted, open it where it is)"
    return FormatError(f"{path}: missing{extent}; {REMEDY}")


def open_file(path: Path) -> int:
    """A descriptor for reading a regular file; does not wait if it is a pipe.

    Raises FormatError if it is anything else, OSError if it cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with naming(path):
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise FormatError(f"{path}: a folder, a pipe or a device, where a file must be; restore it")


def read_metadata_file(path: Path) -> bytes:
    """The bytes of a small file of a pack.

    Raises FormatError if it is not a regular file or larger than MAX_METADATA_BYTES (a hole of any
    size costs nothing on disk, but all of the memory), OSError if it cannot be read.
    """
    with naming(path), os.fdopen(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_METADATA_BYTES:
            raise FormatError(
                f"{path}: {size} bytes, but a file of its kind has at most "
                f"{MAX_METADATA_BYTES}; restore it"
            )
        return file.read()


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a file or a folder, closed at the end."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename in it survives a power failure."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd, naming(folder):
        os.fsync(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, so that they survive a power failure."""
    for path in (*reversed(folder.parents), folder):
        if not exists(path):
            path.mkdir(exist_ok=True)
            flush_folder(path.parent)


def lock_open_file(descriptor: int, kind: int, path: Path) -> None:
    """Lock an open file until it is closed or the process ends, however it ends.

    NFS supports locks of files between machines, but not locks of folders.

    Args:
        descriptor: descriptor of the file.
        kind: as in `fcntl.flock`.
        path: path of the file, for errors.

    Raises:
        BlockingIOError: another process has the lock, and `kind` says not to wait.
        NoFileLocks: its file system has no locks.
        OSError: locking fails.
    """
    try:
        fcntl.flock(descriptor, kind)
    except OSError as error:
        if error.errno == errno.EACCES:  # as SMB says that another has it
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path)) from error
        if error.errno in _NO_LOCKS:
            raise NoFileLocks(error.errno, error.strerror, str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def locked(path: Path, kind: int = fcntl.LOCK_EX, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """The descriptor of a file, locked until it is closed or the process ends, however it ends.

    Args:
        path: path of the file.
        kind, flags: as in `fcntl.flock` and `os.open`.

    Raises:
        OSError: the file cannot be opened.
        Whatever `lock_open_file` raises.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        lock_open_file(descriptor, kind, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def try_locks(folder: Path) -> None:
    """Raise NoFileLocks if files in a folder cannot be locked, as tried with one without a name.

    Other errors are left to the command that makes or locks a file there.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX) as file:
            lock_open_file(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, folder)
    except NoFileLocks:
        raise
    except OSError:
        return


def go_on_unlocked(error: NoFileLocks, lost: str) -> None:
    """Say, once per file system, that work continues without locks, and what is lost."""
    folder = Path(error.filename)
    while not exists(folder):
        folder = folder.parent
    key = folder.stat().st_dev, lost
    if key not in told:
        told.add(key)
        _log.warning("%s; going on without: %s", error, lost)


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and flush it to disk. Not atomic: for files of an unpublished folder."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        write_at(fd, data, 0, path)
        with naming(path):
            os.fsync(fd)


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


def temporary_beside(path: Path) -> Path:
    """A fresh working name in the same folder, so that the rename stays within one file system.

    It has the name of the process that uses it, so that `remove_leftovers` knows what is in use.
    """
    owner = _owner_name(os.getpid())
    return path.with_name(f"{_working_name(path)}-{owner}-{secrets.token_hex(4)}")


def _working_name(path: Path) -> str:
    """The beginning of the working names of a file or folder, of a length that fits a file name."""
    return TEMPORARY_PREFIX + os.fsdecode(os.fsencode(path.name)[:_LONGEST_STEM])


@functools.lru_cache(maxsize=1)
def _owner_name(process: int) -> str:
    """The name of this process, "MACHINE.PID.START": no other process ever has the same."""
    return f"{_machine_name()}.{process}.{_start_of(process)}"


def _machine_name() -> str:
    """8 hexadecimal digits for the processes among which a number names one: a machine, or a pod.

    They change when the machine starts again.
    """
    marks = [os.uname().nodename]
    with suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        marks.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return xxhash.xxh32_hexdigest("\n".join(marks).encode())


def _start_of(process: int) -> int:
    """The time at which a process began, in ticks since the machine did; 0 if there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_owned(name: str) -> bool:
    """True for a working name that has a process in it, see `temporary_beside`."""
    return _OWNED.search(name) is not None


def _is_left_over(path: Path) -> bool:
    """True for an entry under a working name whose process has ended.

    Of another machine, and of a name without a process, only what has not changed for a day.
    """
    match = _OWNED.search(path.name)
    if match is not None and match[1] == _machine_name():
        return _start_of(int(match[2])) != int(match[3])
    with suppress(OSError):
        age = time.time() - path.lstat().st_mtime
        if age > _SECONDS_OF_OTHERS:  # unless the clock of this machine is wrong
            age = _clock_of(path.parent) - path.lstat().st_mtime
        return age > _SECONDS_OF_OTHERS
    return False


def _clock_of(folder: Path) -> float:
    """The time by the clock of a folder's file system, such as that of a server. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX) as file:
        return os.fstat(file.fileno()).st_mtime


def remove_leftovers(path: Path) -> None:
    """Remove what killed processes left under working names of a file or folder, in its place."""
    for left in matching(path.parent, glob.escape(_working_name(path)) + "-*"):
        if _is_left_over(left):
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
        if _is_left_over(left):
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
                doomed = _renamed_to_remove(path, folder / f"{_REMOVED}{secrets.token_hex(8)}")
            except FileNotFoundError:  # another process removes it, too
                continue
        remove_entry(doomed)


def put_in_place(folder: Path, final: Path) -> None:
    """Give a complete folder a final name; whatever had that name is removed.

    Readers, also after a kill, find the old entry or the new one: the two exchange their names
    in one step. Where the file system cannot do that (NFS, for one), the old entry is
    renamed first, and renamed back if the second rename fails; after a kill between the two,
    `restore_set_aside` puts it back. An entry that cannot be renamed, see `_renamed_to_remove`, is
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
        is_renamed = _renamed_to_remove(final, aside) == aside
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


def is_of_system(name: str) -> bool:
    """True for a name that an operating or a file system puts into folders of its own accord."""
    return name in _SYSTEM_NAMES or name.startswith(_SYSTEM_PREFIXES) or is_kept_in_use(name)


def is_passed_over(name: str) -> bool:
    """True for a name at the top of a pack, under shards/ or in a feature that means nothing there.

    It is that of a working file, or `is_of_system`.
    """
    return name.startswith(".") or is_of_system(name)


def is_kept_in_use(name: str) -> bool:
    """True for the name under which a network file system keeps a removed file that is in use."""
    return name.startswith(_KEPT_PREFIXES)


def remove_published(folder: Path) -> None:
    """Remove a folder that has a final name, which it loses first, durably.

    So whatever has a final name is complete, even if this is interrupted, the power fails, or a
    file of it is in use, see `remove_entry`. Of a shard or an index that was moved to another disk,
    only the link is removed.
    """
    doomed = _renamed_to_remove(folder, temporary_beside(folder))
    flush_folder(folder.parent)
    remove_entry(doomed)


def _renamed_to_remove(path: Path, name: Path) -> Path:
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


def map_bytes(path: Path, nbytes: int) -> np.ndarray:
    """The first `nbytes` bytes of a file as a (nbytes,) uint8 memory map, read-only.

    Unlike `np.memmap` it holds no file descriptor: all arrays of a thousand shards can be mapped
    under the usual limit of 1024 open files. The map is released with the last view of it.

    Raises FormatError if the file is shorter (touching a page past its end would kill the
    process), OSError if it cannot be opened or mapped.
    """
    if nbytes == 0:
        return np.frombuffer(b"", np.uint8)
    with opened(path, os.O_RDONLY) as fd, naming(path):
        size = os.fstat(fd).st_size
        if size < nbytes:
            raise FormatError(f"{path}: {size} bytes, but {nbytes} are to be mapped; restore it")
        # `mmap.mmap` of a file keeps a descriptor. This one has none, and the file is mapped in its
        # place: it is compiled code that unmaps it, so no interrupt can prevent that.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mapped = np.frombuffer(mmap.mmap(-1, nbytes, flags=flags, prot=mmap.PROT_READ), np.uint8)
        address = mapped.__array_interface__["data"][0]
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if _libc.mmap(address, nbytes, mmap.PROT_READ, flags, fd, 0) == _MAP_FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    return mapped


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.renameat2.argtypes = (
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint,
)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_MAP_FIXED = 0x10  # in the place of what is mapped there
_MAP_FAILED = ctypes.c_void_p(-1).value


# ------------------------------------------------------------------------------------- checksums

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
