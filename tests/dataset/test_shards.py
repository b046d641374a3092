"""Shards are opened several at once, each once, under no lock, and keep within one budget of memory
maps; what the system refuses is no damage."""

import errno
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from commands import python
from forked import forked_child
from reading_packs import write_pack
from shard_openings import ARRAYS, PATIENCE, in_thread

from sa1bpack import FormatError, ReadError
from sa1bpack import open as open_pack
from sa1bpack.errors import ResourceShortage

# Newer Pythons warn of a fork while other threads run, and that is the point here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

_A_MOMENT = 0.05  # seconds in which another thread comes to wait; if it does not, a test shows less


def test_all_shards_of_a_call_are_opened_at_the_same_time(ds, cache, around):
    """Each opening waits until five are in progress; no thread is left."""
    before = threading.active_count()
    together = threading.Barrier(5, timeout=PATIENCE)
    around(lambda folder: together.wait())
    found, failed = ds.shards.open_many(range(5))
    assert sorted(found) == [0, 1, 2, 3, 4] and not failed
    assert threading.active_count() <= before
    for number, opened in found.items():
        assert opened.shard.folder == ds.shards.folder(number)
        assert ds.shards.open(number) is opened and ds.shards[number] is opened.shard


def test_threads_that_ask_for_the_same_shard_share_one_opening_or_its_error(ds, cache, around):
    """An error is not remembered: the next call tries again."""
    folders = []
    broken = [True]

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
    first = []
    claimed = threading.Event()

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
    assert ds[4]["row"] == 4
    assert one() == "interrupted"


def test_a_shard_is_opened_while_another_one_takes_long(packed, cache, around):
    """No lock is held: a slow file system delays its own shard alone."""
    ds = open_pack(packed.root)
    other = open_pack(packed.root)
    begun = threading.Event()
    go_on = threading.Event()

    def block(folder):
        if folder.name == "sa_000000-000":
            begun.set()
            assert go_on.wait(PATIENCE)

    around(block)
    slow = in_thread(lambda: ds[0]["row"])
    assert begun.wait(PATIENCE)
    assert ds[4]["row"] == 4 and other[9]["row"] == 9
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
    begun = threading.Event()
    go_on = threading.Event()
    parent = os.getpid()

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


# ----------------------------------------------------------------------------------------- budget


def maps_below(root: Path) -> int:
    """The memory maps of this process that are of files below a folder."""
    return sum(f" {root}/" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_shards_of_several_packs_keep_within_one_budget(packed, limited, tmp_path):
    """Three packs, opened separately, by real maps; views of dropped shards stay valid."""
    cache = limited(2 * ARRAYS + 5)
    samples = [write_pack(tmp_path / name) for name in "abc"]
    packs = [open_pack(tmp_path / name) for name in "abc"]
    kept = packs[0][0]
    reference = samples[0][0]
    for index in np.random.default_rng(0).integers(0, 12, 100).tolist():
        for ds, expected in zip(packs, samples, strict=True):
            np.testing.assert_array_equal(ds[index]["image"], expected[index]["image"])
            assert cache.mappings <= cache.limit
    indices = 4 * 3
    in_use = ARRAYS
    assert maps_below(tmp_path) <= cache.limit + indices + in_use
    np.testing.assert_array_equal(kept["image"], reference["image"])


def test_the_shard_that_was_used_least_recently_is_dropped(ds, limited):
    limited(2 * ARRAYS)
    zero = ds.shards.open(0)
    two = ds.shards.open(2)
    ds[0]  # of shard 0
    ds.shards.open(3)
    assert ds.shards.open(0) is zero
    assert ds.shards.open(2) is not two


def test_a_dataset_that_is_gone_counts_no_longer(packed, cache):
    ds = open_pack(packed.root)
    ds.shards.open_many(range(5))
    before = maps_below(packed.root)
    assert cache.mappings > 0
    del ds
    assert cache.mappings == 0 and maps_below(packed.root) <= before - 4 * (ARRAYS - 4)


def test_threads_can_share_a_dataset_while_shards_come_and_go(packed, ds, limited):
    """Every thread sees the right samples, and the budget holds."""
    cache = limited(2 * ARRAYS)

    def read(seed):
        for index in np.random.default_rng(seed).integers(0, 12, 100).tolist():
            found = ds[index]
            assert found["row"] == index
            np.testing.assert_array_equal(found["areas"], packed.samples[index]["area"])
        return "read"

    results = [in_thread(lambda seed=seed: read(seed)) for seed in range(6)]
    assert [result() for result in results] == ["read"] * 6
    assert cache.mappings <= cache.limit


# --------------------------------------------------------------------------- refused by the system


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_map_or_file_that_is_refused_again_is_an_error_of_its_own(
    packed, cache, around, code, verified
):
    """Never one of the sample, which on_error="return" would have dropped."""
    ds = open_pack(packed.root, on_error="return", verify_checksums=verified)

    def refuse(folder):
        raise OSError(code, os.strerror(code), "/packs/the-file")

    around(refuse)
    limits = r"vm.max_map_count = \d+ .*`ulimit -n` = \d+ .*`sysctl -w .*`ulimit -n .*fs.file-max"
    for read in (lambda: ds[4], lambda: ds.__getitems__([4]), lambda: ds.column("size"),
                 lambda: ds.mask_column("area"), lambda: ds.shards.open_many([0, 2])):  # fmt: skip
        with pytest.raises(ResourceShortage, match=f"/packs/the-file: .*{limits}") as caught:
            read()
        assert isinstance(caught.value, OSError) and not isinstance(caught.value, ReadError)


REAL_LIMITS = """
import ctypes, mmap, resource, sys
from pathlib import Path
from sa1bpack import open as open_pack
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

def refused(read):
    try:
        read()
    except ResourceShortage as error:
        return str(error)

ds = open_pack(root)
list(ds)
fill()
other = open_pack(root)
assert [other[i]["row"] for i in range(12)] == list(range(12)), "room is made"
free(400)
kept = [ds[i] for i in (0, 4, 7, 9)] + [other[i] for i in (0, 4, 7, 9)]
fill()
text = refused(lambda: [list(open_pack(root)) for _ in range(20)])
free(400)
assert f"vm.max_map_count = {limit}" in text, text
del kept
assert [ds[i]["row"] for i in range(12)] == list(range(12)), "and it works again"

most = resource.getrlimit(resource.RLIMIT_NOFILE)
fresh = open_pack(root, on_error="return")
checked = open_pack(root, on_error="return", verify_checksums=True)
ds.column("size")  # numpy imports a module of its own for it
resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
reads = [lambda: fresh[4], lambda: fresh.__getitems__([4]), lambda: checked[4],
         lambda: fresh.column("size"), lambda: open_pack(root)]
texts = [refused(read) for read in reads]
resource.setrlimit(resource.RLIMIT_NOFILE, most)
assert all("`ulimit -n` = 3" in text for text in texts), texts
assert fresh[4]["row"] == checked[4]["row"] == 4
print("right")
"""


@pytest.mark.skipif(not Path("/proc/sys/vm/max_map_count").exists(), reason="not Linux")
def test_the_limits_of_the_system_are_errors_that_name_them_and_pass(packed):
    """Real ones, in a process of its own: memory maps and open files."""
    if int(Path("/proc/sys/vm/max_map_count").read_text()) > 300_000:
        pytest.skip("it would take too long to use up all memory maps that are allowed here")
    assert python("-W", "error", "-c", REAL_LIMITS, packed.root, timeout=300) == "right\n"
