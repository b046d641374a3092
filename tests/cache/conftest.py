"""Packs of a small layout, and what the tests of the cache share."""

import pytest
from cached_packs import driven  # noqa: F401 - a fixture
from layout_packs import layout_packs  # noqa: F401 - a fixture
from packs_with_sides import with_sides  # noqa: F401 - a fixture

from sa1bpack.cache import blocks


@pytest.fixture
def small_blocks(monkeypatch):
    """Every sample is a block of its own, as those of SA-1B at 1024 pixels are."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
