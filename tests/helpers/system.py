"""What the operating system has for tests: peak memory, open files, fewer rights, another disk."""

import ctypes
import os
import subprocess
import sys
import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sa1bpack.finalizers import settle

_HELPERS = Path(__file__).parent
_WRAPPER = """
import sys
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
import {imports}
before = peak()
{program}
print((peak() - before) >> 10)
"""


def peak_growth(program: str, *arguments, imports: str) -> int:
    """MiB of a program's peak memory, in addition to that of `imports` alone.

    `arguments` are its `sys.argv[1:]`. Raises AssertionError if the program fails.
    """
    text = _WRAPPER.format(imports=imports, program=program)
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(_HELPERS)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout.split()[-1])


def open_files() -> list[tuple[int, str]]:
    """(descriptor, path) of all that is open; sockets and pipes have names of the system."""
    settle()  # what objects that are gone had open is closed
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            found.append((int(link.name), os.readlink(link)))  # noqa: PTH115 - some are not paths
    return found


def failing(code: int) -> Callable[..., None]:
    """In place of a call of the system: it raises the error with this code."""

    def fail(*_, **__) -> None:
        raise OSError(code, os.strerror(code))

    return fail


_VERSION_3 = 0x20080522  # of linux/capability.h
_Sets = ctypes.c_uint32 * 6  # (effective, permitted, inheritable), twice: 32 capabilities each


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def give_up_privileges() -> None:
    """Drop all capabilities permanently. With them, root can write whatever the modes are."""
    if os.getuid() == 0:
        _call("capset", _Sets())


@contextmanager
def without_privileges() -> Iterator[None]:
    """Drop the capabilities of this thread within the block."""
    if os.getuid() != 0:
        yield
        return
    before, fewer = _Sets(), _Sets()
    _call("capget", before)
    fewer[1], fewer[4] = before[1], before[4]  # permitted, so that they can be restored
    _call("capset", fewer)
    try:
        yield
    finally:
        _call("capset", before)


def _call(name: str, sets: ctypes.Array) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(ctypes.byref(_Header(_VERSION_3, 0)), sets):
        raise OSError(ctypes.get_errno(), name)


_MEMORY = Path("/dev/shm")


@pytest.fixture
def elsewhere(tmp_path) -> Iterator[Path]:
    """A folder of a tmpfs, to which files of `tmp_path` can be neither linked nor cloned."""
    if not _MEMORY.is_dir() or not os.access(_MEMORY, os.W_OK):
        pytest.skip(f"{_MEMORY}, the second file system of this test, cannot be written here")
    if _MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip(f"{tmp_path} is in {_MEMORY}: there is no second file system here")
    with tempfile.TemporaryDirectory(prefix="sa1bpack-tests-", dir=_MEMORY) as folder:
        yield Path(folder)


def prefer_other_decoder(folder: Path) -> None:
    """From now on, as if simplejpeg 9.9 were installed: the JPEG decoder, whose version is recorded
    with what it made; `folder` is for its metadata."""
    metadata = folder / "simplejpeg-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    metadata.write_text("Metadata-Version: 2.1\nName: simplejpeg\nVersion: 9.9\n")
    sys.path.insert(0, str(folder))


@pytest.fixture
def other_decoder(tmp_path, monkeypatch) -> Callable[[], None]:
    """other_decoder(): from now on, as if simplejpeg 9.9 were installed."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return lambda: prefer_other_decoder(tmp_path / "other")


@pytest.fixture
def free(monkeypatch) -> Callable[[int], None]:
    """free(nbytes): from now on every disk has so many free bytes."""
    usage = namedtuple("usage", "total used free")

    def free(nbytes: int) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**15, 0, nbytes))

    return free
