"""How shards are opened: the cache of the process, its limit, and work in other threads."""

import threading

import pytest

from sa1bpack.dataset.pack_folder import PackFolder
from sa1bpack.dataset.shard_cache import CACHE

PATIENCE = 60  # seconds until a test that would hang fails
ARRAYS = 18  # of a shard with samples in the layout of `packed`


@pytest.fixture
def cache():
    """The cache of open shards, emptied."""
    CACHE.drop(lambda opened: True)
    return CACHE


@pytest.fixture
def limited(cache, monkeypatch):
    """limited(maps): the cache, which now keeps no more memory maps than that."""

    def limit(maps):
        monkeypatch.setattr(cache, "limit", maps)
        return cache

    return limit


@pytest.fixture
def around(monkeypatch):
    """around(function): call function(folder) in each opening of a shard, before its work."""

    def patch(before):
        real = PackFolder.open_shard

        def opening(pack, number):
            before(pack.shard_path(number))
            return real(pack, number)

        monkeypatch.setattr(PackFolder, "open_shard", opening)

    return patch


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
