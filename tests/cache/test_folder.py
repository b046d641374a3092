"""A cache keeps its limit: what was used least recently is removed, and nothing that is held."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
from cached_packs import disk_bytes, open_cached
from same_samples import same_samples

import sa1bpack
from sa1bpack.cache import folder
from sa1bpack.errors import CacheFull, OptionError

# What the folders of both shards of the pack take that are always here, and its largest sample.
LAYOUT = ("pad", "rgb", "bits")


@pytest.fixture
def sizes(layout_packs, tmp_path, small_blocks):
    """(bytes of metadata, bytes of each sample) in a cache of the pack."""
    ds = open_cached(layout_packs(*LAYOUT), tmp_path / "sizes")
    cache = ds.pack.cached[0].cache
    for number in range(2):
        ds.shards.open(number)
    metadata, found = cache.used, []
    for k in range(len(ds)):
        before = cache.used
        ds[k]
        found.append(cache.used - before)
    return metadata, found


def present(ds) -> list[bool]:
    """Which samples of a dataset are in the cache."""
    found = []
    for k in range(len(ds)):
        number, local, _, _ = ds.locate(k)
        [group] = ds.shards.open(number).groups
        found.append(int(group.blocks.stamps[local]) > 1)
    return found


def test_the_sample_that_was_used_least_recently_is_removed(layout_packs, tmp_path, sizes):
    metadata, each = sizes
    limit = metadata + each[0] + each[1] + each[2]
    ds = open_cached(layout_packs(*LAYOUT), tmp_path / "cache", limit)
    ds.shards.open(1)
    for k in (0, 1, 2, 0):
        ds[k]
    assert present(ds) == [True, True, True, False, False, False]
    ds[3]
    assert present(ds)[:1] + present(ds)[3:4] == [True, True]
    assert not present(ds)[1]
    cache = ds.pack.cached[0].cache
    assert cache.used <= limit


def test_what_is_removed_is_a_hole_and_neighbours_are_untouched(
    layout_packs, tmp_path, small_blocks
):
    root = layout_packs("native", "yuv420", "bits")  # images end within a page, and share it
    own, ds = sa1bpack.open(root), open_cached(root, tmp_path)
    list(ds)
    cache, before = ds.pack.cached[0].cache, disk_bytes(tmp_path)
    [group] = ds.shards.open(0).groups
    with ds.pack.present([0, 2]):
        assert cache.make_room(1 << 30)
        assert present(ds) == [True, False, True, False, False, False]
    assert 0 < disk_bytes(tmp_path) < before
    assert all(same_samples(ds[k], own[k]) for k in (0, 2, 1, 3, 4, 5))
    assert cache.make_room(1 << 30)
    assert disk_bytes(tmp_path) <= 4 * 2 * 4096  # the ends of four files
    assert not group.blocks.stamps.any()


def test_a_limit_far_below_an_epoch_changes_no_batch(layout_packs, tmp_path, sizes):
    metadata, each = sizes
    own = sa1bpack.open(layout_packs(*LAYOUT))
    ds = open_cached(layout_packs(*LAYOUT), tmp_path / "cache", metadata + 3 * max(each))
    with (
        sa1bpack.Loader(own, 1, threads=2) as one,
        sa1bpack.Loader(ds, 1, threads=2) as other,
    ):
        for _ in range(3):
            for a, b in zip(one, other, strict=True):
                assert a["images"].equal(b["images"])
                assert a["masks"].equal(b["masks"])
    assert ds.pack.cached[0].cache.used <= metadata + 3 * max(each)


def test_no_room_is_an_error_that_names_the_limit(layout_packs, tmp_path, sizes, monkeypatch):
    monkeypatch.setattr(folder, "WAIT_SECONDS", 0.0)
    metadata, each = sizes
    ds = open_cached(layout_packs(*LAYOUT), tmp_path / "cache", metadata + each[0])
    ds.shards.open(1)
    with ds.pack.present([0]), pytest.raises(CacheFull, match="raise cache_bytes"):
        ds[1]
    ds[1]
    with pytest.raises(CacheFull, match="raise cache_bytes"):
        open_cached(layout_packs(*LAYOUT), tmp_path / "small", 1000)[0]


def test_a_full_disk_makes_room_or_is_an_error(layout_packs, tmp_path, small_blocks, monkeypatch):
    root = layout_packs(*LAYOUT)
    own, ds = sa1bpack.open(root), open_cached(root, tmp_path)
    ds[0], ds[4]
    real, full = os.pwrite, []

    def pwrite(file, data, offset):
        if full and len(data) > 4096:
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    full.append(1)
    assert same_samples(ds[2], own[2])
    assert not present(ds)[0]
    full += [1] * 50
    with pytest.raises(CacheFull, match="disk of the cache is full"):
        ds[3]
    full.clear()
    assert same_samples(ds[3], own[3])


def test_a_disk_that_is_full_for_metadata_makes_room_or_ends_the_epoch_and_drops_nothing(
    layout_packs, tmp_path, small_blocks, monkeypatch
):
    root = layout_packs(*LAYOUT)
    own, ds = sa1bpack.open(root), open_cached(root, tmp_path)
    ds[0], ds[1]
    real, full = os.pwrite, []

    def pwrite(file, data, offset):
        if full and "/bbox/" in str(Path(f"/proc/self/fd/{file}").readlink()):
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    full += [1] * 1000
    with sa1bpack.Loader(ds, 2, on_error="drop", max_dropped=1) as loader:
        with pytest.raises(CacheFull, match="disk of the cache is full"):
            list(loader)
        assert loader.dropped == []
    ds[0]
    full[1:] = []
    assert same_samples(ds[4], own[4])
    assert not full and not present(ds)[0]  # it made room for the metadata of the second shard


def test_a_file_system_without_holes_is_refused(layout_packs, tmp_path, monkeypatch):
    def punch(path, low, high):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(folder, "punch", punch)
    with pytest.raises(OptionError, match="cannot punch holes"):
        open_cached(layout_packs(), tmp_path)


def test_a_pack_is_no_place_for_a_cache(layout_packs):
    pack = layout_packs()
    before = sorted(path.name for path in pack.iterdir())
    for where in (pack, pack / "cache"):
        with pytest.raises(OptionError, match=f"in the pack {re.escape(str(pack))}, which must"):
            open_cached(pack, where)
    assert sorted(path.name for path in pack.iterdir()) == before


def test_caches_of_another_release_are_refused(layout_packs, tmp_path):
    shutil.os.makedirs(tmp_path / "cache")
    (tmp_path / "cache/cache.json").write_text('{"version": 9, "limit": 5}')
    with pytest.raises(OptionError, match="version 9"):
        open_cached(layout_packs(), tmp_path / "cache")
