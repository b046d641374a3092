"""A pool does what it was asked to, or refuses it, and never both."""

import threading

import pytest

from sa1bpack.errors import ThreadRefused
from sa1bpack.threads import ThreadPool

PATIENCE = 60  # seconds until a test fails in place of waiting for ever


@pytest.fixture
def busy_pool():
    """A pool of two, whose only thread so far waits for the event."""
    go_on = threading.Event()
    pool = ThreadPool(2, "tested")
    pool.submit(go_on.wait, PATIENCE)
    yield pool, go_on
    go_on.set()
    pool.shutdown()


def test_work_that_is_refused_is_not_done_by_a_thread_that_becomes_idle(busy_pool, monkeypatch):
    """It was queued before the thread was refused; whoever waits for its caller would wait on."""
    pool, go_on = busy_pool
    done = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ThreadRefused, match="ulimit -u"):
            pool.submit(done.append, "refused")
    go_on.set()
    pool.submit(done.append, "asked for afterwards").result(PATIENCE)
    pool.shutdown()
    assert done == ["asked for afterwards"]


def test_work_that_an_idle_thread_has_begun_is_not_refused(busy_pool, monkeypatch):
    pool, go_on = busy_pool
    begun = threading.Event()

    def refuse_once_begun(thread):
        go_on.set()
        assert begun.wait(PATIENCE)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_once_begun)
        future = pool.submit(begun.set)
    assert future.result(PATIENCE) is None and begun.is_set()


def test_errors_reach_the_caller_and_what_was_queued_is_cancelled_with_the_pool(busy_pool):
    pool, go_on = busy_pool

    def fail(text, *, error):
        raise error(text)

    with pytest.raises(KeyboardInterrupt, match="now"):
        pool.submit(fail, "now", error=KeyboardInterrupt).result(PATIENCE)
    pool.submit(go_on.wait, PATIENCE)
    queued = pool.submit(fail, "never", error=ValueError)
    pool.shutdown(wait=False, cancel_futures=True)
    assert queued.cancelled()
