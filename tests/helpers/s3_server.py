"""moto's server of S3, on loopback."""

import functools
import os
import urllib.request
from collections.abc import Iterator, Mapping

import pytest


class S3Server:
    """A running server: its URL, and buckets made over its API without a client library."""

    def __init__(self, url: str):
        self.url = url

    def make_bucket(self, name: str) -> None:
        """Create a bucket."""
        self._put(name, b"")

    def put(self, bucket: str, key: str, data: bytes, *, public: bool = False) -> None:
        """Store an object, which anyone may read if it is public."""
        self._put(f"{bucket}/{key}", data, {"x-amz-acl": "public-read"} if public else {})

    def _put(self, path: str, data: bytes, headers: Mapping[str, str] = {}) -> None:
        headers = {"Content-Type": "application/octet-stream", **headers}  # else a form is expected
        request = urllib.request.Request(f"{self.url}/{path}", data, headers, method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            pass


def s3_client():
    """botocore's client, for the server that the environment names."""
    return _client_of(os.environ["AWS_ENDPOINT_URL"])


@functools.cache
def _client_of(url: str):
    """One for each server: making one takes most of a second."""
    import botocore.session  # tests that need a GPU run without it

    session = botocore.session.Session()
    return session.create_client("s3", region_name="us-east-1", endpoint_url=url)


def use_s3(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what the AWS command line needs to use a server, and nothing of this machine's."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-key")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def s3_process() -> Iterator[S3Server]:
    """One server for all tests; each makes buckets of its own."""
    from moto.server import ThreadedMotoServer  # tests that need a GPU run without it

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(f"http://{host}:{port}")
    server.stop()


@pytest.fixture
def s3(s3_process, monkeypatch):
    """The server, as what the environment names."""
    use_s3(s3_process.url, monkeypatch)
    return s3_process
