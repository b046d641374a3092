"""attach: rows find their images and masks by id, in any order."""

import numpy as np
import pytest
import torch
from format_files import manifest_of
from packs_with_features import stored
from torch.utils.data import Subset, random_split

import sa1bpack
from sa1bpack import OptionError, attach, verify
from sa1bpack.errors import OutputRefused


@pytest.fixture
def given(ds):
    """Rows for all images and some others, in random order: (ids, rows)."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.concatenate([ds.column("image_id"), np.arange(70, 80)]))
    return ids, np.stack([ids, -ids], 1).astype(np.float32)


def test_rows_are_matched_by_image_id_of_a_dataset_or_a_subset_of_complete_shards(
    ds, pack, given, monkeypatch
):
    monkeypatch.setattr("sa1bpack.deriving.run.PIECE_BYTES", 16)  # two rows at a time
    ids, rows = given
    every, _ = random_split(ds, [len(ds), 0], torch.Generator().manual_seed(0))
    result = sa1bpack.attach(every, "a", rows, ids)
    expected = ds.column("image_id")[:, None] * np.array([1, -1], np.float32)
    np.testing.assert_array_equal(stored(result.folder, pack), expected)
    assert result.missing == () and verify(pack).ok
    assert attach(ds, "a", rows, ids).existing == result.made
    with pytest.raises(OptionError, match="is for a complete shard"):
        attach(Subset(ds, [0]), "b", rows, ids)
    with pytest.raises(OptionError, match=r"sa1bpack\.open"):
        attach(Subset([1, 2], [0]), "b", rows, ids)


def test_rows_are_matched_by_annotation_id(ds, pack):
    ids = ds.mask_column("annotation_id")
    order = np.random.default_rng(1).permutation(len(ids))
    rows = torch.from_numpy(ids[order] % 1000)[:, None].to(torch.bfloat16)
    result = attach(ds, "a", rows, torch.from_numpy(ids[order]), axis="mask")
    found = torch.from_numpy(stored(result.folder, pack).copy()).view(torch.bfloat16)
    assert torch.equal(found, torch.from_numpy(ids % 1000)[:, None].to(torch.bfloat16))


def test_a_memory_map_and_bits_of_bfloat16_are_taken(ds, pack, given, tmp_path):
    ids, rows = given
    bits = torch.from_numpy(rows).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.save(tmp_path / "a.npy", bits)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="c")
    tensor = torch.from_numpy(mapped.view(np.int16)).view(torch.bfloat16)
    result = attach(ds, "a", tensor, ids)
    assert manifest_of(result.folder)["dtype"] == "bfloat16"
    lookup = dict(zip(ids.tolist(), bits, strict=True))
    expected = np.stack([lookup[image] for image in ds.column("image_id").tolist()])
    np.testing.assert_array_equal(stored(result.folder, pack), expected)


def test_a_repeated_call_keeps_the_same_rows_and_refuses_others(ds, given):
    ids, rows = given
    made = attach(ds, "a", rows, ids).made
    assert attach(ds, "a", rows, ids).existing == made
    with pytest.raises(OutputRefused, match="other rows for sample 0"):
        attach(ds, "a", rows + 1, ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids, rows: (ids[1:], rows), "one integer for each"),
        (lambda ids, rows: (ids.astype(float), rows), "one integer for each"),
        (lambda ids, rows: (np.full_like(ids, 7), rows), "ids has 7 more than once"),
        (lambda ids, rows: (ids + 10**6, rows), "ids lacks 4 images of shard sa_000000-000"),
        (lambda ids, rows: (ids, rows.astype(complex)), "rows are complex128"),
        (lambda ids, rows: (ids, rows.tolist()), "array is a list"),
        (lambda ids, rows: (ids[:0], rows[:0]), "ids lacks 4 images"),
        (lambda ids, rows: (np.where(ids == ids[ids > 79].min(), 1, ids), rows),  # the last image
         "ids lacks 1 image of shard sa_000002-000"),
    ],
)  # fmt: skip
def test_what_cannot_be_matched_is_refused(ds, pack, given, change, message):
    ids, rows = change(*given)
    with pytest.raises(OptionError, match=message):
        attach(ds, "a", rows, ids)
    assert not (pack / "side").exists()
