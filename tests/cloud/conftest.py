"""A server of S3 for these tests."""

import pytest
from s3_server import s3_server, use_s3


@pytest.fixture(scope="session")
def s3_process():
    """One server for all tests; each makes buckets of its own."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_process, monkeypatch):
    """The server, as what the environment names."""
    use_s3(s3_process, monkeypatch)
    return s3_process
