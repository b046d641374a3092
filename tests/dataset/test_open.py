"""What `open` says of packs that are not complete, and of what is not a folder of a pack."""

import logging
import re
from fcntl import LOCK_EX, flock

import numpy as np
import pytest
import torch
from batches import rows_of
from edited_packs import edit
from layout_packs import GRID
from reading_packs import write_pack
from torch.utils.data import Subset, TensorDataset, random_split

from sa1bpack import FormatError, Loader, OptionError, make_dataloader
from sa1bpack import open as open_pack
from sa1bpack.errors import NotAPack


@pytest.fixture
def incomplete(tmp_path):
    """A pack whose run was interrupted: of the second source a shard is missing."""
    root = tmp_path / "pack"
    write_pack(root)
    sources = [{"name": "sa_000000"}, {"name": "sa_000002"}]
    edit(root / "manifest.json", lambda found: found.update(complete=False, sources=sources))
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
    nothing = {"complete": False, "shards": [], "samples": 0, "masks": 0, "index": None}
    edit(root / "manifest.json", lambda found: found.update(nothing))
    with pytest.raises(FormatError, match=(
        r"no images yet: 5 published shards not in the index yet; repeat the pack command, "
        r"which names what is missing"
    )):  # fmt: skip
        open_pack(root)


IN_PROGRESS = (
    "a process packs into it right now: what it has packed of a source can be opened when that "
    "source is packed to its end"
)


def test_a_pack_that_is_being_packed_says_so_and_not_to_repeat_the_command(incomplete, caplog):
    """Whatever it has so far: shards in the index, shards beside it, or no manifest yet."""
    with (incomplete / ".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        assert len(open_pack(incomplete)) == 12
        assert IN_PROGRESS in caplog.text
        assert "repeat" not in caplog.text
        nothing = {"complete": False, "shards": [], "samples": 0, "masks": 0, "index": None}
        edit(incomplete / "manifest.json", lambda found: found.update(nothing))
        with pytest.raises(FormatError, match=f"no images yet: .*; {IN_PROGRESS}$"):
            open_pack(incomplete)
        (incomplete / "manifest.json").unlink()
        (incomplete / "shards").rename(incomplete / "other")
        with pytest.raises(NotAPack, match=f"not a pack yet: {IN_PROGRESS}$"):
            open_pack(incomplete)
    with pytest.raises(NotAPack, match=r"it has no manifest\.json; name the folder"):
        open_pack(incomplete)


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
        for loader in (Loader(part, 3), make_dataloader(part, 3, num_workers=0)):
            found = [row for rows in rows_of(loader) for row in rows]
            assert found == [sample["row"] for sample in part]


def test_indices_of_a_subset_mean_what_they_mean_to_the_dataset(packed):
    ds = open_pack(packed.root)[:3]
    mask = [True, False, True]
    for indices in (mask, np.array(mask), torch.tensor(mask)):
        assert rows_of(Loader(Subset(ds, indices), 2)) == [[0, 2]]
    for indices in ([1], torch.tensor([1]), np.array([1], np.uint8), range(1, 2)):
        assert rows_of(Loader(Subset(ds, indices), 2)) == [[1]]
    for indices, said in (([1.9], "integer"), (["1"], "integer|string"), ([[1]], "has 2"),
                          ([True], "boolean"), ([3], "out of bounds")):  # fmt: skip
        with pytest.raises(IndexError, match=said):
            Loader(Subset(ds, indices), 2)
    with pytest.raises(OptionError, match="indices of a torch Subset are 1: choose a list"):
        Loader(Subset(ds, 1), 2)


def test_what_is_no_dataset_of_ours_is_named_with_the_remedy(packed):
    other = TensorDataset(torch.zeros(3))
    for wrong, name in ((other, "TensorDataset"), (Subset(other, [0]), "TensorDataset inside"),
                        ([1, 2], "builtins.list"), (packed.root, "is a path, ")):  # fmt: skip
        with pytest.raises(OptionError, match=rf"{name}.*sa1bpack.open"):
            Loader(wrong, 2)


def test_a_cache_where_a_file_is_is_refused_before_anything_is_asked_for(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"file is a file; choose another cache_dir"):
        open_pack("s3://bucket/pack", cache_dir=tmp_path / "file/cache")
