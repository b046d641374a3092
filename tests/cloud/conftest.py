"""Servers for these tests."""

from fault_server import web  # noqa: F401 - a fixture
from s3_server import s3, s3_process  # noqa: F401 - fixtures
