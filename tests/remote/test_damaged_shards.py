"""One damaged shard in a store ends nothing that can go on without it, in any order of samples."""

import logging

import numpy as np
import pytest
from batches import BOTH
from cached_packs import open_cached
from edited_packs import flip
from small_tars import SMALL, members, write_tar

import sa1bpack
from sa1bpack.errors import FormatError

BUCKETS = {
    "none": lambda ds: None,
    "mask_count": lambda ds: "mask_count",
    "aspect": lambda ds: "aspect",
    "a sum": lambda ds: ds.column("area", "sum", missing=0).astype(float),
    "a number": lambda ds: ds.column("height", missing=0),
}


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Three shards of four samples; of the second, the first byte of a file is another."""
    folder = tmp_path_factory.mktemp("damaged")
    tar = write_tar(folder / "sa_000000.tar", members(range(12)), shuffle=None)
    options = {**SMALL, "samples_per_shard": 4}
    sa1bpack.pack(tar, folder / "pack", workers=1, **options)
    [size] = (folder / "pack/shards/sa_000000-001/size").rglob("c.*")
    flip(size, 0)
    return folder / "pack"


@BOTH
@pytest.mark.parametrize("rule", [{}, {"min_area": 1}], ids=["all masks", "a rule"])
@pytest.mark.parametrize("by", BUCKETS)
def test_the_samples_of_a_damaged_shard_are_dropped_and_the_others_come(
    damaged, tmp_path, caplog, make, by, rule
):
    ds = open_cached(damaged, tmp_path, **rule)
    options = {"on_error": "drop", "max_dropped": 1.0}
    if make is sa1bpack.make_dataloader:
        options["num_workers"] = 0
    loader = make(ds, 2, bucket_by=BUCKETS[by](ds), **options)
    batches = list(loader)
    came = sorted(index for batch in batches for index in batch["indices"].tolist())
    assert came == [0, 1, 2, 3, 8, 9, 10, 11]
    assert sorted(error.row for error in loader.dropped) == [4, 5, 6, 7]


def test_a_column_of_a_damaged_shard_is_an_error_with_the_remedy_or_has_the_value(
    damaged, tmp_path, caplog
):
    ds = open_cached(damaged, tmp_path)
    for name, reduce in (("size", None), ("area", "sum"), ("height", None)):
        with pytest.raises(FormatError, match=r"sa_000000-001.*Pass missing=VALUE"):
            ds.column(name, reduce)
        with caplog.at_level(logging.WARNING, "sa1bpack"):
            values = ds.column(name, reduce, missing=-1)
        assert (values[4:8] == -1).all() and (values[:4] != -1).all() and (values[8:] != -1).all()
        assert "4 samples of a damaged shard have the value -1: " in caplog.text
        caplog.clear()
    assert np.array_equal(ds.column("mask_count", missing=0), ds.column("mask_count"))
