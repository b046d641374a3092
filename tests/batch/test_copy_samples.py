"""Where the Loader's copies read from: the memory map if the bytes are in memory, else the file."""

import errno
import os

import numpy as np
import pytest

from sa1bpack.batch.copy_samples import CUT_SHORT, copy_bytes


@pytest.fixture
def opened():
    files = []

    def open_file(path, flags=os.O_RDONLY) -> int:
        files.append(os.open(path, flags))
        return files[-1]

    yield open_file
    for file in files:
        os.close(file)


def copy(file: int, position: int, count: int) -> tuple[int, np.ndarray]:
    """Status and result of a copy whose map, unlike any real one, holds other bytes: all 7."""
    mapped = np.full(count, 7, np.uint8)
    target = np.zeros(count, np.uint8)
    status = copy_bytes(target.ctypes.data, mapped.ctypes.data, file, position, count)
    return status, target


def test_bytes_in_memory_are_copied_from_the_map(tmp_path, opened):
    (tmp_path / "file").write_bytes(bytes(range(100)))
    status, target = copy(opened(tmp_path / "file"), 10, 90)
    assert status == 0 and (target == 7).all()


def test_bytes_that_may_not_be_in_memory_are_read_from_the_file(opened):
    # A file system that cannot say whether reading would wait.
    file = opened("/proc/version")
    content = os.pread(file, 4096, 0)
    status, target = copy(file, 3, len(content) - 3)
    assert status == 0 and target.tobytes() == content[3:]


def test_a_file_that_ends_too_early_is_distinguished_from_an_error(tmp_path, opened):
    (tmp_path / "file").write_bytes(bytes(100))
    status, _ = copy(opened(tmp_path / "file"), 90, 20)
    assert status == CUT_SHORT


def test_an_error_of_the_system_is_returned_as_its_number(tmp_path, opened):
    (tmp_path / "file").write_bytes(bytes(100))
    status, _ = copy(opened(tmp_path / "file", os.O_WRONLY), 0, 20)
    assert status == errno.EBADF
    assert copy(opened(tmp_path), 0, 20)[0] == errno.EISDIR


def test_nothing_to_copy_needs_no_file():
    assert copy(-1, 0, 0)[0] == 0
