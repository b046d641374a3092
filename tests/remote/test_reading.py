"""Packs that are read through a cache give what they give without one."""

import shutil
import time

import numpy as np
import pytest
import zarr
from batches import all_same, same_batches, same_samples
from cached_packs import crowd_out, open_cached, shards_in
from packs_with_features import SPECS
from reading_packs import write_pack

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import NotAPack


def same_epochs(own, ds, batch_size: int, **options) -> None:
    """Assert that Loaders of two datasets have the same batches."""
    with (
        sa1bpack.Loader(own, batch_size, shuffle=True, **options) as one,
        sa1bpack.Loader(ds, batch_size, shuffle=True, **options) as other,
    ):
        same_batches(one, other)


@pytest.mark.parametrize(
    ("layout", "verified"),
    [
        (("pad", "rgb", "bits+runs"), False),
        (("native", "yuv420", "runs"), True),
        (("squash", "yuv420", "bits"), False),
    ],
)
def test_samples_and_batches_are_those_of_the_pack(layout_packs, tmp_path, layout, verified):
    root = layout_packs(*layout)
    own = sa1bpack.open(root, verify_checksums=verified)
    ds = open_cached(root, tmp_path, verify_checksums=verified)
    assert ds.fingerprint == own.fingerprint
    for k in (5, 0, 3, 1, 2, 4, 5):
        assert same_samples(ds[k], own[k])
    for io in ("cached", "direct"):
        same_epochs(own, ds, 2, io=io)


def test_what_a_loader_reads_it_fetched_and_counts(layout_packs, tmp_path):
    ds = open_cached(layout_packs(), tmp_path)
    with sa1bpack.Loader(ds, 2, shuffle=True) as loader:
        list(loader)
        cold = loader.stats()
        list(loader)
        warm = loader.stats()
    assert (cold.cache_hits, cold.cache_misses) == (0, 2)
    assert (warm.cache_hits, warm.cache_misses, warm.requests, warm.fetched_bytes) == (0, 0, 0, 0)
    # Of each of two shards the checksum file, the metadata of the group, and the files of its 18
    # arrays; the metadata of arrays follows from the layout.
    assert cold.requests == 2 * (2 + 18)
    assert "2 shards fetched, 0 from the cache" in str(cold)
    again = open_cached(layout_packs(), tmp_path)
    with sa1bpack.Loader(again, 2) as loader:
        list(loader)
        assert (loader.stats().cache_hits, loader.stats().cache_misses) == (2, 0)
    own = sa1bpack.Loader(sa1bpack.open(layout_packs()), 2)
    next(iter(own))
    assert own.stats().cache_hits is None


def test_a_loader_opens_the_next_shards_before_they_are_needed(tmp_path, driven):
    write_pack(tmp_path / "pack", {f"sa_00000{k}-000": (2, 1) for k in range(4)})
    origin, ds = driven(tmp_path / "pack"), open_cached(tmp_path / "pack", tmp_path / "cache")
    with sa1bpack.Loader(ds, 2, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        limit = time.monotonic() + 60
        while len(origin.shards()) < 4 and time.monotonic() < limit:
            time.sleep(0.005)
        assert len(origin.shards()) == 4  # one batch was taken
        assert len(list(batches)) == 3


def test_what_is_in_a_cache_are_ordinary_shards(with_features, tmp_path):
    root = with_features.root
    ds = open_cached(root, tmp_path, features=list(SPECS))
    ds.shards.open_many(range(len(ds.shards)))
    assert np.array_equal(ds.shards[0]["image"], sa1bpack.open(root).shards[0]["image"])
    [index] = (tmp_path / "packs").glob("*/index-*")
    report = sa1bpack.verify(pack := index.parent)
    assert not report.problems and report.counts["samples"] == len(ds)
    assert len(sa1bpack.open(pack)) == len(ds)
    image = f"shards/{ds.manifest.shards[0].name}/image"
    found, expected = (zarr.open(str(folder / image), mode="r")[:] for folder in (pack, root))
    assert np.array_equal(found, expected)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.stat().st_blocks for path in files if path.stat().st_size > 4096)  # no holes


@pytest.mark.parametrize("verified", [False, True])
def test_features_in_the_pack_and_elsewhere(with_features, tmp_path, verified):
    root, names = with_features.root, [name for name in SPECS if name != "features"]
    apart = shutil.copytree(root / "side/features", tmp_path / "apart/features")
    more = {"verify_checksums": verified}
    own = sa1bpack.open(root, features=[*names, apart], **more)
    ds = open_cached(root, tmp_path / "cache", features=[*names, apart.as_uri()], **more)
    assert all_same(ds, own)
    same_epochs(own, ds, 4)
    assert np.array_equal(ds.column("odd"), own.column("odd"))
    assert np.array_equal(ds.mask_column("level"), own.mask_column("level"))


def test_packs_of_different_places_are_one_dataset(layout_packs, tmp_path):
    one = layout_packs("native", "rgb", "bits")
    other = shutil.copytree(one, tmp_path / "other")
    own = sa1bpack.open([one, other], duplicates="first")
    ds = sa1bpack.open([one.as_uri(), other], duplicates="first", cache_dir=tmp_path / "cache")
    assert [sample["image_id"] for sample in ds] == [sample["image_id"] for sample in own]
    assert ds.fingerprint == own.fingerprint


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_share_the_cache(layout_packs, tmp_path, context, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    own, ds = sa1bpack.open(root), open_cached(root, tmp_path / "cache")
    workers = {"fork": 2, "spawn": 1}[context]  # a new process takes seconds to import torch
    options = {"num_workers": workers, "multiprocessing_context": context}
    one = sa1bpack.make_dataloader(own, 2, shuffle=True, num_workers=0)
    other = sa1bpack.make_dataloader(ds, 2, shuffle=True, **options)
    same_batches(one, other)
    used = ds.pack.fetched().requests
    assert all_same(ds, own)
    assert ds.pack.fetched().requests == used


def test_samples_stay_as_they_are_when_the_cache_removes_them(layout_packs, tmp_path):
    cache = tmp_path / "cache"
    ds = open_cached(layout_packs(), cache)
    view = ds[2].stored()["image"]
    before = view.copy()
    assert not view.flags.writeable
    write_pack(tmp_path / "pack", {"sa_000009-000": (99,) * 60})
    crowd_out(cache, tmp_path / "pack")
    assert shards_in(cache) == {"sa_000009-000"}
    assert np.array_equal(view, before)
    assert np.array_equal(ds[2]["image"], before)


def test_what_is_not_a_pack_and_what_lacks_a_cache(tmp_path, layout_packs):
    with pytest.raises(NotAPack, match=r"has no manifest\.json"):
        open_cached(tmp_path, tmp_path / "cache")
    with pytest.raises(OptionError, match="fetch is 'shards', which are kept in a cache"):
        sa1bpack.open(layout_packs().as_uri(), fetch="shards")
    with pytest.raises(OptionError, match="'500 GB'"):
        open_cached(layout_packs(), tmp_path / "cache", "much")


def test_saved_selections_name_the_url(layout_packs, tmp_path):
    ds = open_cached(layout_packs(), tmp_path / "cache")[1:4]
    ds.save_selection(tmp_path / "some.sel")
    again = sa1bpack.open(tmp_path / "some.sel", cache_dir=tmp_path / "cache")
    assert [s["image_id"] for s in again] == [s["image_id"] for s in ds]
    head = (tmp_path / "some.sel").read_bytes().partition(b"\n")[0]
    assert layout_packs().as_uri() in head.decode()
