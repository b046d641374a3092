"""Features in batches: transforms, memory, masks from runs beside them, and damage."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from packs_with_features import SPECS, with_features  # noqa: F401 - a fixture
from page_cache import drop

import sa1bpack
from sa1bpack import ReadError

NAMES = list(SPECS)
TYPES = {"quality": torch.bfloat16, "teacher": torch.float16, "odd": torch.int8,
         "score": torch.float64, "features": torch.float32, "level": torch.uint8,
         "scaled": torch.float16, "scaled_mask": torch.float16,
         "float8": torch.float16, "float8_mask": torch.float16}  # fmt: skip


def as_stored(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


@pytest.fixture
def ds(with_features):  # noqa: F811
    return sa1bpack.open(with_features.root, features=NAMES)


def test_collate_makes_tensors_with_the_spec_of_the_dataset(ds):
    samples = [ds[0], ds[2]]
    batch = sa1bpack.Collate(sample_spec=ds.spec)(samples)
    assert {name: batch[name].dtype for name in NAMES} == TYPES
    for k, sample in enumerate(samples):
        for name in NAMES:
            found, rows = as_stored(batch[name][k]), sample[name]
            if SPECS[name].axis == "mask":
                assert not found[len(rows) :].any()
                found = found[: len(rows)]
            np.testing.assert_array_equal(found, rows, name)
    assert isinstance(sa1bpack.Collate()(samples)["teacher"], list)


@pytest.fixture
def on_disk(with_features, direct_folder) -> Path:  # noqa: F811
    target = direct_folder / "with-features"
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(with_features.root, target))


@pytest.mark.parametrize("io", ["direct", "cached"])
@pytest.mark.parametrize("name", ["teacher", "features"])
def test_a_file_that_is_cut_short_while_it_is_open_is_a_read_error(on_disk, io, name):
    ds = sa1bpack.open(on_disk, features=[name])
    for shard in range(len(ds.shards)):
        ds.shards[shard]  # lengths were checked, and are no longer right
    [path] = (on_disk / "side" / name).glob("sa_000001-000-*/values/c*")
    drop(path)
    os.truncate(path, 4096)
    errors = 0
    with sa1bpack.Loader(ds, 3, io=io, on_error="drop", max_dropped=1.0) as loader:
        for batch in loader:
            assert len(batch["image_ids"]) > 0
        errors = list(loader.dropped)
    assert errors and all(isinstance(error, ReadError) for error in errors)
    assert {error.shard for error in errors} == {"sa_000001-000"}
    assert all("ends before this sample" in str(error) for error in errors)
