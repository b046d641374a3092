"""Packs of a small layout that the tests of the reading side share."""

import pytest
from layout_packs import layout_packs  # noqa: F401 - a fixture
from loader_seams import ends_within, memory, pools  # noqa: F401 - fixtures
from page_cache import direct_folder  # noqa: F401 - a fixture
from reading_packs import damaged, ds, packed, root, several  # noqa: F401 - fixtures
from s3_server import s3, s3_process  # noqa: F401 - fixtures
from simulated_loading import cuda  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def threads_are_waited_for(monkeypatch):
    """Where an epoch ends, its threads have, however slow the machine is."""
    ends_within(monkeypatch, 100.0)
