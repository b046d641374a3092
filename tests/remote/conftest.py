"""Servers, packs of a small layout, and origins that tests drive."""

from cached_packs import driven  # noqa: F401 - a fixture
from commands import command  # noqa: F401 - a fixture
from fault_server import proxy, proxy_process, web  # noqa: F401 - fixtures
from layout_packs import layout_packs  # noqa: F401 - a fixture
from packs_with_features import with_features  # noqa: F401 - a fixture
from s3_server import s3, s3_process  # noqa: F401 - fixtures
from system import free  # noqa: F401 - a fixture
