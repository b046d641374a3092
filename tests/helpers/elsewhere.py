"""A folder in another file system than that of the tests, where there is one."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
