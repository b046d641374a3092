"""Opening shards: several at once, each once, under no lock, within one budget of memory maps."""

import _thread
import errno
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sa1bpack.dataset import shard_cache, shards
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.dataset.resources import mapping_budget, mapping_limit
from sa1bpack.dataset.shard_cache import ShardCache
from sa1bpack.errors import FormatError, ReadError, ResourceShortage

PATIENCE = 60  # seconds until a test that would hang fails
ARRAYS = 18  # of a shard with samples in the layout of `packed`
# Newer Pythons warn of a fork while other threads run, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture
def cache(monkeypatch):
    """A cache of its own for the packs that a test opens."""
    found = ShardCache()
    monkeypatch.setattr(shard_cache, "CACHE", found)
    return found


def limited(monkeypatch, limit: int) -> ShardCache:
    found = ShardCache(limit)
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
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(ds[4]["image_id"]), daemon=True)
    child.start()
    child.join(PATIENCE)
    go_on.set()
    assert child.exitcode == 0 and queue.get() == slow() == 4988


def test_a_child_forked_while_a_thread_drops_shards_can_open_others(packed, monkeypatch):
    """The thread held the lock, and is not there to let go of it."""
    holding, go_on = threading.Event(), threading.Event()
    parent = os.getpid()

    class Slow(ShardCache):
        def _drop_until(self, limit, dropped):
            if os.getpid() == parent:
                holding.set()
                assert go_on.wait(PATIENCE)
            super()._drop_until(limit, dropped)

    found = Slow(3 * ARRAYS)
    monkeypatch.setattr(shard_cache, "CACHE", found)
    ds = open_pack(packed.root)
    slow = in_thread(lambda: ds[0]["index"])
    assert holding.wait(PATIENCE)
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(ds[4]["image_id"]), daemon=True)
    child.start()
    child.join(PATIENCE)
    go_on.set()
    assert child.exitcode == 0 and queue.get() == 4988 and slow() == 0


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
        def _drop_until(self, limit, dropped):
            if not made:
                made.append(True)
                Reads(ds, 5, found)
                gc.collect()
            super()._drop_until(limit, dropped)

    monkeypatch.setattr(shard_cache, "CACHE", Collecting(2 * ARRAYS))
    ds = open_pack(packed.root)
    assert in_thread(lambda: [ds[index]["index"] for index in range(12)])() == list(range(12))
    assert found == [5]


# ----------------------------------------------------------------------------------------- budget


def maps_below(root: Path) -> int:
    """The memory maps of this process that are of files below a folder."""
    return sum(f" {root}/" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_the_budget_is_a_part_of_what_the_kernel_allows():
    assert 0 < mapping_budget() < mapping_limit()
    assert ShardCache().limit == mapping_budget()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system lists no maps")
def test_a_shard_counts_with_the_maps_that_it_has(packed, cache):
    ds = open_pack(packed.root)
    before = maps_below(packed.root)
    ds.shards.open_many(range(5))
    for number in range(5):  # also what is mapped when it is first asked for
        for spec in ds.layout.arrays:
            ds.shards[number][spec.name]
    assert maps_below(packed.root) - before == cache.mappings
    assert cache.mappings == 4 * ARRAYS + 2  # the empty shard has two offset arrays with a 0


def test_shards_of_several_packs_keep_within_one_budget(packed, pack_writer, monkeypatch, tmp_path):
    """Three packs, opened separately, by real maps; views of dropped shards stay valid."""
    cache = limited(monkeypatch, 2 * ARRAYS + 5)
    samples = [pack_writer(tmp_path / name) for name in "abc"]
    packs = [open_pack(tmp_path / name) for name in "abc"]
    kept, reference = packs[0][0], samples[0][0]
    for index in np.random.default_rng(0).integers(0, 12, 100).tolist():
        for ds, expected in zip(packs, samples, strict=True):
            np.testing.assert_array_equal(ds[index]["image"], expected[index]["image"])
            assert cache.mappings <= cache.limit
            assert sum(ds.shards.open_count for ds in packs) <= 2
    indices, in_use = 4 * 3, ARRAYS
    assert maps_below(tmp_path) <= cache.limit + indices + in_use
    np.testing.assert_array_equal(kept["image"], reference["image"])


def test_the_shard_that_was_used_least_recently_is_dropped(packed, monkeypatch):
    limited(monkeypatch, 2 * ARRAYS)
    ds = open_pack(packed.root)
    zero, two = ds.shards.open(0), ds.shards.open(2)
    ds[0]  # of shard 0
    ds.shards.open(3)
    assert ds.shards.open(0) is zero
    assert ds.shards.open(2) is not two


def test_a_shard_larger_than_the_budget_is_read_all_the_same(packed, monkeypatch):
    cache = limited(monkeypatch, 1)
    ds = open_pack(packed.root)
    assert [sample["index"] for sample in ds] == list(range(12))
    assert ds.shards.open_count == 1 and cache.mappings == ARRAYS


def test_a_dataset_that_is_gone_counts_no_longer(packed, cache):
    ds = open_pack(packed.root)
    ds.shards.open_many(range(5))
    before = maps_below(packed.root)
    assert cache.mappings > 0
    del ds
    assert cache.mappings == 0 and maps_below(packed.root) <= before - 4 * (ARRAYS - 4)


def test_threads_can_share_a_dataset_while_shards_come_and_go(packed, monkeypatch):
    """Every thread sees the right samples, and the budget holds."""
    cache = limited(monkeypatch, 2 * ARRAYS)
    ds = open_pack(packed.root)

    def read(seed):
        for index in np.random.default_rng(seed).integers(0, 12, 100).tolist():
            found = ds[index]
            assert found["index"] == index
            np.testing.assert_array_equal(found["areas"], packed.samples[index]["area"])
        return "read"

    results = [in_thread(lambda seed=seed: read(seed)) for seed in range(6)]
    assert [result() for result in results] == ["read"] * 6
    assert ds.shards.open_count <= 2 and cache.mappings <= cache.limit


# --------------------------------------------------------------------------- refused by the system


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_map_or_file_that_is_refused_once_costs_nothing_but_cached_shards(
    packed, cache, around, code
):
    ds = open_pack(packed.root)
    ds.shards.open_many([0, 2, 3])
    refused = []

    def refuse(folder):
        if not refused:
            refused.append(folder)
            raise OSError(code, os.strerror(code), str(folder))

    around(refuse)
    assert ds[9]["index"] == 9 and len(refused) == 1
    assert ds.shards.open_count == 2  # one of the three, and the new one


@pytest.mark.parametrize("check", ["open", "read"])
@pytest.mark.parametrize("code, limit", [
    (errno.ENOMEM, r"another memory map.*\d+.*vm.max_map_count = \d+.*sysctl -w vm.max_map_count"),
    (errno.EMFILE, r"another open file.*\d+.*`ulimit -n` = \d+.*ulimit -n 65536"),
    (errno.ENFILE, r"another open file.*fs.file-max"),
])  # fmt: skip
def test_a_map_or_file_that_is_refused_again_is_an_error_of_its_own(
    packed, cache, around, code, limit, check
):
    """Never one of the sample, which on_error="return" would have dropped."""
    ds = open_pack(packed.root, on_error="return", check=check)

    def refuse(folder):
        raise OSError(code, os.strerror(code), "/packs/the-file")

    around(refuse)
    for read in (lambda: ds[4], lambda: ds.__getitems__([4]), lambda: ds.column("size"),
                 lambda: ds.mask_column("area"), lambda: ds.shards.open_many([0, 2])):  # fmt: skip
        with pytest.raises(ResourceShortage, match=f"/packs/the-file: .*{limit}") as caught:
            read()
        assert isinstance(caught.value, OSError) and not isinstance(caught.value, ReadError)


def test_a_checked_read_whose_file_is_refused_is_no_error_of_the_sample(packed, monkeypatch):
    ds = open_pack(packed.root, check="read", on_error="return")
    ds[4]

    def refuse(*arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/packs/the-file")

    monkeypatch.setattr("sa1bpack.dataset.pack.read_sample_rows", refuse)
    with pytest.raises(ResourceShortage, match="ulimit -n"):
        ds.__getitems__([4])
    monkeypatch.setattr("sa1bpack.dataset.columns.read_array_rows", refuse)
    with pytest.raises(ResourceShortage, match="ulimit -n"):
        ds.column("size")


def test_garbage_is_collected_with_no_lock_held(packed, cache, around, monkeypatch):
    """While it is, another thread opens shards, and drops some."""
    ds, other = open_pack(packed.root), open_pack(packed.root)
    refused, read = [], []

    def refuse(folder):
        if not refused:
            refused.append(folder)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(folder))

    def collect():
        read.append(in_thread(lambda: other[9]["index"])())
        other.shards.open_many(range(5))
        assert in_thread(lambda: cache.mappings)() > 0

    around(refuse)
    monkeypatch.setattr(shard_cache.gc, "collect", collect)
    assert ds[0]["index"] == 0 and read == [9]


REAL_LIMITS = """
import ctypes, mmap, resource, sys
from pathlib import Path
from sa1bpack.dataset.open_pack import open as open_pack
from sa1bpack.errors import ResourceShortage

root = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t) + (ctypes.c_int,) * 3 + (ctypes.c_long,)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
limit = int(Path("/proc/sys/vm/max_map_count").read_text())
PAGE = mmap.PAGESIZE
ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # no reservation
region = libc.mmap(None, 2 * PAGE * limit, 0, ANONYMOUS, -1, 0)
used = 0

def fill():
    "Every second page readable: each is a map, and so is what lies between, until none is left."
    global used
    while libc.mprotect(region + (2 * used + 1) * PAGE, PAGE, 1) == 0:
        used += 1

def free(maps):
    global used
    for _ in range(maps):
        used -= 1
        assert libc.mprotect(region + (2 * used + 1) * PAGE, PAGE, 0) == 0

ds = open_pack(root)
kept = [ds[i] for i in range(12)]
del kept
fill()
other = open_pack(root)
assert [other[i]["index"] for i in range(12)] == list(range(12)), "room is made"
free(400)
kept = [ds[i] for i in (0, 4, 7, 9)] + [other[i] for i in (0, 4, 7, 9)]
fill()
third = None
try:
    third = open_pack(root, on_error="return")
    third.__getitems__(range(12))
except ResourceShortage as error:
    text = str(error)
else:
    raise AssertionError("nothing was refused")
free(400)
assert f"vm.max_map_count = {limit}" in text, text
count = int(text.split("this process has ")[1].split(",")[0])
assert limit - 100 < count <= limit + 100, text
del kept
assert [ds[i]["index"] for i in range(12)] == list(range(12)), "and it works again"

most = resource.getrlimit(resource.RLIMIT_NOFILE)
fresh = open_pack(root, on_error="return")
checked = open_pack(root, on_error="return", check="read")
ds.column("size")  # numpy imports a module of its own for it
resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
texts = []
for read in (lambda: fresh[4], lambda: fresh.__getitems__([4]), lambda: checked[4],
             lambda: fresh.column("size"), lambda: open_pack(root)):
    try:
        read()
    except ResourceShortage as error:
        texts.append(str(error))
resource.setrlimit(resource.RLIMIT_NOFILE, most)
assert len(texts) == 5 and all("`ulimit -n` = 3" in text for text in texts), texts
assert fresh[4]["index"] == checked[4]["index"] == 4
print("right")
"""


@pytest.mark.skipif(not Path("/proc/sys/vm/max_map_count").exists(), reason="not Linux")
def test_the_limits_of_the_system_are_errors_that_name_them_and_pass(packed):
    """Real ones, in a process of its own: memory maps and open files."""
    if mapping_limit() > 300_000:
        pytest.skip("it would take too long to use up all memory maps that are allowed here")
    command = [sys.executable, "-W", "error", "-c", REAL_LIMITS, str(packed.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
