"""Tars, plain and gzip, and folders with the same pairs."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from layout_packs import layout_packs  # noqa: F401 - a fixture
from small_tars import members, photo, write_tar


@pytest.fixture(scope="session")
def found_members():
    """Photos 1 to 8 with as many masks each, one without a record, one that is no JPEG."""
    found = members(range(1, 9), masks=lambda number: number)
    found["./sa_900.jpg"] = photo(900)
    found["./sa_4.jpg"] = b"not a JPEG"
    return found


@pytest.fixture
def source(tmp_path, found_members) -> Callable[[str], Path]:
    """source(kind) → a fresh tar or folder of `found_members`."""

    def make(kind: str) -> Path:
        tar = write_tar(tmp_path / "sa_000007.tar", found_members, compress=kind == "gzip-tar")
        if kind != "folder":
            return tar
        with tarfile.open(tar) as file:
            file.extractall(tmp_path / "sa_000007", filter="data")
        return tmp_path / "sa_000007"

    return make
