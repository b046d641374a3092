"""The queue of an epoch and the pool of buffers: order, bounds, wake-ups, and no buffer lost."""

import logging
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import LoaderTimeout
from sa1bpack.loading import batch_queue
from sa1bpack.loading.batch_queue import BatchQueue, Buffer, BufferPool, QueuedBatch


def doing() -> str:
    return "reader-0 has been copying sa_7.jpg for 3.0 s"


def pool_of(count: int) -> BufferPool:
    return BufferPool(lambda: Buffer(np.zeros(8, np.uint8)), count)


def begin(queue: BatchQueue) -> QueuedBatch | None:
    """The next batch to fill; None after the last."""
    if (work := queue.next()) is None:
        return None
    queue.share(work[0], [])
    return work[0]


def fill(queue: BatchQueue) -> threading.Thread:
    """A thread that fills all batches."""

    def run():
        while (batch := begin(queue)) is not None:
            queue.complete(batch)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def taken(queue: BatchQueue, pool: BufferPool) -> Buffer:
    """Take the next batch, whose buffer is lent to the consumer then."""
    buffer = queue.take(30, doing).buffer
    pool.lent.add(buffer)
    return buffer


def test_a_consumer_that_keeps_every_buffer_gets_more_and_one_warning(caplog):
    pool, kept = pool_of(2), 9
    queue = BatchQueue(pool, total=20, prefetch=1)
    thread = fill(queue)
    with caplog.at_level(logging.WARNING, "sa1bpack"):
        buffers = [taken(queue, pool) for _ in range(kept + 1)]
    queue.close()
    thread.join(30)
    assert len(set(buffers)) == kept + 1
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "batches that are still in use hold all 2 buffers of the loader"
    ]
    for buffer in buffers:
        pool.release(buffer)
    assert not pool.lent and len(pool.free) == 2  # the added ones are gone with their batches


def test_garbage_is_collected_seldom_for_a_consumer_that_keeps_every_batch(monkeypatch):
    """A collection takes as long as many batches; `list(loader)` would spend its time on them."""
    pool = pool_of(2)
    queue, collections = BatchQueue(pool, total=200, prefetch=1), []
    monkeypatch.setattr(batch_queue.gc, "collect", lambda: collections.append(len(pool.lent)))
    thread = fill(queue)
    kept = [taken(queue, pool) for _ in range(200)]
    thread.join(30)
    assert len(set(kept)) == 200 and 1 <= len(collections) <= 8
    while kept:
        pool.release(kept.pop())
    queue = BatchQueue(pool, total=9, prefetch=1)
    monkeypatch.setattr(batch_queue.gc, "collect", lambda: pool.release(kept.pop()))
    thread = fill(queue)
    for _ in range(6):  # where it frees batches, no buffer is added
        kept.append(taken(queue, pool))
    assert len(pool.all) == 2
    queue.close()
    thread.join(30)


@pytest.mark.parametrize("wait", ["next", "take"])
def test_close_wakes_every_waiting_thread(wait):
    pool = pool_of(1)
    queue = BatchQueue(pool, total=3, prefetch=0)
    begin(queue)
    found, waiting = [], threading.Event()
    wait_for = pool.changed.wait_for

    def noted(condition, timeout):
        waiting.set()  # the lock is held until it really waits
        return wait_for(condition, timeout)

    pool.changed.wait_for = noted
    waits = {"next": queue.next, "take": lambda: queue.take(60, doing)}
    thread = threading.Thread(target=lambda: found.append(waits[wait]()))
    thread.start()
    assert waiting.wait(30)
    queue.close()
    thread.join(30)
    assert not thread.is_alive() and found == [None]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.lists(st.integers(0, 4), max_size=60))
def test_buffers_are_neither_lost_nor_handed_out_twice(count, ahead, steps):
    made = []

    def buffer():
        made.append(Buffer(np.zeros(8, np.uint8)))
        return made[-1]

    pool = BufferPool(buffer, count)
    queue, filling, held, ready, taken = BatchQueue(pool, 20, ahead), [], [], {}, 0
    for step in steps:
        if step == 0 and queue.has_work() and (batch := begin(queue)) is not None:
            filling.append((queue, batch))
        elif step == 1 and filling:
            owner, batch = filling.pop(0)
            owner.complete(batch)
            if owner is queue:
                ready[batch.number] = batch
        elif step == 2 and taken in ready:
            batch = ready.pop(taken)
            assert queue.take(1, doing) is batch
            taken += 1
            pool.lent.add(batch.buffer)
            held.append(batch.buffer)
        elif step == 3 and held:
            pool.release(held.pop())
        elif step == 4:
            queue.close()
            queue, ready, taken = BatchQueue(pool, 20, ahead), {}, 0
        busy = [batch.buffer for _, batch in filling]
        used = [*busy, *(batch.buffer for batch in ready.values()), *held]
        assert len(set(used)) == len(used) and set(used) <= set(made)
        assert len(made) == count == len(pool.free) + len(used)
        mine = sum(owner is queue for owner, _ in filling)
        assert mine + len(ready) <= ahead + 1


def test_a_late_thread_alone_does_not_make_the_pool_grow():
    """Its buffer comes back when it is done; the consumer keeps none."""
    pool = pool_of(1)
    old = BatchQueue(pool, total=2, prefetch=1)
    late = begin(old)
    old.close()
    queue = BatchQueue(pool, total=2, prefetch=1)
    with pytest.raises(LoaderTimeout):
        queue.take(0.05, doing)
    assert not queue.has_work()
    buffer = late.buffer
    old.complete(late)
    assert begin(queue).buffer is buffer


def test_the_garbage_collector_may_release_and_close_at_any_point():
    pool = pool_of(2)
    queue = BatchQueue(pool, total=5, prefetch=3)
    queue.complete(begin(queue))
    buffer = begin(queue).buffer
    pool.lent.add(buffer)

    def inside():
        with pool.changed:  # as if a collection began while this thread holds the lock
            pool.release(buffer)
            queue.close()

    thread = threading.Thread(target=inside, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and queue.closed and len(pool.free) == 2
