"""A cache keeps its limit: what was used least recently is removed, and nothing that is in use."""

import errno
import os
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from batches import all_same, same_samples
from cached_packs import open_cached, shards_in, taken
from fault_server import serve_files
from format_files import manifest_of
from packs_with_features import SPECS, write_side
from reading_packs import write_pack
from s3_server import use_s3
from small_tars import members, pack_small, write_tar

import sa1bpack
from sa1bpack import FormatError, OptionError
from sa1bpack.errors import CacheFull, NotAPack
from sa1bpack.remote import cache as module

NAMES = [f"sa_000000-00{k}" for k in range(4)]


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """Four shards of two samples, equally large."""
    folder = tmp_path_factory.mktemp("four")
    tar = write_tar(folder / "sa_000000.tar", members(range(8)))
    sa1bpack.pack(tar, folder / "pack", workers=1, image_size=512, samples_per_shard=2)
    return folder / "pack"


@pytest.fixture
def sizes(pack, tmp_path_factory):
    """(bytes of the head of the pack, bytes of a shard) in a cache."""
    folder = tmp_path_factory.mktemp("sizes")
    ds = open_cached(pack, folder)
    ds[0]
    return taken(folder, "packs"), taken(folder, "shards")


def limit_of(sizes, shards: float) -> int:
    return int(sizes[0] + shards * sizes[1])


def test_the_shard_that_was_used_least_recently_is_removed(pack, tmp_path, sizes):
    ds = open_cached(pack, tmp_path, limit_of(sizes, 2.5))
    for k in (0, 2):
        ds[k]
    [first] = (tmp_path / "shards").glob(f"{NAMES[0]}*.lock")
    os.utime(first, (1, 1))
    ds[4]
    assert shards_in(tmp_path) == {NAMES[1], NAMES[2]}
    assert taken(tmp_path) <= limit_of(sizes, 2.5)
    own = sa1bpack.open(pack)
    assert all_same(ds, own)


def test_a_shard_that_is_read_stays_and_the_next_is_fetched_when_it_ends(
    pack, tmp_path, sizes, monkeypatch
):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    ds = open_cached(pack, tmp_path, limit_of(sizes, 1.5))
    reading = ds.shards.open(0)
    with pytest.raises(CacheFull, match=r"no room for .* are in use; raise cache_size"):
        ds[2]
    assert shards_in(tmp_path) == {NAMES[0]}
    del reading
    ds[2]
    assert shards_in(tmp_path) == {NAMES[1]}


def test_a_limit_far_below_an_epoch_changes_no_batch(pack, tmp_path, sizes):
    own, ds = sa1bpack.open(pack), open_cached(pack, tmp_path, limit_of(sizes, 2.5))
    options = {"order": sa1bpack.LocalShuffleOrder(own, window=2), "threads": 2}
    with sa1bpack.Loader(own, 1, **options) as one, sa1bpack.Loader(ds, 1, **options) as other:
        for _ in range(3):
            for a, b in zip(one, other, strict=True):
                assert a["images"].equal(b["images"])
                assert a["masks"].equal(b["masks"])
    assert taken(tmp_path) <= limit_of(sizes, 2.5)


@pytest.mark.parametrize("mixed", [{"shuffle": True}, {"order": "local"}])
def test_an_order_that_mixes_more_shards_than_fit_is_refused_with_the_remedy(
    pack, tmp_path, sizes, mixed
):
    ds = open_cached(pack, tmp_path, limit_of(sizes, 2.5))
    for make in (sa1bpack.Loader, sa1bpack.make_dataloader):
        with pytest.raises(OptionError, match=r"4 shards at any time.*raise cache_size, use"):
            make(ds, 2, **mixed)
    for fits in (None, sa1bpack.LocalShuffleOrder(ds, window=2), "by_node"):
        sa1bpack.Loader(ds, 2, order=fits).close()
    sa1bpack.Loader(ds[:4], 2, **mixed).close()  # of two shards
    sa1bpack.Loader(sa1bpack.open(pack), 2, **mixed).close()


def test_an_order_is_refused_where_only_the_arrays_of_its_shards_fit(pack, tmp_path):
    """Metadata and blocks of the disk count, which are most of a small shard."""
    shards = manifest_of(pack)["shards"]
    ds = open_cached(pack, tmp_path, sum(shard["bytes"] for shard in shards))
    with pytest.raises(OptionError, match=r"4 shards at any time"):
        sa1bpack.Loader(ds, 2, shuffle=True)


def test_an_order_is_refused_where_its_shards_fit_only_without_their_features(
    pack, tmp_path, sizes
):
    """Rows of features are fetched into the same cache, and count as they do there."""
    ds = sa1bpack.open(pack)
    for row in (4, 400_000):  # numbers per image
        rows = np.zeros((len(ds), row), np.float32)
        ids = ds.column("image_id")
        sa1bpack.attach(ds, f"rows_{row}", rows, ids, output=tmp_path / f"rows_{row}")
        own = open_cached(pack, tmp_path / f"cache-{row}", limit_of(sizes, 6))
        url = (tmp_path / f"rows_{row}").as_uri()
        with_rows = own.with_options(features=[url])
        sa1bpack.Loader(own, 2, shuffle=True).close()
        if row == 4:
            sa1bpack.Loader(with_rows, 2, shuffle=True).close()
            continue
        for make in (sa1bpack.Loader, sa1bpack.make_dataloader):
            with pytest.raises(OptionError, match=r"4 shards at any time, .* with their features"):
                make(with_rows, 2, shuffle=True)


@pytest.mark.parametrize("text", [b"", b"10 GB", b"-1", b"9" * 40, b"\0" * 8, b"1\n2"])
def test_a_damaged_limit_is_named_and_replaced_by_a_size_that_is_given(pack, tmp_path, text):
    open_cached(pack, tmp_path, 10**9)[0]
    (tmp_path / "limit").write_bytes(text)
    with pytest.raises(FormatError, match=r"limit: .* is not a number of bytes; pass cache_size"):
        open_cached(pack, tmp_path, None)
    assert same_samples(open_cached(pack, tmp_path, 10**9)[0], sa1bpack.open(pack)[0])
    assert (tmp_path / "limit").read_text() == str(10**9)


def test_a_pack_that_does_not_fit_at_all_is_an_error_that_names_the_limit(pack, tmp_path):
    with pytest.raises(CacheFull, match="raise cache_size"):
        open_cached(pack, tmp_path, 1000)


def test_a_full_disk_makes_room_or_is_an_error_that_says_so(pack, tmp_path, monkeypatch):
    own, ds = sa1bpack.open(pack), open_cached(pack, tmp_path)
    ds[0]
    real, full = os.pwrite, []

    def pwrite(file, data, offset):
        if full and "/bbox/" in str(Path(f"/proc/self/fd/{file}").readlink()):
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    full.append(1)
    assert same_samples(ds[2], own[2])
    assert shards_in(tmp_path) == {NAMES[1]}  # the first made room
    full += [1] * 1000
    with sa1bpack.Loader(ds[4:6], 2, on_error="drop", max_dropped=1) as loader:
        with pytest.raises(CacheFull, match="disk of the cache is full"):
            list(loader)
        assert loader.dropped == []
    full.clear()
    assert same_samples(ds[4], own[4])


@pytest.mark.parametrize("name", ["manifest.json", "shards/sa_000000-000/bbox/c.0.0"])
@pytest.mark.parametrize("kind", ["a pipe", "a file of 3 GB"])
def test_what_is_no_file_or_far_too_large_is_an_error_at_once(pack, tmp_path, name, kind):
    root = shutil.copytree(pack, tmp_path / "pack")
    (root / name).unlink()
    if kind == "a pipe":
        os.mkfifo(root / name)
    else:
        with (root / name).open("wb") as file:
            file.truncate(3 << 30)
    with pytest.raises(sa1bpack.FormatError, match=r"pipe|at most|came 3 times"):
        open_cached(root, tmp_path / "cache")[0]


def test_a_pack_is_no_place_for_a_cache(layout_packs):
    pack = layout_packs()
    before = sorted(path.name for path in pack.iterdir())
    for where in (pack, pack / "cache"):
        with pytest.raises(OptionError, match=f"in the pack {re.escape(str(pack))}, which must"):
            open_cached(pack, where)
    assert sorted(path.name for path in pack.iterdir()) == before


def test_a_path_with_percent_signs_is_that_folder_and_no_other(tmp_path, with_features):
    """`a b` and `a%20b` beside each other: neither is taken for the other."""
    roots = [tmp_path / "a b", tmp_path / "a%20b"]
    shutil.copytree(with_features.root, roots[0])
    write_pack(roots[1], dict.fromkeys(NAMES[:1], (3,)))
    shutil.copytree(roots[0] / "side/features", tmp_path / "c%20d")
    for root in roots:
        ds = open_cached(root, tmp_path / f"cache of {root.name}")
        assert ds.fingerprint == sa1bpack.open(root).fingerprint
        assert len([ds[k] for k in range(len(ds))]) == len(sa1bpack.open(root))
    own = sa1bpack.open(roots[0], features=[tmp_path / "c%20d"])
    ds = open_cached(roots[0], tmp_path / "cache", features=[(tmp_path / "c%20d").as_uri()])
    assert all_same(ds, own)


def test_a_percent_sign_in_the_address_of_a_web_server_quotes(web, tmp_path, layout_packs):
    """As in what a browser shows: it was quoted again, so that another folder was asked for."""
    root = layout_packs()
    for file in filter(Path.is_file, root.rglob("*")):
        web.files[f"/a b/é#1/{file.relative_to(root)}"] = file.read_bytes()
    own = sa1bpack.open(root)
    for path in ("a%20b/%C3%A9%231", "a b/é%231/"):
        ds = sa1bpack.open(f"{web.url}/{path}", cache_dir=tmp_path / "cache")
        assert all_same(ds, own)
    for path in ("a b/é%232", "a%20b/%C3%A9%232"):
        with pytest.raises(NotAPack, match="/a%20b/%C3%A9%232: not a pack"):
            sa1bpack.open(f"{web.url}/{path}", cache_dir=tmp_path / "cache")
    with pytest.raises(NotAPack, match="/a%2520b/%C3%A9%231: not a pack"):
        sa1bpack.open(f"{web.url}/a%2520b/%C3%A9%231", cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("name", ["日" * 85, ".tmp-pack"])
def test_a_pack_of_any_name_has_its_folder_in_a_cache(
    web, layout_packs, tmp_path, monkeypatch, name
):
    """The folder's name was too long, or one that whoever opens the cache next removes."""
    root = layout_packs()
    use_s3(web.url, monkeypatch)
    for key in (name, "other"):
        serve_files(web, root, f"/bucket/{key}")
    ds = sa1bpack.open(f"s3://bucket/{name}", cache_dir=tmp_path)
    sa1bpack.open("s3://bucket/other", cache_dir=tmp_path)
    own = sa1bpack.open(root)
    assert all_same(ds, own)
    assert same_samples(pickle.loads(pickle.dumps(ds))[0], own[0])


def test_a_key_in_a_bucket_may_have_spaces_and_a_hash(web, layout_packs, tmp_path, monkeypatch):
    root = layout_packs()
    use_s3(web.url, monkeypatch)
    serve_files(web, root, "/bucket/my packs/run #1")
    ds = sa1bpack.open("s3://bucket/my packs/run #1", cache_dir=tmp_path)
    assert all_same(ds, sa1bpack.open(root))
    with pytest.raises(NotAPack, match="s3://bucket/my packs/run #2: not a pack"):
        sa1bpack.open("s3://bucket/my packs/run #2", cache_dir=tmp_path)


@pytest.mark.parametrize("path", ["a/../pack", "./pack", "a\nb"])
def test_what_no_key_can_be_is_refused(tmp_path, path):
    for host in ("s3://bucket", "https://host"):
        with pytest.raises(OptionError, match=r"no part is \. or \.\., and no character"):
            sa1bpack.open(f"{host}/{path}", cache_dir=tmp_path)


@pytest.mark.parametrize("options", [{}, {"fetch": "rows"}], ids=str)
def test_shards_and_features_of_the_longest_names_have_their_folders_in_a_cache(tmp_path, options):
    tar = write_tar(tmp_path / f"{'n' * 196}.tar", members(range(3)))
    pack_small(tar, tmp_path / "pack")
    feature = SPECS["score"]._replace(name="s" * 50)
    write_side(tmp_path / "pack", feature)
    own = sa1bpack.open(tmp_path / "pack", features=[feature.name])
    ds = open_cached(tmp_path / "pack", tmp_path / "cache", features=[feature.name], **options)
    assert all_same(ds, own)
