"""The queue of an epoch: batches in the order in which they were begun, and no buffer is lost."""

from types import SimpleNamespace

import numpy as np
import pytest

from sa1bpack.errors import LoaderTimeout
from sa1bpack.loading.batch_queue import BatchQueue
from sa1bpack.loading.buffer_pool import Buffer, BufferPool

BUFFERS = 3


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool(lambda nbytes=1: Buffer(np.empty(nbytes, np.uint8)), BUFFERS)


@pytest.fixture
def queue(pool) -> BatchQueue:
    return BatchQueue(pool, ahead=1)


def begin(queue: BatchQueue, *, is_last: bool = False):
    """A batch that a thread has located, and is copying."""
    batch, samples = queue.task()
    assert samples is None
    batch.located = SimpleNamespace(ordered=SimpleNamespace(is_last=is_last))
    queue.queue_ranges(batch, [(0, 1)])
    assert queue.task() == (batch, (0, 1))
    return batch


def finish(queue: BatchQueue, batch) -> None:
    assert queue.copied(batch)
    queue.complete(batch)


def take(queue: BatchQueue):
    return queue.take(0.01, lambda: "it did not come")


def test_batches_come_out_as_they_were_begun_whichever_is_complete_first(queue):
    first, second = begin(queue), begin(queue, is_last=True)
    finish(queue, second)
    assert queue.ready == 1
    with pytest.raises(LoaderTimeout, match="it did not come"):
        take(queue)
    finish(queue, first)
    assert [take(queue), take(queue)] == [first, second]
    assert queue.ready == 0
    assert queue.task() is None  # after the last batch no other is begun


def test_nothing_is_begun_after_a_batch_that_cannot_be_located(queue, pool):
    batch, _ = queue.task()
    queue.complete(batch, OSError("no shard"))
    assert take(queue).error.args == ("no shard",)
    assert queue.task() is None
    assert len(pool.free) == BUFFERS


def test_a_late_thread_of_a_closed_queue_gives_its_buffer_back(queue, pool):
    complete, late = begin(queue), begin(queue)
    finish(queue, complete)
    queue.close()
    assert len(pool.free) == BUFFERS - 1
    finish(queue, late)
    assert len(pool.free) == BUFFERS
    assert queue.task() is None and take(queue) is None


@pytest.mark.parametrize("moment", ["it waits", "it has the batch"])
def test_a_signal_handler_may_close_the_queue_while_a_batch_is_taken(
    queue, pool, monkeypatch, moment
):
    finish(queue, begin(queue))
    owner, name = (queue, "has_news") if moment == "it waits" else (pool.changes, "wake_threads")
    call = getattr(owner, name)

    def interrupted():
        monkeypatch.setattr(owner, name, call)
        queue.close()
        return call()

    monkeypatch.setattr(owner, name, interrupted)
    assert take(queue) is None
    assert len(pool.free) == BUFFERS
