"""The origin changes while its cache is kept: it has grown, or another pack has its URL.

What was fetched of one pack never becomes part of another: a pack that is opened is the one that
is there now, and one that was opened before says that it has changed, once it needs what is gone.
"""

import pickle
import shutil
import threading

import numpy as np
import pytest
from batches import all_same, same_samples
from cached_packs import crowd_out, open_cached, shards_in
from packs_with_features import SPECS, write_side
from reading_packs import write_pack

import sa1bpack
from sa1bpack import OptionError
from sa1bpack.errors import StoreError

SHARDS = {"sa_000000-000": (2, 0, 5), "sa_000001-000": (1, 3)}
CHANGED = "has changed since it was opened: open it again"


def write(root, shards=SHARDS, first_id=5000):
    """A pack, in place of what is there. Its samples follow from their ids and masks."""
    shutil.rmtree(root, ignore_errors=True)
    write_pack(root, shards, first_id=first_id)


@pytest.fixture
def origin(tmp_path, driven):
    """The origin of a pack, in the folder `pack`."""
    write(tmp_path / "pack")
    return driven(tmp_path / "pack")


def opened(tmp_path, **options):
    return open_cached(tmp_path / "pack", tmp_path / "cache", **options)


def assert_same(ds, root, **options):
    own = sa1bpack.open(root, **options)
    assert len(ds) == len(own)
    assert ds.fingerprint == own.fingerprint
    assert all_same(ds, own)


def test_of_a_pack_that_has_grown_only_the_new_shards_are_fetched(origin, tmp_path):
    before = opened(tmp_path)
    list(before)
    with sa1bpack.Loader(before, 2) as loader:
        state = loader.state_dict()
    write(tmp_path / "pack", SHARDS | {"sa_000002-000": (4, 2)})
    origin.ranges.clear()
    after = opened(tmp_path)
    assert_same(after, tmp_path / "pack")
    assert origin.shards() == {"sa_000002-000"}
    # The dataset of before has its own samples, also where they are fetched again.
    write(tmp_path / "other", {"sa_000009-000": (9, 9, 9, 9)}, first_id=900)
    crowd_out(tmp_path / "cache", tmp_path / "other")
    assert shards_in(tmp_path / "cache") == {"sa_000009-000"}
    assert len(before) == 5 and all_same(before, after[:5])
    with sa1bpack.Loader(after, 2) as loader, pytest.raises(OptionError, match="fingerprint was"):
        loader.load_state_dict(state)


# What takes the place of a pack whose shards have 3 and 2 samples.
OTHERS = {
    "alike": SHARDS,
    "fewer samples": {"sa_000000-000": (2,), "sa_000001-000": (1,)},
    "more masks": {"sa_000000-000": (9, 9, 9), "sa_000001-000": (9, 9)},
    "no such shards": {"sa_000009-000": (2, 0, 5)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_dataset_whose_pack_was_replaced_says_so_and_reads_nothing_of_the_other(
    origin, tmp_path, other
):
    ds = opened(tmp_path)
    kept = ds[0]
    write(tmp_path / "pack", OTHERS[other], first_id=900)
    for k in (3, 4):
        with pytest.raises(StoreError, match=CHANGED) as caught:
            ds[k]
        assert (tmp_path / "pack").as_uri() in str(caught.value)
    assert same_samples(ds[0], kept) and ds[1]["row"] == 1  # of the shard that is here
    again = pickle.loads(pickle.dumps(ds))
    with pytest.raises(StoreError, match=CHANGED):
        again[4]
    assert_same(opened(tmp_path), tmp_path / "pack")


def test_a_pack_that_is_replaced_while_it_is_opened_is_the_new_one(origin, tmp_path):
    real, changes = origin.read, []
    one_at_a_time = threading.Lock()  # others are read meanwhile, and would find half a pack

    def read(path):
        with one_at_a_time:
            data = real(path)
            if path == "checksums.xxh128" and not changes:  # the index follows
                changes.append(path)
                write(tmp_path / "pack", {"sa_000000-000": (4, 1)}, first_id=900)
        return data

    origin.read = read
    assert_same(opened(tmp_path), tmp_path / "pack")
    assert changes


def test_a_shard_that_was_not_uploaded_whole_is_told_apart_from_damage(origin, tmp_path):
    """Its checksum file is not the one that the pack's checksums name."""
    ds = opened(tmp_path)
    with (tmp_path / "pack/shards/sa_000000-000/checksums.xxh128").open("a") as file:
        file.write("\n")
    with pytest.raises(StoreError, match=CHANGED):
        ds[0]
    with pytest.raises(StoreError, match="upload it again"):
        opened(tmp_path)[0]
    assert ds[3]["image_id"] > 0


def test_a_feature_that_was_replaced_is_not_mixed_with_the_other(origin, tmp_path):
    root = tmp_path / "pack"
    write_side(root, SPECS["score"])
    ds = opened(tmp_path, features="score")
    first = ds[0]["score"]
    shutil.rmtree(root / "side/score")
    write_side(root, SPECS["score"], function="another")
    assert np.array_equal(ds[0]["score"], first)
    with pytest.raises(StoreError, match=CHANGED):
        ds[3]
    assert_same(opened(tmp_path, features="score"), root, features="score")
