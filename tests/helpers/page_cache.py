"""The page cache in tests: what of a file is in it, and dropping files from it."""

import ctypes
import errno
import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from sa1bpack.disk.aio import CONTEXTS, REQUEST

BLOCK = 4096  # what is read past the page cache is of whole blocks, and so is its memory
_libc = ctypes.CDLL(None, use_errno=True)


def aligned(nbytes: int) -> np.ndarray:
    """New memory, uint8 (nbytes,), that begins at a block boundary."""
    return np.frombuffer(mmap.mmap(-1, max(1, nbytes)), np.uint8)[:nbytes]


def resident(path: Path) -> np.ndarray:
    """bool (pages,): which pages of a file are in memory."""
    if path.stat().st_size == 0:
        return np.zeros(0, bool)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        content = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-len(content) // mmap.PAGESIZE), np.uint8)
        address = ctypes.c_void_p(content.ctypes.data)
        failed = _libc.mincore(address, ctypes.c_size_t(len(content)), pages.ctypes.data_as(
            ctypes.POINTER(ctypes.c_ubyte)))  # fmt: skip
        del content
        assert failed == 0, os.strerror(ctypes.get_errno())
    return pages & 1 == 1


def drop(*paths: Path) -> None:
    """Drop files from the page cache; asserts that they are out of it."""
    for path in paths:
        forget(path)
        if resident(path).any():
            gc.collect()  # what is mapped stays in memory, and garbage of other tests may map it
            forget(path)
        assert not resident(path).any(), path


def forget(path: Path) -> None:
    """Drop what can be dropped of a file: pages that a process has mapped and used stay."""
    file = os.open(path, os.O_RDONLY)
    os.fdatasync(file)  # os.fsync does nothing in tests
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def why_not_direct(folder: Path) -> str | None:
    """Why files of a folder cannot be read past the page cache; None if they can."""
    probe = folder / "probe"
    probe.write_bytes(bytes(BLOCK))
    file = None
    try:
        file = os.open(probe, os.O_RDONLY | os.O_DIRECT)
        context, memory = CONTEXTS.take(), aligned(BLOCK)
        request = np.array([(file, 0, BLOCK, memory.ctypes.data, BLOCK)], REQUEST)
        [code] = context.read(request).tolist()
        CONTEXTS.append(context)
    except OSError as error:
        code = error.errno
    finally:
        if file is not None:
            os.close(file)
        probe.unlink()
    return f"{folder} has no direct reads: {errno.errorcode.get(code, code)}" if code else None


@pytest.fixture(scope="session")
def direct_folder(tmp_path_factory) -> Path:
    """A folder whose files can be read past the page cache; skips where there is none."""
    folder = tmp_path_factory.mktemp("direct")
    if reason := why_not_direct(folder):
        pytest.skip(reason)
    return folder
