"""Packs of a small layout that the tests of the reading side share."""

from commands import command  # noqa: F401 - a fixture
from layout_packs import layout_packs  # noqa: F401 - a fixture
from reading_packs import ds, packed, root, several  # noqa: F401 - fixtures
from shard_openings import around, cache, limited  # noqa: F401 - fixtures
from simulated_loading import cuda  # noqa: F401 - a fixture
