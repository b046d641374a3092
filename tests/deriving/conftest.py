"""A small pack, and its own copy for one test."""

import shutil
from pathlib import Path

import pytest
from commands import command  # noqa: F401 - a fixture
from layout_packs import layout_packs  # noqa: F401 - a fixture
from reading_packs import packed  # noqa: F401 - a fixture

import sa1bpack


@pytest.fixture
def pack(packed, tmp_path) -> Path:  # noqa: F811
    return Path(shutil.copytree(packed.root, tmp_path / "pack"))


@pytest.fixture
def ds(pack):
    return sa1bpack.open(pack)
