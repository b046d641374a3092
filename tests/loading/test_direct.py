"""Reading past the page cache: the same batches, an unchanged page cache, errors with names."""

import errno
import gc
import logging
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from batches import clone, join_readers, readers, same, same_batches
from forked import forked_child
from loader_seams import after_reads
from page_cache import drop, resident
from system import open_files

from sa1bpack import Collate, Loader, OptionError, ReadError
from sa1bpack import open as open_pack
from sa1bpack.disk import direct
from sa1bpack.disk.aio import CONTEXTS

LARGE = ("image", "mask_bits", "run_ends")  # arrays that are read past the page cache


def files_of(root: Path, *arrays: str) -> list[Path]:
    return [path for name in arrays for path in sorted(root.glob(f"shards/*/{name}/c.*"))]


@pytest.fixture
def cold(direct_folder, tmp_path_factory):
    """cold(pack) → a copy of a pack, no file of which is in the page cache."""
    made = []

    def copy_of(pack: Path) -> Path:
        made.append(direct_folder / f"pack{len(list(direct_folder.iterdir()))}")
        shutil.copytree(pack, made[-1])
        drop(*files_of(made[-1], *LARGE))
        return made[-1]

    yield copy_of
    for root in made:
        shutil.rmtree(root)


@pytest.fixture
def root(cold, layout_packs):
    """A cold pack of canvases, bits and runs: two shards, of four samples and of two."""
    return cold(layout_packs())


def batches_of(root: Path, opened: dict, size: int = 4, **options) -> list[dict]:
    """The batches of one epoch, copied."""
    with Loader(open_pack(root, **opened), size, **options) as loader:
        return [clone(batch) for batch in loader]


@pytest.mark.parametrize(
    ("layout", "opened"),
    [
        (("pad", "rgb", "bits+runs"), {}),
        (("native", "yuv420", "runs"), {"mask_format": "runs"}),
        (("squash", "yuv420", "bits+runs"), {"pixels": "stored", "mask_size": 24}),
    ],
)
def test_the_page_cache_is_left_alone(cold, layout_packs, layout, opened):
    root = cold(layout_packs(*layout))
    found = batches_of(root, opened, io="direct")
    assert not any(resident(path).any() for path in files_of(root, *LARGE))
    same_batches(found, batches_of(layout_packs(*layout), opened, io="cached"))


# ------------------------------------------------------------------------------------------ errors


def cut(root: Path, array: str, nbytes: int) -> Path:
    """Cut the file of the first shard."""
    path = files_of(root, array)[0]
    os.truncate(path, nbytes)
    return path


@pytest.mark.parametrize("io", ["direct", "cached"])
@pytest.mark.parametrize(
    ("array", "more", "cached"),
    [("image", 0, False), ("image", 5000, True), ("mask_bits", 5000, False)],
)
def test_a_file_cut_short_is_an_error_with_the_samples_name(root, io, array, more, cached):
    """Samples 0 and 1 remain, and of sample 2 a few bytes; also where the file is mapped."""
    ds = open_pack(root)
    width = ds.layout.array(array).row_bytes
    rows = 2 if array == "image" else int(ds.column("mask_count")[:2].sum())
    gone = 2
    with Loader(ds, 1, mask_layout="concat_bits", io=io) as loader:
        for _ in loader:  # everything is open and mapped
            pass
        path = cut(root, array, rows * width + more)
        if cached:
            path.read_bytes()
        batches = iter(loader)
        for row in range(gone):
            assert next(batches)["indices"].tolist() == [row]
        with pytest.raises(ReadError, match=f"{array}/c.*ends before this sample") as found:
            next(batches)
        assert not readers()
    assert found.value.row == gone and found.value.file_name in str(found.value)
    assert str(path) in str(found.value)


@pytest.mark.parametrize("array", [0, 1])
def test_an_error_of_the_disk_is_an_error_with_the_samples_name(root, array, monkeypatch):
    """EIO of sample 2; and on_error="drop" drops it alone."""
    ds = open_pack(root)
    expected = Collate("concat_bits")([ds[row] for row in (0, 1, 3)])

    def failing(tables, dest, first, stop):
        for k in range(first, stop):
            if tables.samples["shard_row"][k] == 2:
                dest.status[k, array] = errno.EIO

    after_reads(monkeypatch, failing)
    failure = pytest.raises(ReadError, match=r"Input/output error")
    with Loader(ds, 4, mask_layout="concat_bits", io="direct") as loader, failure as found:
        next(iter(loader))
    assert found.value.row == 2 and found.value.__cause__.errno == errno.EIO
    assert found.value.__cause__.filename == str(files_of(root, LARGE[array])[0])
    more = {"on_error": "drop", "max_dropped": 0.5}
    with Loader(ds, 4, mask_layout="concat_bits", **more, io="direct") as loader:
        batch = next(iter(loader))
        assert batch.pop("dropped").tolist() == [2]
        same(batch, expected)
        assert [error.row for error in loader.dropped] == [2]


# ---------------------------------------------------------------------------------- how it is read


def refuse(monkeypatch, what: str) -> str:
    """Make direct reading impossible; returns what the reason must name."""

    if what == "contexts":

        def failing():
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(CONTEXTS, "take", failing)
        return r"the system refuses Linux AIO \(Operation not permitted\)"
    if what == "files":
        open_direct(monkeypatch)
        return r"image/c\S* cannot be read with O_DIRECT \(Invalid argument\)"
    open_direct(monkeypatch, os.O_WRONLY)  # a file system that refuses only when it is read
    return r"image/c\S* cannot be read with O_DIRECT \(Bad file descriptor\)"


def open_direct(monkeypatch, flags: int | None = None, folder: str = "") -> None:
    """Open files in a folder with these flags where O_DIRECT is asked for; None: refuse it, as file
    systems do that cannot."""
    real = os.open

    def opened(path, given, *rest, **options):
        if not given & os.O_DIRECT or not str(path).startswith(folder):
            return real(path, given, *rest, **options)
        if flags is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return real(path, flags)

    monkeypatch.setattr(os, "open", opened)


def have_memory(monkeypatch, nbytes: int) -> None:
    """A machine with so much memory."""
    real, found = os.sysconf, {"SC_PHYS_PAGES": nbytes, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(os, "sysconf", lambda name: found.get(name) or real(name))


@pytest.mark.parametrize("what", ["files", "contexts", "reads"])
def test_where_it_is_impossible_it_is_refused_or_not_chosen(root, monkeypatch, what):
    ds = open_pack(root)
    before = len(open_files())
    reason = refuse(monkeypatch, what)
    with pytest.raises(OptionError, match=f"io='direct' is not possible: .*{reason}; use io='cac"):
        Loader(ds, 2, io="direct")
    have_memory(monkeypatch, 1000)
    with Loader(ds, 2, io="auto") as loader:
        assert re.fullmatch(f"read through the page cache: .*{reason}", loader.plan().io)
        assert len([None for _ in loader]) == 3
    assert len(open_files()) <= before + 2 * 2  # the cache's, of two shards


def test_auto_reads_a_dataset_that_fits_in_memory_through_the_page_cache(root, monkeypatch):
    ds = open_pack(root)
    nbytes = sum(shard.bytes for shard in ds.manifest.shards)
    have_memory(monkeypatch, 2 * nbytes)
    with Loader(ds, 2) as loader:
        assert "through the page cache: the dataset's" in loader.plan().io
        assert "fit in 50%" in str(loader.plan())
    have_memory(monkeypatch, 2 * nbytes - 2)
    with Loader(ds, 2) as loader:
        assert "past the page cache: the dataset's" in loader.plan().io
        assert "exceed 50%" in str(loader.plan())
        assert loader.plan().threads >= 4
    with Loader(ds[:3], 2) as loader:  # half of the samples
        assert "through the page cache" in loader.plan().io
    with Loader(ds, 2, io="cached") as loader:
        assert loader.plan().io == "read through the page cache: io='cached'"
    with Loader(ds, 2, io="direct", threads=1) as loader:
        assert loader.plan().io == "read past the page cache: io='direct'"
        assert loader.plan().threads == 1


@pytest.mark.parametrize("threads, batch, ahead", [(4, 2, 4), (12, 12, 12), (1, 8, 2)])
def test_past_the_page_cache_batches_ahead_are_as_many_as_let_each_thread_read_eight_samples(
    root, threads, batch, ahead
):
    """A buffer more than these is filled, and another is used."""
    ds = open_pack(root)
    with Loader(ds, batch, io="direct", threads=threads) as loader:
        assert loader.plan().batches == ahead + 2
    with Loader(ds, batch, io="cached", threads=threads) as loader:
        assert loader.plan().batches == 6
    with Loader(ds[17 * [0]], 17, io="cached", threads=threads) as loader:  # larger batches
        assert loader.plan().batches == 4
    with Loader(ds, batch, io="direct", threads=threads, prefetch=1) as loader:
        assert loader.plan().batches == 3


def test_a_shard_whose_file_system_cannot_is_read_through_the_page_cache_with_one_warning(
    root, layout_packs, monkeypatch, caplog
):
    """The second of two shards, twice: the file system is named once."""
    second = str(files_of(root, "image")[1].parents[1])
    open_direct(monkeypatch, folder=second)
    monkeypatch.setattr(direct, "warned", set())
    caplog.set_level(logging.WARNING, "sa1bpack")
    found = batches_of(root, {}, io="direct", mask_layout="concat_bits")
    images = files_of(root, "image")
    assert not resident(images[0]).any() and resident(images[1]).any()
    same_batches(batches_of(root, {}, io="direct", mask_layout="concat_bits"), found)
    same_batches(found, batches_of(layout_packs(), {}, io="cached", mask_layout="concat_bits"))
    [record] = caplog.records
    assert second in record.message and "does not support O_DIRECT" in record.message


# -------------------------------------------------------------------------------------------- ends


def test_a_fork_while_iterating_disturbs_neither_process(root, layout_packs):
    """Requests in progress belong to the parent; the child reads with contexts of its own."""
    options = {"threads": 2, "mask_layout": "concat_bits"}
    expected = batches_of(layout_packs(), {}, 1, io="cached", **options)
    loader = Loader(open_pack(root), 1, io="direct", **options)
    batches = iter(loader)
    found = [clone(next(batches))]
    with forked_child() as child:
        if child == 0:
            with Loader(open_pack(root), 1, io="direct", **options) as own:
                same_batches(own, expected)
        else:
            found += [clone(batch) for batch in batches]
            same_batches(found, expected)
    loader.close()


def test_a_thread_without_a_context_is_an_error_of_the_epoch(root, monkeypatch):
    loader = Loader(open_pack(root), 2, threads=1, io="direct")

    def refused():
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(CONTEXTS, "take", refused)
    with pytest.raises(OSError) as found:
        next(iter(loader))
    assert found.value.errno == errno.EAGAIN
    monkeypatch.undo()
    assert len([None for _ in loader]) == 3
    loader.close()


def test_nothing_is_left_open_but_what_the_caches_keep(root):
    def run() -> None:
        with Loader(open_pack(root), 2, threads=2, io="direct") as loader:
            for _ in loader:
                break
            assert len([None for _ in loader]) == 3
        join_readers()
        del loader
        gc.collect()

    run()  # makes the contexts of two threads at most, and what torch keeps open
    files = Counter(path for _, path in open_files())
    contexts = len(CONTEXTS)
    for _ in range(3):
        run()
    assert len(CONTEXTS) <= max(contexts, 2)
    new = Counter(path for _, path in open_files()) - files  # older ones may have gone meanwhile
    assert not new.total()
    assert not [name for name in files if str(root) in name]
