"""Packs at URLs of which rows are fetched when they are read, and nothing else."""

import fcntl
import shutil
import signal
import tempfile
import threading
import time

import numpy as np
import pytest
from batches import all_same, same_batches, same_samples
from cached_packs import open_cached, open_rows, taken
from edited_packs import flip
from fault_server import serve_files
from forked import forked_child
from layout_packs import LAYOUTS
from packs_with_features import SPECS
from reading_packs import write_pack

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import NotAPack, ReadError, StoreError
from sa1bpack.remote import flow, packs, ranges
from sa1bpack.remote.cache import Cache
from sa1bpack.remote.origin import LocalOrigin

FORMS = [{"mask_format": form} for form in ("bits", "bool", "runs")]


def same_epochs(own, ds, batch_size: int, **options) -> None:
    """Assert that Loaders of two datasets have the same batches."""
    with (
        sa1bpack.Loader(own, batch_size, **options) as one,
        sa1bpack.Loader(ds, batch_size, **options) as other,
    ):
        same_batches(one, other)


# ------------------------------------------------------------------------------- the same samples


# The others are run by `make torture`, see tests/long_cases.txt.
@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_samples_and_batches_are_those_of_the_pack(layout_packs, tmp_path, layout):
    root = layout_packs(*layout)
    forms = [form for form in FORMS if form["mask_format"] != "runs" or "runs" in layout[2]]
    for form in forms:
        own = sa1bpack.open(root, **form)
        ds = open_rows(root, tmp_path, **form)
        assert ds.fingerprint == own.fingerprint
        for k in (5, 0, 3):
            assert same_samples(ds[k], own[k])
        assert all_same(ds, own)
        same_epochs(own, ds, 2, shuffle=True)
    same_epochs(own, ds, 4, shuffle=False, max_masks=2)


@pytest.mark.parametrize("verified", [False, True])
def test_features_of_all_kinds(with_features, tmp_path, verified):
    root = with_features.root
    names = list(SPECS)
    own = sa1bpack.open(root, features=names, verify_checksums=verified)
    ds = open_rows(root, tmp_path, features=names, verify_checksums=verified)
    assert all_same(ds, own)
    same_epochs(own, ds, 4, shuffle=True)
    for name in ("odd", "score"):
        assert np.array_equal(ds.column(name), own.column(name))
    assert np.array_equal(ds.mask_column("level"), own.mask_column("level"))
    assert np.array_equal(
        ds.where("score > 10").column("image_id"), own.where("score > 10").column("image_id")
    )


def test_chosen_fields_alone_are_fetched(with_features, tmp_path, driven):
    root = shutil.copytree(with_features.root, tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root, features=["teacher"])
    ds = open_rows(root, tmp_path / "cache", features=["teacher"])
    same_epochs(own, ds, 4, fields=["teacher"])
    assert not [path for path, _, _ in origin.ranges if path.startswith("shards/")]
    values = {path for path, _, _ in origin.ranges if "/values/" in path}
    assert values and all(path.startswith("side/teacher/") for path in values)
    same_epochs(own, ds, 4, fields=["masks"])
    assert not [path for path, _, _ in origin.ranges if "/image/" in path]
    assert [path for path, _, _ in origin.ranges if "/mask_bits/" in path]


def test_a_condition_on_masks_and_thresholds(layout_packs, tmp_path):
    root = layout_packs("native", "yuv420", "runs")
    rules = {"mask_format": "runs", "min_area": 50}
    own = sa1bpack.open(root, **rules).where_masks("area > 60")
    ds = open_rows(root, tmp_path, **rules).where_masks("area > 60")
    assert all_same(ds, own)
    same_epochs(own, ds, 3, shuffle=True, max_masks=2)


def test_packs_here_and_at_urls_are_one_dataset(layout_packs, tmp_path):
    one = layout_packs("native", "rgb", "bits")
    two = shutil.copytree(one, tmp_path / "two")
    own = sa1bpack.open([one, two], duplicates="all")
    ds = sa1bpack.open(
        [one.as_uri(), two], duplicates="all", cache_dir=tmp_path / "cache", fetch="rows"
    )
    assert ds.fingerprint == own.fingerprint
    assert all_same(ds, own)
    same_epochs(own, ds, 5, shuffle=True)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_in_worker_processes(layout_packs, tmp_path, context):
    root = layout_packs()
    own = sa1bpack.open(root)
    ds = open_rows(root, tmp_path)
    workers = {"fork": 2, "spawn": 1}[context]
    options = {"num_workers": workers, "multiprocessing_context": context}
    one = sa1bpack.make_dataloader(own, 2, shuffle=True, num_workers=0)
    other = sa1bpack.make_dataloader(ds, 2, shuffle=True, **options)
    same_batches(one, other)
    assert all_same(ds, own)


def test_who_keeps_few_rows_takes_little_room(layout_packs, tmp_path):
    """Each process took 16 MiB per shard, and what it did not use was never free again."""
    root = layout_packs()
    for k in range(len(sa1bpack.open(root))):
        ds = open_rows(root, tmp_path)
        ds.metadata(k)
        [source] = ds.pack.sources
        room = taken(tmp_path, "shards")
        fetched = source.counts().nbytes
        assert ds[k]["row"] == k
        rows = source.counts().nbytes - fetched
        assert room < taken(tmp_path, "shards") <= room + 2 * rows


def test_room_that_a_process_did_not_use_is_free_once_it_has_ended(tmp_path, driven):
    """It was lost for good: up to half of what a cache has."""
    root = tmp_path / "pack"
    write_pack(root, {"sa_000000-000": (3,) * 4, "sa_000000-001": (3,)})
    own = sa1bpack.open(root)
    cache = tmp_path / "cache"
    for k in range(4):
        with forked_child() as child:  # which ends as if it were killed
            if child == 0:
                ds = open_rows(root, cache)
                assert same_samples(ds[k], own[k])
                ds.metadata(4)
    origin = driven(root)
    size = taken(cache)
    for _ in range(2):
        assert same_samples(open_rows(root, cache, cache_size=size)[4], own[4])
    asked = rows_asked(origin)
    assert len(asked) == len(set(asked)) == 3


def test_kept_rows_count_after_another_process_has_looked_at_their_shard(layout_packs, tmp_path):
    """They were forgotten if it had the lock when a shard was opened: a cache outgrew its limit."""
    root = layout_packs()
    with forked_child() as child:
        if child == 0:
            signal.alarm(60)
            assert all_same(open_rows(root, tmp_path), sa1bpack.open(root))
    room = taken(tmp_path, "shards")
    ds = open_rows(root, tmp_path)
    looking = [path.open("rb") for path in (tmp_path / "shards").glob("*.lock")]
    for lock in looking:
        fcntl.flock(lock, fcntl.LOCK_EX)
    reader = threading.Thread(target=lambda: list(ds), daemon=True)
    reader.start()
    time.sleep(0.2)
    for lock in looking:
        lock.close()
    reader.join(60)
    assert not reader.is_alive()
    assert taken(tmp_path, "shards") == room


def test_a_fork_does_not_wait_for_a_thread_that_keeps_rows_in_its_parent(
    layout_packs, tmp_path, monkeypatch
):
    """As a DataLoader whose workers are forked while a Loader reads the same dataset."""
    root = layout_packs()
    expected = sa1bpack.open(root)[0]
    keeps = threading.Event()
    may_go_on = threading.Event()
    grow = Cache.grow

    def grow_when_asked(cache: Cache, name: str, nbytes: int) -> bool:
        keeps.set()
        may_go_on.wait(60)
        return grow(cache, name, nbytes)

    monkeypatch.setattr(Cache, "grow", grow_when_asked)
    ds = open_rows(root, tmp_path)
    reader = threading.Thread(target=lambda: ds[0], daemon=True)
    reader.start()
    assert keeps.wait(60)
    with forked_child() as child:
        if child == 0:
            signal.alarm(20)
            may_go_on.set()
            assert same_samples(ds[0], expected)
    may_go_on.set()
    reader.join(60)
    assert same_samples(ds[0], expected)


def test_without_a_folder_the_index_is_kept_in_that_of_the_user(
    layout_packs, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = layout_packs()
    ds = sa1bpack.open(root.as_uri())
    assert all_same(ds, sa1bpack.open(root))
    [folder] = tmp_path.iterdir()
    assert folder.name.startswith("sa1bpack-") and folder.stat().st_mode & 0o077 == 0
    assert not list(folder.rglob("image/c*"))
    shutil.rmtree(folder)
    folder.write_text("something else")
    with pytest.raises(OptionError, match=r"not a folder of this user.*cache_dir="):
        sa1bpack.open(root.as_uri())


def test_commands_look_at_a_pack_at_a_url(layout_packs, tmp_path, monkeypatch, command):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = layout_packs().as_uri()
    code, out, error = command("show", url, "-o", tmp_path / "a.png", "--samples", 2)
    assert (code, error) == (0, "") and "a.png" in out
    code, out, error = command("subset", url, "-o", tmp_path / "a.sel", "--where", "mask_count > 1")
    assert (code, error) == (0, "") and (tmp_path / "a.sel").exists()
    again = sa1bpack.open(tmp_path / "a.sel")
    assert len(again) == len(sa1bpack.open(layout_packs()).where("mask_count > 1"))


def test_options_that_do_not_go_together(layout_packs, tmp_path):
    root = layout_packs()
    with pytest.raises(OptionError, match="fetch is 'shards', which are kept in a cache"):
        sa1bpack.open(root.as_uri(), fetch="shards")
    with pytest.raises(OptionError, match="fetch is 'some'"):
        sa1bpack.open(root.as_uri(), fetch="some")
    with pytest.raises(OptionError, match="is read where it is"):
        sa1bpack.open(root, fetch="rows")
    with pytest.raises(OptionError, match="io='direct' is not possible: rows of packs at URLs"):
        sa1bpack.Loader(open_rows(root, tmp_path), 2, io="direct").plan()


# ------------------------------------------------------------------------------ what is fetched


def test_what_is_read_is_fetched_and_nothing_else(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs("native", "yuv420", "runs"), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root, mask_format="runs")
    ds = open_rows(root, tmp_path / "cache", mask_format="runs")
    before = len(origin.ranges)
    needed = 0
    for index in range(len(own)):
        sample = own[index]
        needed += sample["run_ends"].nbytes
        needed += sum(plane.nbytes for plane in own.shards[index // 4].planes(index % 4).values())
    with sa1bpack.Loader(ds, 1, shuffle=True) as loader:
        list(loader)
        stats = loader.stats()
    rows = [
        asked for asked in origin.ranges[before:] if asked[0].split("/")[2] in ("image", "run_ends")
    ]
    assert sum(stop - first for _, first, stop in rows) == needed
    assert len(rows) <= 2 * len(own)
    # Small arrays of two shards and their metadata besides.
    assert stats.fetched_bytes - needed < 60_000


class MetOrigin(LocalOrigin):
    """A folder of which every read is counted, and waits at a barrier once there is one."""

    def __init__(self, root):
        super().__init__(root.as_uri(), root)
        self.reads = []
        self.barrier = None

    def _read(self, path):
        self.reads.append(path)
        if self.barrier is not None:
            self.barrier.wait(60)

    def read(self, path):
        self._read(path)
        return super().read(path)

    def read_range(self, path, first, stop):
        self._read(path)
        return super().read_range(path, first, stop)


@pytest.mark.parametrize("layout", [("pad", "rgb", "bits+runs"), ("native", "yuv420", "runs")])
def test_a_shard_is_met_in_one_round_trip_of_eighteen_requests_at_most(
    layout_packs, tmp_path, monkeypatch, layout
):
    root = layout_packs(*layout)
    origin = MetOrigin(root)
    monkeypatch.setattr(packs, "open_origin", lambda url: origin)
    ds = open_rows(root, tmp_path)
    origin.reads.clear()
    ds.shards.open(0)
    requests = len(origin.reads)
    assert requests <= 18 and all("sa_000000-000" in path for path in origin.reads)
    # No request waits for the answer to another one: all are under way before any is answered.
    origin.barrier = threading.Barrier(requests)
    ds.shards.open(1)
    assert len(origin.reads) == 2 * requests


def test_neighbours_are_one_request(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs("native", "yuv420", "runs"), tmp_path / "pack")
    origin = driven(root)
    ds = open_rows(root, tmp_path / "cache", mask_format="runs")
    with sa1bpack.Loader(ds, 2) as loader:
        list(loader)
    images = [asked for asked in origin.ranges if "/image/c" in asked[0]]
    assert len(images) == 3  # six samples in batches of two, each within a shard


def test_the_rows_below_an_image_on_its_canvas_are_not_fetched(tmp_path, driven, monkeypatch):
    monkeypatch.setattr(ranges, "GAP", 0)
    write_pack(tmp_path / "pack", {"sa_000000-000": (1, 2)})
    origin = driven(tmp_path / "pack")
    own = sa1bpack.open(tmp_path / "pack")
    ds = open_rows(tmp_path / "pack", tmp_path / "cache")
    assert all_same(ds, own)
    fetched = sum(stop - first for path, first, stop in origin.ranges if "/image/c" in path)
    side = own.layout.image_size
    assert fetched == sum(3 * side * int(sample["size"][2]) for sample in own)


def test_arrays_of_a_shard_are_read_by_rows(layout_packs, tmp_path):
    root = layout_packs()
    own = sa1bpack.open(root).shards[0]
    shard = open_rows(root, tmp_path).shards[0]
    for name in ("image", "mask_bits", "run_ends"):
        array = shard[name]
        assert array.shape == own[name].shape and len(array) == len(own[name])
        assert array.dtype == own[name].dtype and array.nbytes == own[name].nbytes
        assert np.array_equal(array[1:3], own[name][1:3])
        assert np.array_equal(array[2], own[name][2])
        assert np.array_equal(array[-1], own[name][-1])
        assert np.array_equal(array[::2], own[name][::2])
        chosen = np.array([3, 0, 3, 1])
        assert np.array_equal(array[chosen], own[name][chosen])
        assert array[5:5].shape == own[name][5:5].shape
        with pytest.raises(IndexError):
            array[len(array)]
        with pytest.raises(OptionError, match=f"{name} of a shard at a URL is read by rows"):
            np.asarray(array)


def test_a_slow_consumer_bounds_what_is_in_flight(tmp_path, driven, monkeypatch):
    monkeypatch.setattr(flow, "LEAST_AHEAD", 1)
    monkeypatch.setattr(flow, "MOST_AHEAD", 1)
    write_pack(tmp_path / "pack", {f"sa_00000{k}-000": (2, 1) for k in range(8)})
    origin = driven(tmp_path / "pack")
    ds = open_rows(tmp_path / "pack", tmp_path / "cache")
    with sa1bpack.Loader(ds, 1, shuffle=True, prefetch=1, threads=1) as loader:
        batches = iter(loader)
        next(batches)
        before = -1
        while before != len(origin.ranges):
            before = len(origin.ranges)
            time.sleep(0.3)
        images = [asked for asked in origin.ranges if "/image/c" in asked[0]]
        # One was taken; up to two buffers are filled, a batch is located, one is asked for.
        assert len(images) <= 1 + 2 + 4 + 2 < len(ds)
        assert len(list(batches)) == len(ds) - 1


def test_no_more_is_in_flight_than_the_way_needs(tmp_path, driven, monkeypatch):
    monkeypatch.setattr(flow, "LEAST_AHEAD", 1)
    monkeypatch.setattr(flow, "MOST_AHEAD", 1)
    monkeypatch.setattr(flow, "SLOW_SECONDS", 60)
    write_pack(tmp_path / "pack", {f"sa_00000{k}-000": (2, 1) for k in range(8)})
    origin = driven(tmp_path / "pack")
    in_flight = []
    most = []
    noting = threading.Lock()

    def note(path, first, data):
        if path.split("/")[-2] not in ("image", "mask_bits", "run_ends"):
            return data
        with noting:
            in_flight.append(path)
            most.append(len(in_flight))
        time.sleep(0.002)
        with noting:
            in_flight.remove(path)
        return data

    origin.change = note
    ds = open_rows(tmp_path / "pack", tmp_path / "cache")
    with sa1bpack.Loader(ds, 4, shuffle=True, threads=1) as loader:
        assert sum(len(batch["indices"]) for batch in loader) == 16
    assert len(most) > 16
    # One in its turn, one that the reader waits for, one that who asks ahead waits for.
    assert max(most) <= 3


# ---------------------------------------------------------------------------------------- faults


def test_bytes_that_change_on_the_way_are_fetched_again(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root)
    ds = open_rows(root, tmp_path / "cache")
    spoiled: set[tuple[str, int]] = set()

    def spoil(path, first, data):
        if "/image/c" in path and (path, first) not in spoiled:
            spoiled.add((path, first))
            data[len(data) // 2] ^= 1
        return data

    origin.change = spoil
    assert all_same(ds, own)
    assert spoiled
    spoiled.clear()
    same_epochs(own, open_rows(root, tmp_path / "another"), 3, shuffle=True)
    assert spoiled


def test_damage_in_the_store_is_an_error_of_its_sample_alone(layout_packs, tmp_path):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    image = root / "shards/sa_000000-000/image"
    [chunk] = image.glob("c*")
    flip(chunk, 5)
    ds = open_rows(root, tmp_path / "cache")
    with pytest.raises(ReadError, match=r"checksum of sample 0 is .*sa1bpack repair"):
        ds[0]
    own = sa1bpack.open(root)
    assert same_samples(ds[1], own[1])
    with sa1bpack.Loader(ds, 2, on_error="drop", max_dropped=1.0) as loader:
        came = [index for batch in loader for index in batch["indices"].tolist()]
    assert came == [1, 2, 3, 4, 5]
    assert [error.row for error in loader.dropped] == [0]


def test_a_file_that_ends_early_names_itself(layout_packs, tmp_path):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    [chunk] = (root / "shards/sa_000000-001/mask_bits").glob("c*")
    ds = open_rows(root, tmp_path / "cache")
    with chunk.open("r+b") as file:
        file.truncate(10)
    with pytest.raises(ReadError, match=r"mask_bits/c.*ends before the bytes that are needed"):
        ds[5]


def test_a_pack_that_was_replaced_says_so(layout_packs, tmp_path):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    ds = open_rows(root, tmp_path / "cache")
    ds[0]
    other = layout_packs("squash")
    shutil.rmtree(root / "shards")
    shutil.copytree(other / "shards", root / "shards")
    with pytest.raises(StoreError, match="has changed since it was opened: open it again"):
        ds[1]
    with sa1bpack.Loader(ds, 2, shuffle=True) as loader, pytest.raises(StoreError):
        list(loader)


def test_a_request_without_an_answer_is_an_error_after_its_deadline(
    layout_packs, tmp_path, driven, monkeypatch
):
    monkeypatch.setattr(flow, "DEADLINE", 0.2)
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    ds = open_rows(root, tmp_path / "cache")
    ds[0]
    held = threading.Event()

    def hold(path, first, data):
        if "/image/c" in path:
            held.wait(60)
        return data

    origin.change = hold
    try:
        with pytest.raises(StoreError, match=r"image/c.*no answer to a request .* within 0 s"):
            ds[1]
        with sa1bpack.Loader(ds, 2) as loader, pytest.raises(StoreError, match="no answer"):
            next(iter(loader))
    finally:
        held.set()


def test_of_a_slow_request_a_second_one_is_made(layout_packs, tmp_path, driven, monkeypatch):
    monkeypatch.setattr(flow, "SLOW_SECONDS", 0.05)
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root)
    ds = open_rows(root, tmp_path / "cache")
    ds[0]
    held = threading.Event()
    first_ones: set[tuple] = set()

    def hold_the_first(path, first, data):
        if "/image/c" in path and (path, first) not in first_ones:
            first_ones.add((path, first))
            held.wait(60)
        return data

    origin.change = hold_the_first
    try:
        assert same_samples(ds[1], own[1])
        with sa1bpack.Loader(ds, 2, shuffle=True) as loader:
            assert sum(len(batch["indices"]) for batch in loader) == len(own)
    finally:
        held.set()
    assert len(first_ones) == len(own) - 1  # the first sample was kept


def test_an_epoch_that_is_left_cancels_what_it_asked_for(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root)
    ds = open_rows(root, tmp_path / "cache")
    held = threading.Event()

    def hold_later_ones(path, first, data):
        if "/image/c" in path and "-001" in path:
            held.wait(60)
        return data

    with sa1bpack.Loader(ds, 1, threads=2) as loader:
        next(iter(loader))
        origin.change = hold_later_ones
        begin = time.monotonic()
        iterator = iter(loader)
        assert len(next(iterator)["indices"]) == 1
        loader.end_epoch()
        held.set()
        assert time.monotonic() - begin < 30
        origin.change = lambda path, first, data: data
        with sa1bpack.Loader(own, 1) as other:
            for _ in range(2):
                assert len(list(loader)) == len(list(other))


def test_an_epoch_that_is_left_asks_for_nothing_more(layout_packs, tmp_path, driven, monkeypatch):
    monkeypatch.setattr(flow, "LEAST_AHEAD", 1)
    monkeypatch.setattr(flow, "MOST_AHEAD", 1)
    monkeypatch.setattr(ranges, "GAP", -1)  # no request is that of two samples
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    ds = open_rows(root, tmp_path / "cache")
    images = set()  # a slow request is made twice
    held = threading.Event()
    is_held = threading.Event()

    def hold_the_second_batch(path, first, data):
        if "/image/c" in path:
            images.add((path, first))
            if len(images) == 4:
                is_held.set()
                held.wait(60)
        return data

    origin.change = hold_the_second_batch
    with sa1bpack.Loader(ds, 3, threads=1, timeout=30) as loader:
        batches = iter(loader)
        next(batches)
        assert is_held.wait(30)
        loader.end_epoch()
        held.set()
    time.sleep(0.2)  # whatever is asked for now would be too much
    assert len(images) == 4


def test_a_cache_of_whole_shards_and_of_rows_are_side_by_side(layout_packs, tmp_path):
    root = layout_packs()
    own = sa1bpack.open(root)
    whole = open_cached(root, tmp_path)
    rows = open_rows(root, tmp_path)
    assert all_same(rows, own) and all_same(whole, own)
    assert isinstance(whole.shards[0]["image"], np.ndarray)
    assert not isinstance(rows.shards[0]["image"], np.ndarray)


# ------------------------------------------------------------------------------- in a bucket


@pytest.fixture
def in_bucket(layout_packs, s3, tmp_path):
    """A pack in a bucket, its URL, and the folder that it was uploaded from."""
    root = layout_packs("native", "yuv420", "runs")
    bucket = f"rows-{tmp_path.name.replace('_', '-')[:40]}"
    s3.make_bucket(bucket)
    for path in root.rglob("*"):
        if path.is_file():
            s3.put(bucket, f"pack/{path.relative_to(root)}", path.read_bytes())
    return root, f"s3://{bucket}/pack"


def test_a_pack_in_a_bucket(in_bucket, tmp_path):
    root, url = in_bucket
    own = sa1bpack.open(root, mask_format="runs")
    ds = sa1bpack.open(url, cache_dir=tmp_path / "cache", fetch="rows", mask_format="runs")
    assert all_same(ds, own)
    same_epochs(own, ds, 2, shuffle=True)


def test_a_plan_says_what_an_epoch_fetches(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs("native", "yuv420", "runs"), tmp_path / "pack")
    origin = driven(root)
    assert sa1bpack.Loader(sa1bpack.open(root), 1).plan().epoch_requests == 0
    ds = open_rows(root, tmp_path / "cache", mask_format="runs")
    for fields in (None, ["images"]):
        with sa1bpack.Loader(ds, 1, shuffle=True, fields=fields) as loader:
            plan = loader.plan()
            before = len(origin.ranges)
            list(loader)
        fetched = [
            stop - first
            for path, first, stop in origin.ranges[before:]
            if path.split("/")[2] in ("image", "run_ends")
        ]
        assert len(fetched) <= plan.epoch_requests == len(ds) * (2 if fields is None else 1)
        assert sum(fetched) <= plan.epoch_bytes
        assert f"in {plan.epoch_requests} requests" in str(plan)


# -------------------------------------------------------------------------------- other servers


def test_a_pack_on_a_web_server_without_listings(with_features, web, tmp_path):
    serve_files(web, with_features.root, "/data/pack")
    names = ["teacher", "level"]
    own = sa1bpack.open(with_features.root, features=names)
    url = f"{web.url}/data/pack"
    ds = sa1bpack.open(url, features=names, cache_dir=tmp_path / "cache", fetch="rows")
    assert all_same(ds, own)
    same_epochs(own, ds, 4, shuffle=True)
    assert all(path.startswith("/data/pack/") for path, _, _ in web.requests)
    with pytest.raises(NotAPack, match="feature 'more'"):
        sa1bpack.open(url, features=["more"], cache_dir=tmp_path / "cache", fetch="rows")


def test_a_pack_in_a_data_set_of_the_hub(layout_packs, web, tmp_path, monkeypatch):
    root = layout_packs("native", "yuv420", "runs")
    serve_files(web, root, "/datasets/user/name/resolve/main/packs/one")
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    cache = {"cache_dir": tmp_path / "cache", "fetch": "rows", "mask_format": "runs"}
    ds = sa1bpack.open("hf://datasets/user/name/packs/one", **cache)
    assert all_same(ds, sa1bpack.open(root, mask_format="runs"))
    with pytest.raises(NotAPack, match="hf://datasets/user/name@v2/packs/one: not a pack"):
        sa1bpack.open("hf://datasets/user/name@v2/packs/one", **cache)
    assert any("/resolve/v2/packs/one" in path for path, _, _ in web.requests)
    with pytest.raises(OptionError, match="not a data set of the hub"):
        sa1bpack.open("hf://user/name/packs/one", **cache)


def test_a_pack_in_a_container_of_azure(layout_packs, web, tmp_path, monkeypatch):
    root = layout_packs("native", "yuv420", "runs")
    serve_files(web, root, "/container/packs/one")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", web.url)
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    ds = sa1bpack.open(
        "az://container/packs/one",
        cache_dir=tmp_path / "cache",
        fetch="rows",
        mask_format="runs",
    )
    assert all_same(ds, sa1bpack.open(root, mask_format="runs"))


# ------------------------------------------------------------------------------- rows that are kept


def rows_asked(origin) -> list[tuple[str, int, int]]:
    """The ranges of large arrays that were asked for."""
    names = ("image", "mask_bits", "run_ends", "values")
    return [asked for asked in origin.ranges if asked[0].split("/")[-2] in names]


@pytest.mark.parametrize("layout", [("native", "yuv420", "runs"), ("pad", "rgb", "bits+runs")])
def test_in_a_cache_a_second_epoch_fetches_nothing(layout_packs, tmp_path, driven, layout):
    root = shutil.copytree(layout_packs(*layout), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root)
    for _ in range(2):
        ds = open_rows(root, tmp_path / "cache")
        same_epochs(own, ds, 2, shuffle=True)
        assert all_same(ds, own)
        if origin.ranges:
            first = len(rows_asked(origin))
    assert len(rows_asked(origin)) == first > 0
    assert taken(tmp_path / "cache", "shards") >= sum(
        stop - start for _, start, stop in rows_asked(origin)
    )


def test_kept_rows_of_features(with_features, tmp_path, driven):
    root = shutil.copytree(with_features.root, tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root, features=["teacher", "level"])
    for _ in range(2):
        ds = open_rows(root, tmp_path / "cache", features=["teacher", "level"])
        assert all_same(ds, own)
    asked = rows_asked(origin)
    assert len(asked) == len(set(asked))


def test_without_room_rows_are_fetched_again(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root)
    without_rows = open_rows(root, tmp_path / "without rows")
    for k in range(len(own)):
        without_rows.metadata(k)
    room = taken(tmp_path / "without rows")
    assert not rows_asked(origin)
    assert all_same(open_rows(root, tmp_path / "cache", cache_size=room), own)
    before = len(rows_asked(origin))
    assert all_same(open_rows(root, tmp_path / "cache"), own)
    assert len(rows_asked(origin)) == 2 * before


def test_kept_rows_that_are_damaged_are_fetched_again(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root)
    assert all_same(open_rows(root, tmp_path / "cache"), own)
    for kept in (tmp_path / "cache/shards").rglob("kept/image*"):
        flip(kept, 1000)
    before = len(rows_asked(origin))
    for _ in range(2):
        assert all_same(open_rows(root, tmp_path / "cache"), own)
    again = rows_asked(origin)[before:]
    assert 0 < len(again) <= 3 * len(list((tmp_path / "cache/shards").glob("*/kept/image*")))
    for kept in (tmp_path / "cache/shards").rglob("kept/image*"):
        kept.unlink()
    assert all_same(open_rows(root, tmp_path / "cache"), own)


def test_after_a_start_of_the_machine_kept_rows_are_fetched_again(layout_packs, tmp_path, driven):
    root = shutil.copytree(layout_packs(), tmp_path / "pack")
    origin = driven(root)
    own = sa1bpack.open(root)
    assert all_same(open_rows(root, tmp_path / "cache"), own)
    before = len(rows_asked(origin))
    for lock in (tmp_path / "cache").glob("*/*.lock"):  # of an earlier run
        nbytes = lock.read_text().split()[0]
        lock.write_text(f"{nbytes} another-start\n")
    assert all_same(open_rows(root, tmp_path / "cache"), own)
    assert len(rows_asked(origin)) == 2 * before
