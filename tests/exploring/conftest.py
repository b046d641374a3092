"""Pages that are served for a test, and clients that ask them as a browser would."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import command  # noqa: F401 - a fixture
from packs_with_features import with_features  # noqa: F401 - a fixture
from page_client import Client
from small_tars import SMALL, members, write_tar

import sa1bpack


@pytest.fixture(scope="session")
def pack(tmp_path_factory) -> Path:
    """A pack of 20 photos of three sizes with 0 to 6 masks, in shards of 4; never changed."""
    folder = tmp_path_factory.mktemp("exploring")
    sizes = ((64, 96), (96, 64), (50, 50))
    found = members(
        range(100, 120), masks=lambda number: number % 7, size=lambda number: sizes[number % 3]
    )
    tar = write_tar(folder / "sa_000000.tar", found)
    sa1bpack.pack(tar, folder / "pack", workers=1, max_masks=None, **SMALL)
    return folder / "pack"


@pytest.fixture
def served(tmp_path) -> Iterator[Callable[..., Client]]:
    """served(pack): a client of a page about it, which saves into tmp_path / "saved"."""
    pages = []
    (tmp_path / "saved").mkdir()

    def served(pack, **options) -> Client:
        pages.append(sa1bpack.explore(pack, **{"port": 0, "folder": tmp_path / "saved", **options}))
        return Client(pages[-1].url)

    yield served
    for page in pages:
        page.close()


@pytest.fixture(scope="session")
def client(pack, tmp_path_factory) -> Iterator[Client]:
    """A client of a page about the pack, with which nothing is saved."""
    with sa1bpack.explore(pack, port=0, folder=tmp_path_factory.mktemp("unused")) as page:
        yield Client(page.url)


@pytest.fixture
def saver(served, pack) -> Client:
    """A client of a page about the pack, which saves into tmp_path / "saved"."""
    return served(pack)
