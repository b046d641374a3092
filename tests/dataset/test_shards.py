"""Opening shards: several at once, each once, under no lock."""

import _thread
import gc
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest
from shard_openings import ARRAYS, PATIENCE, in_thread

from sa1bpack.dataset import shard_cache, shards
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.dataset.shard_cache import ShardCache
from sa1bpack.errors import FormatError, ReadError

# Newer Pythons warn of a fork while other threads run, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def outcome_of(work):
    """What `work` returns or raises."""
    try:
        return work()
    except Exception as error:
        return error


# ------------------------------------------------------------------------------------ concurrency


def test_all_shards_of_a_call_are_opened_at_the_same_time(packed, cache, around):
    """Each opening waits until five are in progress."""
    ds = open_pack(packed.root)
    together = threading.Barrier(5, timeout=PATIENCE)
    around(lambda folder: together.wait())
    found, failed = ds.shards.open_many(range(5))
    assert sorted(found) == [0, 1, 2, 3, 4] and not failed
    for number, opened in found.items():
        assert opened.shard.folder == ds.shards.folder(number)
        assert ds.shards.open(number) is opened and ds.shards[number] is opened.shard


def threads_now() -> set[str]:
    """The threads of this process, those of libraries included."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


def wait_until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system lists no threads")
def test_opening_leaves_no_thread_behind(packed, cache, around):
    ds = open_pack(packed.root)
    idents = set()
    before = threads_now()
    together = threading.Barrier(5, timeout=PATIENCE)

    def meet(folder):
        idents.add(threading.get_native_id())
        together.wait()

    around(meet)
    ds.shards.open_many(range(5))
    assert len(idents) == 5 and threading.get_native_id() in idents
    wait_until(lambda: threads_now() <= before)  # the system takes a moment to remove them


def test_at_most_sixteen_threads_open_shards(pack_writer, cache, around, tmp_path):
    many = {f"sa_{number:06d}-000": (1,) for number in range(40)}
    pack_writer(tmp_path / "pack", many)
    ds = open_pack(tmp_path / "pack")
    threads = set()
    full = threading.Barrier(16, timeout=PATIENCE)

    def meet(folder):
        if threading.get_ident() not in threads:  # once per thread: sixteen meet here
            threads.add(threading.get_ident())
            full.wait()

    around(meet)
    found, _ = ds.shards.open_many(range(40))
    assert len(found) == 40 and len(threads) == shards.MAX_OPENERS == 16


def test_a_system_without_threads_to_spare_opens_all_shards_in_one(packed, cache, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("can't start new thread")

    ds = open_pack(packed.root)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    found, failed = ds.shards.open_many(range(5))
    assert len(found) == 5 and not failed


def test_a_batched_fetch_opens_its_shards_at_the_same_time(packed, cache, around):
    ds = open_pack(packed.root)
    together = threading.Barrier(4, timeout=PATIENCE)  # one shard of the five is empty
    around(lambda folder: together.wait())
    assert [sample["index"] for sample in ds.__getitems__([0, 4, 7, 9])] == [0, 4, 7, 9]


class Watched(ShardCache):
    """A cache that says when a thread is about to wait for another one's shard."""

    def __init__(self):
        super().__init__()
        self.waits = threading.Event()

    def claim(self, entry, future):
        found = super().claim(entry, future)
        if found is not future:
            self.waits.set()
        return found


@pytest.fixture
def watched(monkeypatch):
    found = Watched()
    monkeypatch.setattr(shard_cache, "CACHE", found)
    return found


def test_threads_that_ask_for_the_same_shard_share_one_opening(packed, watched, around):
    ds = open_pack(packed.root)
    folders = []

    def wait_for_another(folder):
        folders.append(folder)
        assert watched.waits.wait(PATIENCE)

    around(wait_for_another)
    results = [in_thread(lambda: ds.shards.open(2)) for _ in range(3)]
    first, *others = [result() for result in results]
    assert all(other is first for other in others) and len(folders) == 1


def test_an_error_reaches_all_that_wait_for_it_and_is_not_remembered(packed, watched, around):
    ds = open_pack(packed.root)
    broken = [True]

    def fail(folder):
        if broken:
            assert watched.waits.wait(PATIENCE)
            raise FormatError(f"{folder}: away")

    around(fail)
    results = [in_thread(lambda: outcome_of(lambda: ds[4])) for _ in range(2)]
    for result in results:
        assert isinstance(result(), ReadError) and "away" in str(result())
    broken.clear()
    assert ds[4]["index"] == 4


def test_who_waits_for_an_opening_that_was_interrupted_does_it_itself(packed, watched, around):
    ds = open_pack(packed.root)
    first, claimed = [], threading.Event()

    def interrupt(folder):
        if not first:
            first.append(folder)
            claimed.set()
            assert watched.waits.wait(PATIENCE)
            raise KeyboardInterrupt

    around(interrupt)

    def interrupted():
        with pytest.raises(KeyboardInterrupt):
            ds.shards.open(2)
        return "interrupted"

    one = in_thread(interrupted)
    assert claimed.wait(PATIENCE)
    assert ds[4]["index"] == 4
    assert one() == "interrupted"


def test_helpers_that_never_begin_are_not_waited_for(packed, cache, monkeypatch):
    """A thread that has no memory to run in ends before its first line."""
    ds = open_pack(packed.root)
    monkeypatch.setattr(_thread, "start_new_thread", lambda function, arguments: 1)
    found, failed = ds.shards.open_many(range(5))
    assert len(found) == 5 and not failed


def test_a_shard_is_opened_while_another_one_takes_long(packed, cache, around):
    """No lock is held: a slow file system delays its own shard alone."""
    ds, other = open_pack(packed.root), open_pack(packed.root)
    begun, go_on = threading.Event(), threading.Event()

    def block(folder):
        if folder.name == "sa_000000-000":
            begun.set()
            assert go_on.wait(PATIENCE)

    around(block)
    slow = in_thread(lambda: ds[0]["index"])
    assert begun.wait(PATIENCE)
    assert ds[4]["index"] == 4 and other[9]["index"] == 9
    found, _ = ds.shards.open_many([2, 3, 4])
    assert len(found) == 3
    go_on.set()
    assert slow() == 0


def test_a_number_that_does_not_exist_is_refused_before_anything_is_opened(packed, cache):
    ds = open_pack(packed.root)
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match="which has 5"):
            ds.shards.open_many([0, wrong])
        with pytest.raises(IndexError, match="which has 5"):
            ds.shards[wrong]
    assert cache.mappings == 0


def test_a_shard_that_cannot_be_opened_is_reported_beside_those_that_can(packed, cache, around):
    def fail(folder):
        if folder.name == "sa_000001-000":
            raise FormatError("it is damaged")

    ds = open_pack(packed.root)
    around(fail)
    found, failed = ds.shards.open_many(range(5))
    assert sorted(found) == [0, 1, 3, 4] and list(failed) == [2]
    assert isinstance(failed[2], FormatError)


def test_what_is_no_error_of_a_shard_is_raised(packed, cache, around):
    """A mistake of ours is not a damaged shard."""

    def fail(folder):
        raise ZeroDivisionError

    ds = open_pack(packed.root)
    around(fail)
    with pytest.raises(ZeroDivisionError):
        ds.shards.open_many(range(5))


def in_child(work):
    """What `work` returns in a child forked now; None if the child fails or hangs."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(work()), daemon=True)
    child.start()
    child.join(PATIENCE)
    return queue.get() if child.exitcode == 0 else None


def test_a_child_forked_while_a_thread_opens_a_shard_opens_it_itself(packed, cache, around):
    """The thread that has claimed the shard does not exist in the child."""
    ds = open_pack(packed.root)
    begun, go_on, parent = threading.Event(), threading.Event(), os.getpid()

    def block(folder):
        if os.getpid() == parent:
            begun.set()
            assert go_on.wait(PATIENCE)

    around(block)
    slow = in_thread(lambda: ds[4]["image_id"])
    assert begun.wait(PATIENCE)
    found = in_child(lambda: ds[4]["image_id"])
    go_on.set()
    assert found == slow() == 4988


def test_a_child_forked_while_a_thread_drops_shards_can_open_others(packed, monkeypatch):
    """The thread held the lock, and is not there to let go of it."""
    holding, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    class Slow(ShardCache):
        def drop_until(self, limit, dropped):
            if os.getpid() == parent:
                holding.set()
                assert go_on.wait(PATIENCE)
            super().drop_until(limit, dropped)

    monkeypatch.setattr(shard_cache, "CACHE", Slow(3 * ARRAYS))
    ds = open_pack(packed.root)
    slow = in_thread(lambda: ds[0]["index"])
    assert holding.wait(PATIENCE)
    found = in_child(lambda: ds[4]["image_id"])
    go_on.set()
    assert found == 4988 and slow() == 0


# ------------------------------------------------------------------------------------- finalizers


class Reads:
    """Garbage in a cycle that reads a sample when it is collected."""

    def __init__(self, ds, index: int, found: list):
        self.itself, self.ds, self.index, self.found = self, ds, index, found

    def __del__(self):
        self.found.append(self.ds[self.index]["index"])


def test_a_finalizer_may_read_the_shard_that_its_thread_is_opening(packed, cache, around):
    ds = open_pack(packed.root)
    found, made = [], []

    def collect(folder):
        if not made:
            made.append(True)
            Reads(ds, 5, found)
            gc.collect()

    around(collect)
    assert in_thread(lambda: ds[4]["index"])() == 4
    assert found == [5]


def test_a_finalizer_may_read_samples_while_shards_are_dropped(packed, monkeypatch):
    """A collection may begin wherever memory is allocated, under the lock too."""
    found, made = [], []

    class Collecting(ShardCache):
        def drop_until(self, limit, dropped):
            if not made:
                made.append(True)
                Reads(ds, 5, found)
                gc.collect()
            super().drop_until(limit, dropped)

    monkeypatch.setattr(shard_cache, "CACHE", Collecting(2 * ARRAYS))
    ds = open_pack(packed.root)
    assert in_thread(lambda: [ds[index]["index"] for index in range(12)])() == list(range(12))
    assert found == [5]
