"""Packs in an S3 server on loopback, whose answers are spoilt on the way."""

import pytest
from batches import all_same, same_samples
from forked import forked_child
from s3_server import s3_client

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import NotAPack, StoreError

SIDE = "score"


@pytest.fixture(scope="module", autouse=True)
def packs(layout_packs, with_features, s3_process, proxy_process):
    """Folders of packs that the bucket has under their names."""
    found = {"pack": layout_packs(), "sides": with_features.root}
    for name, root in found.items():
        for path in root.rglob("*"):
            inside = path.relative_to(root)
            if path.is_file() and (inside.parts[0] != "side" or inside.parts[1] == SIDE):
                # Public, else they could not be stored again where this module is set up twice.
                s3_process.put("packs", f"{name}/{inside}", path.read_bytes(), public=True)
    return found


def open_s3(tmp_path, name="pack", **options):
    return sa1bpack.open(f"s3://packs/{name}", cache_dir=tmp_path, cache_size="1 GB", **options)


def test_samples_of_a_bucket_are_those_of_the_folder(proxy, packs, tmp_path):
    own = sa1bpack.open(packs["sides"], features=SIDE)
    ds = open_s3(tmp_path, "sides", features=SIDE)
    assert all_same(ds, own)
    apart = open_s3(tmp_path / "2", "sides", features=f"s3://packs/sides/side/{SIDE}")
    assert same_samples(apart[3], own[3])
    count = len(proxy.requests)
    list(ds)
    assert len(proxy.requests) == count


# What becomes of the first request for a file: of large arrays ranges, of others all of it.
FAULTS = {
    "image/c": "cut", "mask_bits/c": "truncate", "run_ends/c": "flip", "bbox/c": "stall",
    "area/c": "refuse", "crop_box/c": "slow down", "sa_000000-000/checksums": "flip",
    "pack/manifest.json": "truncate", "pack/checksums": "flip", "/image_id/c": "cut",
}  # fmt: skip


def test_spoilt_answers_are_asked_for_again(proxy, packs, tmp_path):
    proxy.rule = lambda method, path, number: next(
        (fault for word, fault in FAULTS.items() if number == 0 and word in path), None
    )
    own, ds = sa1bpack.open(packs["pack"]), open_s3(tmp_path)
    with sa1bpack.Loader(ds, 3) as loader:
        ids = [int(number) for batch in loader for number in batch["image_ids"]]
    assert ids == [sample["image_id"] for sample in own]
    assert all_same(ds, own)
    assert set(proxy.faults) == set(FAULTS.values())


def test_expired_credentials_are_named_at_once_and_not_shown(proxy, packs, tmp_path):
    ds = open_s3(tmp_path)
    proxy.requests.clear()
    proxy.rule = lambda method, path, number: "expired" if "/image/c" in path else None
    with pytest.raises(StoreError, match="credentials have expired; log in again") as caught:
        ds[0]
    assert "test-secret-key" not in str(caught.value)
    assert "s3://packs/pack/shards/sa_000000-000/image" in str(caught.value)
    assert len([path for _, path in proxy.requests if "/image/c" in path]) == 1
    proxy.rule = lambda method, path, number: None
    assert same_samples(ds[0], sa1bpack.open(packs["pack"])[0])


@pytest.mark.parametrize("url", ["s3://packs/pack?X-Sig=SECRET", "s3://me:SECRET@packs/pack"])
def test_a_signed_url_is_refused_and_written_nowhere(proxy, tmp_path, url):
    for options in ({"cache_dir": tmp_path}, {}):
        with pytest.raises(OptionError, match="leave it out") as caught:
            sa1bpack.open(url, **options)
        assert "SECRET" not in str(caught.value)
    ds = open_s3(tmp_path)
    with pytest.raises(OptionError, match=r"features is .*leave it out") as caught:
        ds.with_options(features=url)
    assert "SECRET" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if "SECRET" in path.name]


def test_neither_folders_nor_files_of_a_cache_have_credentials(proxy, tmp_path):
    for url in ("s3://packs/sides", "S3://packs//sides/"):
        assert (
            "image" in sa1bpack.open(url, cache_dir=tmp_path, cache_size="1 GB", features=SIDE)[0]
        )
    assert len(list((tmp_path / "packs").glob("sides-*.lock"))) == 1
    for path in tmp_path.rglob("*"):
        assert "test-" not in path.name
        assert not path.is_file() or b"test-secret-key" not in path.read_bytes()


@pytest.mark.parametrize("share", [0, 0.5])
def test_an_object_that_ends_early_is_an_error_that_names_it(proxy, packs, tmp_path, share):
    """Before or within what is asked for: it may have been replaced by a shorter one."""
    ds, path = open_s3(tmp_path), "shards/sa_000000-000/bbox/c.0.0"
    data, key = (packs["pack"] / path).read_bytes(), f"pack/{path}"
    where = {"Bucket": "packs", "Key": key}
    s3_client().put_object(Body=data[: int(share * len(data))], **where)
    with pytest.raises(StoreError, match=rf"s3://packs/{key}: .*it ends "):
        ds[0]
    s3_client().put_object(Body=data, **where)
    assert same_samples(ds[0], sa1bpack.open(packs["pack"])[0])


def test_what_is_not_there_is_named(proxy, tmp_path):
    with pytest.raises(NotAPack, match="s3://packs/none: not a pack"):
        open_s3(tmp_path, "none")
    with pytest.raises(StoreError, match=r"nowhere/pack/manifest\.json: there is no such bucket"):
        sa1bpack.open("s3://nowhere/pack", cache_dir=tmp_path)
    with pytest.raises(OptionError, match="names no bucket"):
        sa1bpack.open("s3://", cache_dir=tmp_path)


def test_a_forked_child_says_that_connections_do_not_survive(proxy, tmp_path):
    ds = open_s3(tmp_path)
    assert not ds.pack.forks
    with forked_child() as child:
        if child == 0:
            with pytest.raises(StoreError, match="do not survive a fork"):
                ds[0]
