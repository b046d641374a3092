"""A folder whose files can be read past the page cache."""

from page_cache import direct_folder  # noqa: F401 - a fixture
