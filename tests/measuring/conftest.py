"""A pack of a small layout that measurements read."""

from page_cache import direct_folder  # noqa: F401 - a fixture
from reading_packs import packed  # noqa: F401 - a fixture
from simulated_loading import cuda  # noqa: F401 - a fixture
