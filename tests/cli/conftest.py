"""The command line, called within this process, and a small pack to call it with."""

import shutil
from pathlib import Path

import pytest
from commands import command  # noqa: F401 - a fixture
from small_packs import pack_small
from small_tars import members, write_tar
from system import free  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A folder with a tar of six images, image n with n masks, and its pack; never changed."""
    folder = tmp_path_factory.mktemp("made")
    tar = write_tar(folder / "sa_000000.tar", members(range(6), masks=lambda n: n))
    pack_small(tar, folder / "pack")
    return folder


@pytest.fixture
def tar(made, tmp_path) -> Path:
    return Path(shutil.copy2(made / "sa_000000.tar", tmp_path))


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "pack"


@pytest.fixture
def packed(made, tar, root) -> Path:
    """The pack, which a test may change, beside its tar."""
    return Path(shutil.copytree(made / "pack", root))
