"""Names of files that are not a pack's: working names of unfinished ones, and those of the system.

A working name is always beside the final name, and what has it is never read back.
"""

import functools
import os
import re
import secrets
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import xxhash

# Working names of an unfinished file or folder: always beside its final name, never read back.
TEMPORARY_PREFIX = ".tmp-"
LOCK_SUFFIX = ".lock"  # of a file under a working name that only locks another
# The end of a working name: the process that uses it, see `temporary_beside`.
_OWNED = re.compile(r"-([0-9a-f]{8})\.([0-9]{1,10})\.([0-9]{1,18})-[0-9a-f]{8}$")
_LONGEST_STEM = 150  # bytes of a name in a working name; a file name has 255
_SECONDS_OF_OTHERS = 86_400.0
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


def temporary_beside(path: Path) -> Path:
    """A fresh working name in the same folder, so that the rename stays within one file system.

    It has the name of the process that uses it, so that `remove_leftovers` knows what is in use.
    """
    owner = _owner_name(os.getpid())
    return path.with_name(f"{working_name(path)}-{owner}-{secrets.token_hex(4)}")


def working_name(path: Path) -> str:
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


def is_left_over(path: Path) -> bool:
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
