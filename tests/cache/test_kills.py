"""Several processes share a cache, and any of them may be killed at any point."""

import os
import shutil
import signal
import threading
import time

import pytest
from cached_packs import open_cached
from same_samples import same_samples

import sa1bpack
from sa1bpack.cache import blocks
from sa1bpack.cache.blocks import PARTIAL
from sa1bpack.errors import FormatError, ReadError, StoreError


def in_child(work) -> int:
    """Start a forked child that does some work; its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def wait_until(path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.005)


pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def pack(layout_packs, tmp_path):
    return shutil.copytree(layout_packs(), tmp_path / "pack")


@pytest.mark.parametrize("moment", ["before the bytes", "between two files"])
def test_a_process_killed_while_fetching_leaves_nothing_that_counts(
    pack, tmp_path, driven, small_blocks, moment
):
    origin, own = driven(pack), sa1bpack.open(pack)
    ds = open_cached(pack, tmp_path / "cache")
    ds.shards.open(0)

    def die(path, first, data):
        if "image/" in path:
            (tmp_path / "there").touch()
            time.sleep(60)
        return data

    def fetch():
        if moment == "between two files":
            real, calls = os.pwrite, []

            def pwrite(*args):
                calls.append(1)
                if len(calls) == 2:
                    (tmp_path / "there").touch()
                    time.sleep(60)
                return real(*args)

            os.pwrite = pwrite
        else:
            origin.change = die
        ds[2]

    pid = in_child(fetch)
    wait_until(tmp_path / "there")
    [group] = ds.shards.open(0).groups
    assert group.blocks.stamps[2] == PARTIAL
    # Another process waits for it as long as it lives, and takes over when it does not.
    found = []
    waiting = threading.Thread(target=lambda: found.append(ds[2]))
    waiting.start()
    time.sleep(0.05)
    assert not found
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    waiting.join(60)
    assert same_samples(found[0], own[2])
    used = ds.pack.cached[0].cache.used
    list(ds)
    assert ds.pack.cached[0].cache.make_room(1 << 40)
    assert ds.pack.cached[0].cache.used < used


def test_a_sample_is_fetched_by_one_process_and_seen_by_all(pack, tmp_path, driven, small_blocks):
    origin, own = driven(pack), sa1bpack.open(pack)
    ds = open_cached(pack, tmp_path / "cache")
    for number in range(2):
        ds.shards.open(number)

    def read():
        for k in range(len(ds)):
            assert same_samples(ds[k], own[k])
        misses = ds.pack.cached[0].counts().misses
        (tmp_path / f"misses-{os.getpid()}").write_text(str(misses))

    children = [in_child(read) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert sum(int(path.read_text()) for path in tmp_path.glob("misses-*")) == len(ds)
    count = len(origin.ranges)
    read()
    assert len(origin.ranges) == count


def test_threads_that_want_the_same_sample_fetch_it_once(pack, tmp_path, driven, small_blocks):
    origin, own = driven(pack), sa1bpack.open(pack)
    ds = open_cached(pack, tmp_path / "cache")
    found = []
    threads = [threading.Thread(target=lambda: found.append(ds[1])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert all(same_samples(each, own[1]) for each in found)
    assert len(origin.large()) == len(set(origin.large()))


def test_a_process_killed_while_it_fetches_metadata_leaves_no_shard(pack, tmp_path, driven):
    origin, own = driven(pack), sa1bpack.open(pack)
    ds = open_cached(pack, tmp_path / "cache")

    def die(path, first, data):
        if "bbox" in path:
            (tmp_path / "there").touch()
            time.sleep(60)
        return data

    def fetch():
        origin.change = die
        ds[0]

    pid = in_child(fetch)
    wait_until(tmp_path / "there")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert all(path.name.startswith(".") for path in (tmp_path / "cache/folders").iterdir())
    assert same_samples(ds[0], own[0])


def test_after_a_start_of_the_machine_everything_is_checked_before_it_counts(
    pack, tmp_path, driven, small_blocks, monkeypatch
):
    origin, own = driven(pack), sa1bpack.open(pack)
    ds = open_cached(pack, tmp_path / "cache")
    list(ds)
    [image] = (tmp_path / "cache/folders").glob("sa_000000-000-*/image/c*")
    [bbox] = (tmp_path / "cache/folders").glob("sa_000000-001-*/bbox/c*")
    del ds
    with image.open("r+b") as file:  # what never reached the disk
        file.seek(2 * 128 * 128 * 3)
        file.write(bytes(5000))
    with bbox.open("r+b") as file:
        file.write(bytes(32))
    count = len(origin.large())
    monkeypatch.setattr(blocks, "boot_id", lambda: b"another")
    ds = open_cached(pack, tmp_path / "cache")
    assert all(same_samples(ds[k], own[k]) for k in range(len(own)))
    fetched = {path.split("/")[1] for path, _, _ in origin.large()[count:]}
    assert "sa_000000-001" in fetched  # all of it: a small file of it was damaged
    again = [each for each in origin.large()[count:] if "sa_000000-000/" in each[0]]
    assert len(again) == 3  # image, bits and runs of one sample
    count = len(origin.ranges)
    list(open_cached(pack, tmp_path / "cache"))
    assert len(origin.ranges) == count


def test_bytes_that_were_changed_on_the_way_are_fetched_again(pack, tmp_path, driven, small_blocks):
    origin, own = driven(pack), sa1bpack.open(pack)
    seen = set()

    def flip(path, first, data):
        if (path, first) not in seen and len(data):
            seen.add((path, first))
            data[len(data) // 2] ^= 4
        return data

    origin.change = flip
    ds = open_cached(pack, tmp_path / "cache")
    assert all(same_samples(ds[k], own[k]) for k in range(len(own)))


@pytest.mark.parametrize("per_block", [1, 1 << 20])
def test_a_sample_that_is_damaged_in_the_origin_is_an_error_and_its_neighbours_are_not(
    pack, tmp_path, monkeypatch, per_block
):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", per_block)
    own = sa1bpack.open(pack)
    expected = [own[k] for k in range(4)]
    expected = [{key: np_copy(value) for key, value in each.items()} for each in expected]
    with (pack / "shards/sa_000000-000/image/c.0.0.0.0").open("r+b") as file:
        file.seek(128 * 128 * 3 + 100)
        file.write(b"\x7f\x80\x81")
    ds = open_cached(pack, tmp_path / "cache", on_error="return")
    for _ in range(2):
        found = ds.__getitems__(range(4))
        assert isinstance(found[1], ReadError)
        assert "came 3 times with other bytes" in str(found[1])
        assert all(same_samples(found[k], expected[k]) for k in (0, 2, 3))
    with sa1bpack.Loader(ds, 2, order="sequential", on_error="drop", max_dropped=1) as loader:
        ids = [int(i) for batch in loader for i in batch["image_ids"]]
    assert len(ids) == 5
    assert len(loader.dropped) == 1


def np_copy(value):
    return value.copy() if hasattr(value, "copy") else value


def test_damaged_metadata_is_an_error_that_names_the_file(pack, tmp_path):
    (pack / "shards/sa_000000-000/bbox/c.0.0").write_bytes(
        bytes((pack / "shards/sa_000000-000/bbox/c.0.0").stat().st_size)
    )
    ds = open_cached(pack, tmp_path / "cache")
    with pytest.raises(FormatError, match=r"bbox/c\.0\.0 came 3 times"):
        ds[0]


def test_a_cache_that_was_removed_in_use_is_an_error_and_never_zeros(pack, tmp_path, small_blocks):
    own, ds = sa1bpack.open(pack), open_cached(pack, tmp_path / "cache")
    ds[0]
    shutil.rmtree(tmp_path / "cache")
    again = open_cached(pack, tmp_path / "cache")
    assert all(same_samples(again[k], own[k]) for k in range(len(own)))
    with pytest.raises(StoreError, match="was removed or replaced while it was in use"):
        ds[1]


def test_an_origin_that_fails_ends_the_epoch_and_drops_nothing(
    pack, tmp_path, driven, small_blocks
):
    origin = driven(pack)
    ds = open_cached(pack, tmp_path / "cache")

    def fail(path, first, data):
        if "image/" in path and first > 0:
            raise OSError(5, "Input/output error", path)
        return data

    origin.change = fail
    with sa1bpack.Loader(ds, 2, on_error="drop", max_dropped=1) as loader:
        with pytest.raises(StoreError, match="Input/output error"):
            list(loader)
        origin.change = lambda path, first, data: data
        assert len(list(loader)) == 3
