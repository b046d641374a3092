"""A pack to damage, and the tars that it was packed from."""

import shutil
from pathlib import Path

import pytest
from small_tars import contents, members, pack_small, write_tar


@pytest.fixture(scope="session")
def tars(tmp_path_factory):
    """Two tars of eleven photos: six shards, a reject in one, and one reject of a source."""
    folder = tmp_path_factory.mktemp("repair")
    found = members(range(11))
    found["./sa_5.json"] = b"{ not json"
    del found["./sa_10.json"]
    return [
        write_tar(folder / "sa_000000.tar", found, shuffle=3),
        write_tar(folder / "sa_000001.tar", members(range(20, 31)), shuffle=4),
    ]


@pytest.fixture(scope="session")
def sound(tars, tmp_path_factory) -> Path:
    """An undisturbed pack of `tars`; copied, never changed."""
    root = tmp_path_factory.mktemp("repair") / "pack"
    pack_small(tars, root)
    return root


@pytest.fixture(scope="session")
def expected(sound) -> dict[str, bytes]:
    return contents(sound)


@pytest.fixture
def root(sound, tmp_path) -> Path:
    return shutil.copytree(sound, tmp_path / "pack")
