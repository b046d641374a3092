"""How much is read ahead into the page cache at a time: what the system says of the disk."""

import os

import pytest

from sa1bpack.disk import page_cache

DISK = os.makedev(8, 0)
PARTITION = os.makedev(8, 1)
NETWORK = os.makedev(0, 45)
UNKNOWN = os.makedev(0, 46)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A system with a disk, a partition of it, and a network file system."""
    for name, kib in (("bdi/8:0", "8192"), ("bdi/0:45", "512"), ("sda/queue", "4")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "read_ahead_kb").write_text(f"{kib}\n")
    (tmp_path / "sda/sda1").mkdir()
    (tmp_path / "block").mkdir()
    (tmp_path / "block/8:1").symlink_to(tmp_path / "sda/sda1")
    patterns = (
        "bdi/{}/read_ahead_kb",
        "block/{}/queue/read_ahead_kb",
        "block/{}/../queue/read_ahead_kb",
    )
    monkeypatch.setattr(
        page_cache, "READ_AHEAD_SETTINGS", [f"{tmp_path}/{pattern}" for pattern in patterns]
    )
    page_cache.read_ahead_bytes.cache_clear()
    yield
    page_cache.read_ahead_bytes.cache_clear()


def test_the_read_ahead_is_that_of_the_disk_within_bounds(settings):
    found = [page_cache.read_ahead_bytes(device) for device in (DISK, NETWORK, PARTITION, UNKNOWN)]
    assert found == [1 << 20, 512 << 10, 128 << 10, 128 << 10]
