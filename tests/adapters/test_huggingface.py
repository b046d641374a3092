"""A dataset as a `datasets.Dataset` of Hugging Face."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_tars import members, pack_small, write_tar

import sa1bpack
from sa1bpack.errors import OptionError, ReadError, UnknownName

datasets = pytest.importorskip("datasets", reason="make frameworks")
huggingface = pytest.importorskip("sa1bpack.adapters.huggingface")

pytestmark = pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")
COUNTS = [0, 1, 2, 3, 4]


@pytest.fixture(scope="module", autouse=True)
def no_bars():
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("huggingface")
    tar = write_tar(folder / "sa_1.tar", members(range(1, 13), lambda number: number % 5))
    pack_small(tar, folder / "pack")
    return folder / "pack"


def assert_is_sample(row, sample):
    assert row.keys() == sample.keys()
    for key in row:
        np.testing.assert_array_equal(row[key], sample[key])


OPENED = {
    "whole": lambda root: sa1bpack.open(root),
    "with options": lambda root: sa1bpack.open(root, mask_format="runs", coordinates="source"),
    "with thresholds": lambda root: sa1bpack.open(root, min_iou=0.95),
    "selected": lambda root: sa1bpack.open(root)[[7, 2, 5]].where_masks("area > 800"),
    "empty": lambda root: sa1bpack.open(root)[:0],
}


@pytest.mark.parametrize("opened", OPENED)
def test_rows_are_samples_and_columns_those_of_the_pack(root, opened):
    ds = OPENED[opened](root)
    rows = huggingface.dataset(ds)
    assert len(rows) == len(ds)
    for index in range(len(ds)):
        assert_is_sample(rows[index], ds[index])
    table = rows.with_format("numpy")[:]
    names = ("image_id", "height", "width", "mask_count")
    for name in names:
        np.testing.assert_array_equal(table[name], ds.column(name))
    texts = [name.decode() for name in ds.column("file_name").tolist()]
    assert list(rows["file_name"]) == texts
    for number in ds.pack.layout.mask_numbers:
        values = ds.mask_column(number.array)
        for index, (first, stop) in enumerate(pairwise(ds.mask_offsets)):
            listed = rows.with_format(None)[index][number.array]
            np.testing.assert_array_equal(np.array(listed).reshape(values[first:stop].shape),
                                          values[first:stop])  # fmt: skip


def test_selections_of_that_library_keep_rows_and_pixels_together(root):
    ds = sa1bpack.open(root)
    rows = huggingface.dataset(ds, numbers=["area"])
    counts = ds.column("mask_count")
    filtered = rows.filter(lambda count: count > 2, input_columns="mask_count")
    large = rows.filter(lambda areas: max(areas, default=0) > 1500, input_columns="area")
    ordered = rows.sort("mask_count", reverse=True)
    assert len(filtered) == (counts > 2).sum() < len(ds)
    assert len(large) == (ds.column("area", "max") > 1500).sum()
    split = rows.train_test_split(test_size=0.5, seed=3)
    for part in (filtered, large, ordered, rows.shuffle(seed=1), rows.select([3, 1, 1]),
                 split["test"], datasets.concatenate_datasets([filtered, large])):  # fmt: skip
        assert len(part)
        for row in part:
            assert_is_sample(row, ds.by_id(row["image_id"]))
    found = [len(row["areas"]) for row in ordered]
    assert found == sorted(counts.tolist(), reverse=True)


def test_added_columns_come_with_the_rows(root):
    ds = sa1bpack.open(root)
    rows = huggingface.dataset(ds, numbers=())
    rows = rows.add_column("caption", [f"image {k}" for k in range(len(ds))])
    rows = rows.map(lambda row: {"mean": float(row["image"].mean())})
    row = rows.shuffle(seed=2)[4]
    sample = ds.by_id(row["image_id"])
    assert row["mean"] == pytest.approx(sample["image"].mean())
    assert row["caption"] == f"image {ds.index_of(row['image_id'])}"
    plain = rows.with_format(None)
    assert "image" not in plain[0]
    again = plain.with_transform(huggingface.SampleRows(ds))
    np.testing.assert_array_equal(again[0]["image"], ds[0]["image"])


def test_an_added_column_with_a_key_of_samples_is_an_error(root):
    """Its values were followed by those of the samples, so that a batch had twice as many."""
    rows = huggingface.dataset(sa1bpack.open(root))
    added = rows.add_column("areas", [[1]] * len(rows))
    mapped = rows.map(lambda row: {"areas": [2 * area for area in row["areas"]]})
    for clashing in (added, mapped):
        for index in (0, slice(0, 3)):
            with pytest.raises(OptionError, match=r"'areas' was added .* \(rename_column\)"):
                clashing[index]
    renamed = added.rename_column("areas", "ones")
    assert renamed[:3]["ones"] == [[1]] * 3 and len(renamed[:3]["areas"]) == 3


def test_flattened_indices_are_of_the_table_and_what_would_copy_samples_says_so(root):
    ds = sa1bpack.open(root)
    chosen = huggingface.dataset(ds).select([3, 1, 1])
    with pytest.raises(OptionError, match=r"with_format\(None\)\.flatten_indices\(\)"):
        chosen.flatten_indices()[0]
    table = chosen.with_format(None).flatten_indices()
    flattened = table.with_transform(huggingface.SampleRows(ds))
    assert flattened.column_names == chosen.column_names
    for row, index in zip(flattened, (3, 1, 1), strict=True):
        assert_is_sample(row, ds[index])


def test_rows_are_not_given_the_samples_of_another_dataset(root):
    """As after a selection of other rows, and of rows of two datasets that were joined."""
    ds = sa1bpack.open(root)
    tail = huggingface.dataset(ds[4:])
    joined = datasets.concatenate_datasets([huggingface.dataset(ds[:4]), tail])
    for rows, other, index in ((tail, ds, 0), (tail, ds[:3], 7), (joined, ds, 4)):
        wrong = rows.with_transform(huggingface.SampleRows(other))
        with pytest.raises(OptionError, match=r"not that image.*belong to the dataset"):
            wrong[index]
    without_ids = tail.remove_columns("image_id")
    assert_is_sample(without_ids[2], ds[6])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_makes_the_batches_of_the_pack(root, workers):
    ds = sa1bpack.open(root)
    collate = sa1bpack.Collate(max_masks=2, sample_spec=ds.spec)
    rows = pickle.loads(pickle.dumps(huggingface.dataset(ds)))
    options = {"batch_size": 5, "collate_fn": collate, "num_workers": workers}
    batches = torch.utils.data.DataLoader(rows, **options)
    for batch, expected in zip(batches, torch.utils.data.DataLoader(ds, **options), strict=True):
        assert batch.keys() == expected.keys()
        for key in batch:
            torch.testing.assert_close(torch.as_tensor(batch[key]), torch.as_tensor(expected[key]))


def test_what_cannot_be_a_row_is_an_error(root):
    ds = sa1bpack.open(root)
    with pytest.raises(UnknownName, match="depth"):
        huggingface.dataset(ds, numbers=["depth"])
    rows = huggingface.dataset(ds.with_options(transform=lambda sample: sample["image"]))
    with pytest.raises(OptionError, match="`transform` of the dataset: return a dict"):
        rows[0]
    shard = ds.shards[0].folder
    chunk = shard / "image" / "c.0.0.0.0"
    whole = chunk.read_bytes()
    chunk.write_bytes(bytes(len(whole)))
    try:
        damaged = sa1bpack.open(root, on_error="return", verify_checksums=True)
        with pytest.raises(ReadError):
            huggingface.dataset(damaged)[:2]
    finally:
        chunk.write_bytes(whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_masks_of_rows_are_drawn_once_the_epoch_is_set(root, workers):
    """A DataLoader takes them as a plain list, which does not say of which epoch it is."""
    rows = huggingface.dataset(sa1bpack.open(root).where("mask_count >= 3"), numbers=())
    collate = sa1bpack.Collate(max_masks=1, mask_select="random")
    loader = torch.utils.data.DataLoader(rows, 2, collate_fn=collate, num_workers=workers)
    with pytest.raises(OptionError, match=r"every epoch would draw the same masks.*set_epoch"):
        next(iter(loader))
    drawn = set()
    for epoch in range(5):
        collate.set_epoch(epoch)
        drawn.add(str([batch["annotation_ids"].tolist() for batch in loader]))
    assert len(drawn) > 2
