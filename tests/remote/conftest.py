"""Servers, packs of a small layout, and origins that tests drive."""

import pytest
from cached_packs import driven  # noqa: F401 - a fixture
from commands import command  # noqa: F401 - a fixture
from fault_server import proxy, proxy_process, web  # noqa: F401 - fixtures
from layout_packs import layout_packs  # noqa: F401 - a fixture
from packs_with_features import with_features  # noqa: F401 - a fixture
from s3_server import s3, s3_process  # noqa: F401 - fixtures
from system import free  # noqa: F401 - a fixture

from sa1bpack.remote import bucket


@pytest.fixture
def small_requests(monkeypatch):
    """Objects of a small pack are read in ranges of 16 KiB, and written in parts of 64 KiB."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)
    monkeypatch.setattr(bucket, "RANGE_BYTES", 1 << 14)
    monkeypatch.setattr(bucket, "PART_BYTES", 1 << 16)
