"""Opening shards: several at once, each once, under no lock."""

import os
import threading
import time

import pytest
from forked import forked_child
from shard_openings import PATIENCE, in_thread

from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import FormatError, ReadError

# Newer Pythons warn of a fork while other threads run, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

_A_MOMENT = 0.05  # seconds in which another thread comes to wait; if it does not, a test shows less


def test_all_shards_of_a_call_are_opened_at_the_same_time(ds, cache, around):
    """Each opening waits until five are in progress; no thread is left."""
    before, together = threading.active_count(), threading.Barrier(5, timeout=PATIENCE)
    around(lambda folder: together.wait())
    found, failed = ds.shards.open_many(range(5))
    assert sorted(found) == [0, 1, 2, 3, 4] and not failed
    assert threading.active_count() <= before
    for number, opened in found.items():
        assert opened.shard.folder == ds.shards.folder(number)
        assert ds.shards.open(number) is opened and ds.shards[number] is opened.shard


def test_threads_that_ask_for_the_same_shard_share_one_opening_or_its_error(ds, cache, around):
    """An error is not remembered: the next call tries again."""
    folders, broken = [], [True]

    def slow(folder):
        folders.append(folder)
        time.sleep(_A_MOMENT)
        if broken:
            raise FormatError(f"{folder}: away")

    around(slow)
    quiet = ds.with_options(on_error="return")
    for result in [in_thread(lambda: quiet.__getitems__([4])[0]) for _ in range(3)]:
        assert isinstance(result(), ReadError) and "away" in str(result())
    broken.clear()
    folders.clear()
    results = [in_thread(lambda: ds.shards.open(2)) for _ in range(3)]
    first, *others = [result() for result in results]
    assert all(other is first for other in others) and len(folders) == 1


def test_who_waits_for_an_opening_that_was_interrupted_does_it_itself(ds, cache, around):
    first, claimed = [], threading.Event()

    def interrupt(folder):
        if not first:
            first.append(folder)
            claimed.set()
            time.sleep(_A_MOMENT)
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


def test_a_shard_that_cannot_be_opened_is_reported_beside_those_that_can(ds, cache, around):
    """But what is no error of a shard, such as a mistake of ours, is raised."""
    errors = [FormatError("it is damaged"), ZeroDivisionError()]

    def fail(folder):
        if folder.name == "sa_000001-000":
            raise errors.pop(0)

    around(fail)
    found, failed = ds.shards.open_many(range(5))
    assert sorted(found) == [0, 1, 3, 4] and list(failed) == [2]
    assert isinstance(failed[2], FormatError)
    with pytest.raises(ZeroDivisionError):
        ds.shards.open_many(range(5))


def test_a_child_forked_while_a_thread_opens_a_shard_opens_it_itself(ds, cache, around):
    """The thread that has claimed the shard does not exist in the child."""
    begun, go_on, parent = threading.Event(), threading.Event(), os.getpid()

    def block(folder):
        if os.getpid() == parent:
            begun.set()
            assert go_on.wait(PATIENCE)

    around(block)
    slow = in_thread(lambda: ds[4]["image_id"])
    assert begun.wait(PATIENCE)
    with forked_child() as child:
        if child == 0:
            assert ds[4]["image_id"] == 4988
    go_on.set()
    assert slow() == 4988
