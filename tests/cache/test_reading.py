"""Packs that are read through a cache give what they give without one."""

import pickle
import shutil
import threading
from dataclasses import asdict

import numpy as np
import pytest
import torch
from cached_packs import open_cached, url_of
from packs_with_sides import SPECS
from same_samples import same_samples

import sa1bpack
from sa1bpack.cache.requests import Waits, waits
from sa1bpack.errors import NotAPack, OptionError
from sa1bpack.report.subject import read_subject


def same_batches(one, other) -> bool:
    """Whether two batches have the same keys and values."""
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key]
        for key, value in one.items()
    )


@pytest.mark.parametrize("check", ["open", "read"])
@pytest.mark.parametrize(
    "layout",
    [("pad", "rgb", "bits+runs"), ("native", "yuv420", "runs"), ("squash", "yuv420", "bits")],
)
@pytest.mark.parametrize("blocks", ["of one sample", "of several"])
def test_samples_and_batches_are_those_of_the_pack(
    layout_packs, tmp_path, layout, check, blocks, request
):
    if blocks == "of one sample":
        request.getfixturevalue("small_blocks")
    root = layout_packs(*layout)
    own, ds = sa1bpack.open(root, check=check), open_cached(root, tmp_path, check=check)
    assert ds.fingerprint == own.fingerprint
    for k in (5, 0, 3, 1, 2, 4, 5):
        assert same_samples(ds[k], own[k])
    for io in ("cached", "direct"):
        with sa1bpack.Loader(own, 2, io=io) as one, sa1bpack.Loader(ds, 2, io=io) as other:
            assert all(same_batches(a, b) for a, b in zip(one, other, strict=True))


def test_what_a_loader_reads_it_fetched_and_counts(layout_packs, tmp_path, small_blocks):
    ds = open_cached(layout_packs(), tmp_path)
    with sa1bpack.Loader(ds, 2) as loader:
        for _ in loader:
            pass
        cold = loader.stats()
        for _ in loader:
            pass
        warm = loader.stats()
    assert (cold.cache_hits, cold.cache_misses) == (0, 6)
    assert (warm.cache_hits, warm.cache_misses, warm.requests, warm.fetched_bytes) == (6, 0, 0, 0)
    assert warm.fetch_seconds == 0 <= cold.fetch_seconds
    # Two shards of 18 arrays, of which two and the checksum file come whole; an image, bits and
    # runs of each sample, but for that without masks.
    assert cold.requests == 2 * (2 + 15) + 3 * 6 - 2
    assert "0 % of samples from the cache" in str(cold)
    own = sa1bpack.Loader(sa1bpack.open(layout_packs()), 2)
    next(iter(own))
    assert own.stats().cache_hits is None


def test_the_time_in_which_several_threads_wait_counts_once():
    now = [0.0]
    waits = Waits(clock=lambda: now[0])
    with waits:
        now[0] = 1.0
        with waits:
            now[0] = 3.0
            assert waits.seconds == 3
        now[0] = 4.0
    now[0] = 9.0
    assert waits.seconds == 4
    with waits:
        now[0] = 10.0
    assert waits.seconds == 5


def test_a_loader_that_waits_for_what_is_fetched_says_so(
    layout_packs, tmp_path, small_blocks, driven
):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin, ds = driven(root), open_cached(root, tmp_path / "cache")
    asked = threading.Event()

    def wait(path, first, data):
        if "image/" in path:
            assert asked.wait(60)
        return data

    origin.change = wait
    with sa1bpack.Loader(ds, 6) as loader:
        batches = iter(loader)
        waiting = threading.Thread(target=lambda: next(batches))
        waiting.start()
        before = waits().seconds
        while waits().seconds == before:  # until a thread waits
            waiting.join(0.001)
        asked.set()
        waiting.join(60)
        assert loader.stats().fetch_seconds > 0


def test_only_the_stored_rows_of_a_canvas_are_fetched(layout_packs, tmp_path, small_blocks, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    ds = open_cached(root, tmp_path / "cache")
    found = {k: ds[k] for k in range(len(ds))}
    images = {
        (path, first): stop - first for path, first, stop in origin.ranges if "image/" in path
    }
    assert sorted(images.values()) == sorted(
        int(sample["size"][2]) * 128 * 3 for sample in found.values()
    )


@pytest.mark.parametrize("check", ["open", "read"])
def test_side_arrays_in_the_pack_and_elsewhere(with_sides, tmp_path, check):
    shutil.copytree(with_sides.root / "side/features", tmp_path / "apart/features")
    names = [name for name in SPECS if name != "features"]
    own = sa1bpack.open(with_sides.root, side=[*names, tmp_path / "apart/features"], check=check)
    apart = url_of(tmp_path / "apart/features")
    ds = open_cached(with_sides.root, tmp_path / "cache", side=[*names, apart], check=check)
    assert all(same_samples(ds[k], own[k]) for k in range(len(own)))
    with sa1bpack.Loader(own, 4) as one, sa1bpack.Loader(ds, 4) as other:
        assert all(same_batches(a, b) for a, b in zip(one, other, strict=True))
    assert np.array_equal(ds.column("odd"), own.column("odd"))
    assert np.array_equal(ds.mask_column("level"), own.mask_column("level"))


def test_packs_of_different_places_are_one_dataset(layout_packs, tmp_path):
    one, other = layout_packs("native", "rgb", "bits"), tmp_path / "other"
    shutil.copytree(one, other)
    own = sa1bpack.open([one, other], duplicates="first")
    ds = sa1bpack.open([url_of(one), other], duplicates="first", cache=tmp_path / "cache")
    assert [sample["image_id"] for sample in ds] == [sample["image_id"] for sample in own]
    assert ds.fingerprint == own.fingerprint


def test_a_dataset_pickles_to_its_place_in_the_cache(layout_packs, tmp_path):
    ds = open_cached(layout_packs(), tmp_path, masks="bool")[::2]
    again = pickle.loads(pickle.dumps(ds))
    assert all(same_samples(again[k], ds[k]) for k in range(len(ds)))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_worker_processes_share_the_cache(layout_packs, tmp_path, context, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    own, ds = sa1bpack.open(root), open_cached(root, tmp_path / "cache")
    options = {"workers": 2, "multiprocessing_context": context}
    if context == "spawn":  # a new process takes seconds to import torch
        options["workers"] = 1
    one = sa1bpack.make_dataloader(own, 2, workers=0)
    other = sa1bpack.make_dataloader(ds, 2, **options)
    assert all(same_batches(a, b) for a, b in zip(one, other, strict=True))
    used = ds.pack.cached[0].requests.counts().requests
    assert all(same_samples(ds[k], own[k]) for k in range(6))
    assert ds.pack.cached[0].requests.counts().requests - used <= 34  # metadata may be, samples not


def test_a_loader_resumes_and_columns_and_subsets_are_those_of_the_pack(layout_packs, tmp_path):
    own, ds = sa1bpack.open(layout_packs()), open_cached(layout_packs(), tmp_path)
    with sa1bpack.Loader(own, 2) as one, sa1bpack.Loader(ds, 2) as other:
        next(iter(one))
        state = one.state_dict()
        one.load_state_dict(state)
        other.load_state_dict(state)
        assert [same_batches(a, b) for a, b in zip(one, other, strict=True)] == [True] * 2
    for name in ("size", "file_name", "mask_count"):
        assert np.array_equal(ds.column(name), own.column(name))
    chosen = ds.where("mask_count > 1")
    assert [s["image_id"] for s in chosen] == [s["image_id"] for s in own.where("mask_count > 1")]


def test_large_arrays_are_not_handed_out_with_holes(layout_packs, tmp_path):
    ds = open_cached(layout_packs(), tmp_path)
    assert ds.shards[0]["size"].shape == (4, 4)
    with pytest.raises(OptionError, match="image of a pack that is read through a cache"):
        ds.shards[0]["image"]


def test_samples_stay_as_they_are_when_the_cache_removes_them(layout_packs, tmp_path, small_blocks):
    ds = open_cached(layout_packs(), tmp_path)
    sample = ds[2]
    before = sample["image"].copy()
    assert not sample["image"].flags.writeable
    assert ds.pack.cached[0].cache.make_room(1 << 30)
    assert np.array_equal(sample["image"], before)
    assert np.array_equal(ds[2]["image"], before)


def test_a_pack_that_has_grown_is_another_state_that_shares_its_shards(
    layout_packs, tmp_path, driven
):
    root = tmp_path / "pack"
    shutil.copytree(layout_packs(), root)
    origin = driven(root)
    first = open_cached(root, tmp_path / "cache")
    list(first)
    count = len(origin.ranges)
    shutil.copytree(layout_packs("pad", "rgb", "bits"), tmp_path / "other")
    assert same_samples(open_cached(root, tmp_path / "cache")[0], first[0])
    assert len(origin.ranges) == count


def test_what_is_not_a_pack_and_what_lacks_a_cache(tmp_path, layout_packs):
    with pytest.raises(NotAPack, match=r"has no manifest\.json"):
        open_cached(tmp_path, tmp_path / "cache")
    with pytest.raises(OptionError, match="a URL is read through a cache"):
        sa1bpack.open(url_of(layout_packs()))
    with pytest.raises(OptionError, match="'500 GB'"):
        open_cached(layout_packs(), tmp_path / "cache", "much")


def test_saved_selections_name_the_url(layout_packs, tmp_path):
    ds = open_cached(layout_packs(), tmp_path / "cache")[1:4]
    ds.save(tmp_path / "some.sel")
    again = sa1bpack.open(tmp_path / "some.sel", cache=tmp_path / "cache")
    assert [s["image_id"] for s in again] == [s["image_id"] for s in ds]
    assert (
        url_of(layout_packs()) in (tmp_path / "some.sel").read_bytes().partition(b"\n")[0].decode()
    )


def test_a_folder_of_a_cache_is_not_taken_for_the_pack(layout_packs, tmp_path):
    ds = open_cached(layout_packs(), tmp_path / "cache")
    list(ds)
    [root] = (tmp_path / "cache/packs").iterdir()
    assert len(sa1bpack.open(root)) == len(ds)  # as a process does that unpickles the dataset
    calls = (
        lambda: sa1bpack.verify(root),
        lambda: sa1bpack.info(root),
        lambda: sa1bpack.write_report(root, tmp_path / "report.html"),
        lambda: sa1bpack.export_sa1b(root, tmp_path / "out"),
        lambda: sa1bpack.repair(root, [], workers=1, progress=False),
        lambda: sa1bpack.merge(tmp_path / "out", [root]),
    )
    for call in calls:
        with pytest.raises(OptionError, match=r"folder of a cache, .* in part; .* is at file://"):
            call()


@pytest.mark.parametrize("layout", [("pad", "rgb", "bits"), ("native", "yuv420", "runs")])
def test_samples_are_drawn_as_those_of_the_pack(layout_packs, tmp_path, layout):
    own, ds = sa1bpack.open(layout_packs(*layout)), open_cached(layout_packs(*layout), tmp_path)
    assert sa1bpack.show(ds, samples=3).size == sa1bpack.show(own, samples=3).size
    for k in range(len(own)):
        one, other = (asdict(read_subject(each, k, 400)) for each in (own, ds))
        assert same_samples(one, other)
