"""Several processes share a cache, and any of them may be killed or interrupted at any point."""

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from batches import all_same, same_samples
from cached_packs import open_cached, shards_in, taken
from commands import wait_until
from forked import fork

import sa1bpack
from sa1bpack import FormatError, ReadError
from sa1bpack.errors import StoreError


def in_child(work) -> int:
    """Start a forked child that does some work; its process id."""
    pid = fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


@pytest.fixture
def pack(layout_packs, tmp_path):
    return shutil.copytree(layout_packs(), tmp_path / "pack")


def stopping_child(pack, tmp_path, driven, word) -> int:
    """A child that stops for ever when it has asked for a file whose path has a word."""
    origin, ds = driven(pack), open_cached(pack, tmp_path / "cache")

    def stop(path, first, data):
        if word in path:
            (tmp_path / "there").touch()
            time.sleep(600)
        return data

    def fetch():
        origin.change = stop
        ds[0]

    pid = in_child(fetch)
    wait_until((tmp_path / "there").exists)
    return pid


@pytest.mark.parametrize("word", ["image/c", "bbox"])
def test_who_waits_for_a_process_that_is_killed_while_it_fetches_takes_over(
    pack, tmp_path, driven, word
):
    pid = stopping_child(pack, tmp_path, driven, word)
    own, ds, found = sa1bpack.open(pack), open_cached(pack, tmp_path / "cache"), []
    waiting = threading.Thread(target=lambda: found.append(ds[0]))
    waiting.start()
    time.sleep(0.05)
    assert not found and not shards_in(tmp_path / "cache")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    waiting.join(60)
    assert same_samples(found[0], own[0])
    names = {path.name for path in (tmp_path / "cache/shards").iterdir()}
    assert len(names) == 2  # the shard and its lock


def test_what_a_killed_process_left_is_removed_by_the_next_one_that_opens_the_cache(
    pack, tmp_path, driven
):
    pid = stopping_child(pack, tmp_path, driven, "bbox")
    open_cached(pack, tmp_path / "cache")
    assert list((tmp_path / "cache/shards").iterdir())  # it lives, and is not disturbed
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert taken(tmp_path / "cache", "shards")
    assert len(open_cached(pack, tmp_path / "cache")) == 6
    assert not list((tmp_path / "cache/shards").iterdir())


@pytest.mark.parametrize("kept", ["limit", "sa_000000"], ids=["the limit", "a link"])
def test_nothing_is_left_of_a_process_that_is_killed_before_a_file_has_its_name(
    pack, tmp_path, driven, monkeypatch, kept
):
    driven(pack)
    replace = Path.replace

    def die(path: Path, target):
        if path.name.startswith(f".tmp-{kept}"):
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, target)

    def read():
        monkeypatch.setattr(Path, "rename", die)
        monkeypatch.setattr(Path, "replace", die)
        open_cached(pack, tmp_path / "cache")[0]

    assert os.waitpid(in_child(read), 0)[1] == signal.SIGKILL
    assert list((tmp_path / "cache").rglob(".tmp-*"))
    assert same_samples(open_cached(pack, tmp_path / "cache")[0], sa1bpack.open(pack)[0])
    assert not list((tmp_path / "cache").rglob(".tmp-*"))


def test_a_shard_is_fetched_by_one_process_and_seen_by_all(pack, tmp_path, driven):
    origin, own = driven(pack), sa1bpack.open(pack)
    ds = open_cached(pack, tmp_path / "cache")

    def read():
        for k in range(len(ds)):
            assert same_samples(ds[k], own[k])
        misses = ds.pack.fetched().misses
        (tmp_path / f"misses-{os.getpid()}").write_text(str(misses))

    children = [in_child(read) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    # A process counts as a miss that it waited for another one; each asked for nothing twice.
    assert sum(int(path.read_text()) for path in tmp_path.glob("misses-*")) >= 2
    count = len(origin.ranges)
    read()
    assert len(origin.ranges) == count


def test_threads_that_want_the_same_shard_fetch_it_once(pack, tmp_path, driven):
    """The one that fetches goes on to use it: its lock is never released, and none waits for it."""
    origin, own, kept, found = driven(pack), sa1bpack.open(pack), [], []

    def read():
        kept.append(open_cached(pack, tmp_path / "cache"))
        found.append(kept[-1][1])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert all(same_samples(each, own[1]) for each in found)
    assert origin.ranges and len(origin.ranges) == len(set(origin.ranges))


class Interrupted(BaseException):
    """What a signal raises."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in __del__
def test_an_interrupted_read_leaves_the_cache_right_wherever_it_is(pack, tmp_path):
    """Raised at any line that the main thread passes, as a signal's exception may be."""
    own = sa1bpack.open(pack)
    expected = own[0]
    folder = str(Path(sa1bpack.__file__).parent)

    def lines(ds, stop: int | None) -> int:
        """Read a sample, and raise at a line of sa1bpack; returns how many lines were passed."""
        passed = 0

        def trace(frame, event, arg):
            nonlocal passed
            if not frame.f_code.co_filename.startswith(folder):
                return None
            if event == "line":
                passed += 1
                if passed == stop:
                    sys.settrace(None)
                    raise Interrupted
            return trace

        sys.settrace(trace)
        try:
            ds[0]
        except Interrupted:
            pass
        finally:
            sys.settrace(None)
        return passed

    total = lines(open_cached(pack, tmp_path / "count"), None)
    assert total > 50
    for stop in range(1, total, max(1, total // 20)):
        ds = open_cached(pack, tmp_path / f"{stop}")
        lines(ds, stop)
        assert same_samples(ds[0], expected), stop
        assert same_samples(open_cached(pack, tmp_path / f"{stop}")[0], expected), stop
        shutil.rmtree(tmp_path / f"{stop}")


def test_after_a_start_of_the_machine_everything_is_checked_before_it_counts(
    pack, tmp_path, driven
):
    origin, own = driven(pack), sa1bpack.open(pack)
    ds = open_cached(pack, tmp_path / "cache")
    assert len([ds[k] for k in range(len(ds))]) == 6
    [bbox] = (tmp_path / "cache/shards").glob("sa_000000-001-*/bbox/c*")
    del ds
    with bbox.open("r+b") as file:  # what never reached the disk
        file.write(bytes(32))
    for lock in (tmp_path / "cache").glob("*/*.lock"):
        lock.write_text(f"{lock.read_text().split()[0]} another-start\n")
    origin.ranges.clear()
    ds = open_cached(pack, tmp_path / "cache")
    assert all_same(ds, own)
    assert origin.shards() == {"sa_000000-001"}
    count = len(origin.ranges)
    assert all_same(ds, own)
    assert len(origin.ranges) == count


def test_a_shard_that_is_damaged_in_the_origin_is_an_error_of_its_samples(pack, tmp_path):
    own = sa1bpack.open(pack)
    with (pack / "shards/sa_000000-000/bbox/c.0.0").open("r+b") as file:
        file.write(b"\x7f\x80\x81")
    ds = open_cached(pack, tmp_path / "cache", on_error="return")
    found = ds.__getitems__(range(6))
    assert [isinstance(each, ReadError) for each in found] == [True] * 4 + [False] * 2
    assert "bbox/c.0.0 came 3 times with other bytes" in str(found[1])
    assert same_samples(found[5], own[5])
    assert shards_in(tmp_path / "cache") == {"sa_000000-001"}
    with pytest.raises((FormatError, ReadError), match=r"bbox/c\.0\.0 came 3 times"):
        open_cached(pack, tmp_path / "cache")[0]
    with sa1bpack.Loader(ds, 2, on_error="drop", max_dropped=1) as loader:
        assert sum(len(batch["image_ids"]) for batch in loader) == 2
    assert len(loader.dropped) == 4


def test_a_cache_that_was_removed_in_use_is_an_error_and_never_zeros(pack, tmp_path):
    own, ds = sa1bpack.open(pack), open_cached(pack, tmp_path / "cache")
    sample = ds[0]
    shutil.rmtree(tmp_path / "cache")
    assert same_samples(sample, own[0])
    with pytest.raises(StoreError, match="was removed while it was in use"):
        ds[5]
    again = open_cached(pack, tmp_path / "cache")
    assert all_same(again, own)


def test_an_origin_that_fails_ends_the_epoch_and_drops_nothing(pack, tmp_path, driven):
    origin = driven(pack)
    ds = open_cached(pack, tmp_path / "cache")

    def fail(path, first, data):
        if "000-001/image/" in path:
            raise OSError(5, "Input/output error", path)
        return data

    origin.change = fail
    with sa1bpack.Loader(ds, 2, on_error="drop", max_dropped=1) as loader:
        with pytest.raises(StoreError, match="Input/output error"):
            list(loader)
        assert loader.dropped == []
        origin.change = lambda path, first, data: data
        assert len(list(loader)) == 3
