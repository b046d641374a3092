"""What `open` says of packs that are not complete, and of what is not a folder of a pack."""

import logging
import re

import msgspec
import numpy as np
import pytest
import torch
from layout_packs import GRID
from reading_packs import write_pack
from torch.utils.data import Subset, TensorDataset, random_split

from sa1bpack import FormatError, OptionError
from sa1bpack import open as open_pack
from sa1bpack.dataset.dataset import as_dataset
from sa1bpack.format.index import publish
from sa1bpack.format.manifest import read_manifest, write_manifest


@pytest.fixture
def incomplete(tmp_path):
    """A pack whose run was interrupted: of the second source a shard is missing."""
    root = tmp_path / "pack"
    write_pack(root)
    manifest = read_manifest(root)
    publish(root, msgspec.structs.replace(
        manifest, complete=False, sources=({"name": "sa_000000"}, {"name": "sa_000002"})
    ))  # fmt: skip
    return root


def test_an_incomplete_pack_is_reported_with_its_counts_and_the_remedy(incomplete, caplog):
    assert len(open_pack(incomplete)[2:].with_options(mask_format="bool")) == 10
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.getMessage() == (
        f"{incomplete}: not complete: 12 images in 5 shards, 2 sources packed to the end, 1 in "
        "part; repeat the pack command, which names what is missing"
    )


def test_a_pack_that_was_killed_before_its_first_shard_was_listed_says_what_there_is(tmp_path):
    root = tmp_path / "pack"
    write_pack(root)
    manifest = read_manifest(root)
    write_manifest(root, msgspec.structs.replace(
        manifest, complete=False, shards=(), samples=0, masks=0, index=None
    ))  # fmt: skip
    with pytest.raises(FormatError, match=(
        r"no images yet: 5 published shards not in the index yet; repeat the pack command, "
        r"which names what is missing"
    )):  # fmt: skip
        open_pack(root)


# ------------------------------------------------------------------------------------ how it looks


def test_the_text_of_a_dataset_differs_where_batches_mean_something_else(layout_packs):
    def text(fit, **options):
        return open_pack(layout_packs(fit, "rgb", "bits+runs"), **options).spec_text

    expected = text("pad")
    assert re.fullmatch(r"pad \d+ rgb, masks \d+ area, stored coordinates", expected)
    for options in (
        {"mask_format": "bool"},
        {"mask_format": "runs", "mask_size": GRID},
        {"verify_checksums": True},
    ):
        assert text("pad", **options) == text("native", **options) == expected
    texts = {expected, text("squash")} | {text("pad", **options) for options in (
        {"mask_size": 24}, {"mask_sampling": "center"}, {"coordinates": "source"},
        {"mask_format": "runs"},
    )}  # fmt: skip
    assert len(texts) == 6


# ------------------------------------------------------------------------------ subsets of torch


def test_a_split_of_torch_becomes_a_dataset_of_the_same_samples(ds):
    one, other = random_split(ds, [8, 4], generator=torch.Generator().manual_seed(0))
    for part in (one, other, Subset(one, [3, 0, 3]), Subset(ds[::-1], range(4))):
        found = as_dataset(part)
        assert [sample["index"] for sample in found] == [sample["index"] for sample in part]
    assert as_dataset(ds) is ds
    assert len(as_dataset(Subset(ds, []))) == 0


def test_indices_of_a_subset_mean_what_they_mean_to_the_dataset(packed):
    ds = open_pack(packed.root)[:3]
    mask = [True, False, True]
    for indices in (mask, np.array(mask), torch.tensor(mask)):
        assert as_dataset(Subset(ds, indices)).rows.tolist() == [0, 2]
    for indices in ([1], torch.tensor([1]), np.array([1], np.uint8), range(1, 2)):
        assert as_dataset(Subset(ds, indices)).rows.tolist() == [1]
    for indices, said in (([1.9], "integer"), (["1"], "integer|string"), ([[1]], "has 2"),
                          ([True], "boolean"), ([3], "out of bounds")):  # fmt: skip
        with pytest.raises(IndexError, match=said):
            as_dataset(Subset(ds, indices))
    with pytest.raises(OptionError, match="indices of a torch Subset are 1: choose a list"):
        as_dataset(Subset(ds, 1))


def test_what_is_no_dataset_of_ours_is_named_with_the_remedy(packed):
    other = TensorDataset(torch.zeros(3))
    for wrong, name in ((other, "TensorDataset"), (Subset(other, [0]), "TensorDataset inside"),
                        ([1, 2], "builtins.list"), (packed.root, "is a path, ")):  # fmt: skip
        with pytest.raises(OptionError, match=rf"{name}.*sa1bpack.open"):
            as_dataset(wrong)


def test_a_cache_where_a_file_is_is_refused_before_anything_is_asked_for(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"file is a file; choose another cache_dir"):
        open_pack("s3://bucket/pack", cache_dir=tmp_path / "file" / "cache")
