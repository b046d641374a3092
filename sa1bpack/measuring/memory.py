"""Memory (Linux): what processes take by themselves, and what the page cache holds of files."""

import ctypes
import mmap
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from sa1bpack.format.files import map_bytes
from sa1bpack.oserrors import naming

_libc = ctypes.CDLL(None, use_errno=True)

# What belongs to the processes alone: not files that are mapped, which the page cache holds.
_OWN = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB$", re.M)


def own_bytes() -> int:
    """Bytes of anonymous and shared memory of this process and its children, each page once."""
    total = 0
    for process in (os.getpid(), *_children(os.getpid())):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            sizes = _OWN.findall(Path(f"/proc/{process}/smaps_rollup").read_text())
            total += 1024 * sum(map(int, sizes))
    return total


def _children(process: int) -> list[int]:
    """The numbers of the processes that one has started, and of theirs."""
    children = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for child in map(int, path.read_text().split()):
                children += [child, *_children(child)]
    return children


def drop_pages(files: Iterable[Path]) -> None:
    """Drop the pages of files, except those that a process has mapped and used. Raises OSError."""
    for path in files:
        with path.open("rb") as file, naming(path):
            os.fdatasync(file.fileno())  # dirty pages are not dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_bytes(files: Iterable[Path]) -> int:
    """Bytes of files that are in the page cache, in whole pages. Raises OSError."""
    total = 0
    for path in files:
        if not (size := path.stat().st_size):
            continue
        pages = map_bytes(path, size)
        residency = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)  # a byte per page
        address = ctypes.c_void_p(pages.ctypes.data)
        length = ctypes.c_size_t(size)
        if _libc.mincore(address, length, ctypes.c_void_p(residency.ctypes.data)):
            raise OSError(ctypes.get_errno(), "mincore failed", str(path))
        total += int((residency & 1).sum()) * mmap.PAGESIZE
    return total
