"""A pack of photographs with exact runs, whose records the tests know."""

from types import SimpleNamespace

import pytest
from frameworks import has_torchvision
from small_tars import members, pack_small, record, write_tar

has_torchvision()  # before other frameworks import it

MASKS = (3, 0, 5, 1, 4)


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> SimpleNamespace:
    """A pack that no test may change, its `root`; by image id, `records` are its JSON."""
    folder = tmp_path_factory.mktemp("photos")
    tar = write_tar(folder / "sa_000000.tar", members(range(len(MASKS)), MASKS.__getitem__))
    pack_small(tar, folder / "packed")
    records = {number: record(number, masks) for number, masks in enumerate(MASKS)}
    return SimpleNamespace(root=folder / "packed", records=records)
