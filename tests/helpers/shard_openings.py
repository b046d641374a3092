"""How shards are opened: the cache of a test's own, its limit, and work in other threads."""

import threading

import pytest

from sa1bpack.dataset import shard_cache, shards
from sa1bpack.dataset.shard_cache import ShardCache

PATIENCE = 60  # seconds until a test that would hang fails
ARRAYS = 18  # of a shard with samples in the layout of `packed`


@pytest.fixture
def cache(monkeypatch):
    """A cache of its own for the packs that a test opens."""
    found = ShardCache()
    monkeypatch.setattr(shard_cache, "CACHE", found)
    return found


@pytest.fixture
def around(monkeypatch):
    """around(function): call function(folder) in each opening of a shard, before its work."""

    def patch(before):
        real = shards.open_checked

        def opening(folder, *arguments):
            before(folder)
            return real(folder, *arguments)

        monkeypatch.setattr(shards, "open_checked", opening)

    return patch


def limited(monkeypatch, limit: int) -> ShardCache:
    """A cache of so many memory maps for the packs that a test opens."""
    found = ShardCache(limit)
    monkeypatch.setattr(shard_cache, "CACHE", found)
    return found


def in_thread(work):
    """Run `work` in a thread; returns a function that waits for its result."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()

    def result():
        thread.join(PATIENCE)
        assert found, "the thread failed or hangs"
        return found[0]

    return result
