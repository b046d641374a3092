"""The buffers of a Loader: bounds, wake-ups, and none lost or added without need."""

import gc
import threading

import numpy as np
import pytest
from batches import join_readers, readers, rows_of
from loader_seams import around_takes, before_copies, ends_within

from sa1bpack import Loader, LoaderError
from sa1bpack.errors import LoaderTimeout
from sa1bpack.finalizers import settle


@pytest.fixture
def held(monkeypatch):
    """Copies that hang until `release` is set; `begun` is set by the first."""
    ends_within(monkeypatch, 0.0)
    begun, release = threading.Event(), threading.Event()

    def hang(_):
        begun.set()
        assert release.wait(60)

    before_copies(monkeypatch, hang)
    yield begun, release
    release.set()
    join_readers()


def living(memory) -> int:
    settle()
    return sum(one() is not None for one in memory)


def test_buffers_beyond_the_plan_are_gone_with_the_batches_that_held_them(ds, memory):
    with Loader(ds, 1, prefetch=1) as loader:
        planned, kept = loader.plan().batches, list(loader)
        assert len(memory) >= len(kept) == 12
        kept.clear()
        assert living(memory) == planned


def test_garbage_is_collected_seldom_for_a_consumer_that_keeps_every_batch(ds, monkeypatch, memory):
    """A collection takes as long as many batches; `list(loader)` would spend its time on them."""
    many, collections = ds[np.arange(200) % 12], []
    with Loader(many, 1, prefetch=1) as loader, monkeypatch.context() as patch:
        patch.setattr(gc, "collect", lambda: collections.append(len(memory)))
        assert len(list(loader)) == 200 and 1 <= len(collections) <= 8


def test_where_a_collection_frees_batches_no_buffer_is_added(ds, memory):
    gc.collect()
    gc.disable()
    try:
        with Loader(ds, 1, prefetch=1) as loader:
            for batch in loader:
                cycle = [batch]
                cycle.append(cycle)
            assert len(memory) == loader.plan().batches
    finally:
        gc.enable()


def test_close_wakes_a_consumer_that_waits(ds, held):
    begun, _ = held
    loader, found = Loader(ds, 1, threads=1, timeout=1000), []

    def take():
        try:
            found.append(next(iter(loader)))
        except LoaderError as error:
            found.append(error)

    consumer = threading.Thread(target=take)
    consumer.start()
    assert begun.wait(60)
    loader.close()
    consumer.join(30)
    assert not consumer.is_alive() and "ended by" in str(found[0])


def test_late_threads_alone_do_not_add_buffers(ds, held, memory, monkeypatch):
    """Theirs come back when they are done; the consumer keeps none."""
    _, release = held

    def impatient(take, timeout, doing):
        return take(timeout if release.is_set() else 0.05, doing)

    around_takes(monkeypatch, impatient)
    with Loader(ds, 1, threads=3, prefetch=1) as loader:
        for _ in range(3):  # the first two hold all buffers
            with pytest.raises(LoaderTimeout):
                next(iter(loader))
        assert len(memory) == loader.plan().batches == 3
        release.set()
        while readers():
            join_readers()
        loader.set_epoch(0)
        assert rows_of(loader) == [[row] for row in range(12)]
        assert len(memory) == 3
