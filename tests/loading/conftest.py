"""Packs of a small layout that the tests of the reading side share."""

import pytest
from layout_packs import layout_packs  # noqa: F401 - a fixture
from page_cache import direct_folder  # noqa: F401 - a fixture
from reading_packs import damaged, ds, packed, root, several  # noqa: F401 - fixtures
from s3_server import s3, s3_process  # noqa: F401 - fixtures
from simulated_loading import cuda  # noqa: F401 - a fixture

from sa1bpack.loading import iteration


@pytest.fixture(autouse=True)
def threads_are_waited_for(monkeypatch):
    """Where an epoch ends, its threads have, however slow the machine is."""
    monkeypatch.setattr(iteration, "END_SECONDS", 100.0)
