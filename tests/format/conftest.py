"""Packs of a small layout."""

import shutil
from pathlib import Path

import pytest
from narrow_packs import pack_of


@pytest.fixture(scope="session")
def pristine_pack(tmp_path_factory) -> Path:
    """A pack that no test may change."""
    root = tmp_path_factory.mktemp("pristine") / "pack"
    pack_of(root)
    return root


@pytest.fixture
def pack(pristine_pack, tmp_path) -> Path:
    """A private copy of the pack for one test."""
    return Path(shutil.copytree(pristine_pack, tmp_path / "pack"))
