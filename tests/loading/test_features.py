"""Features in batches: transforms, memory, masks from runs beside them, and damage."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from packs_with_features import SPECS, expected_rows, with_features, write_side  # noqa: F401 - a fixture
from page_cache import drop

import sa1bpack
from sa1bpack.errors import ReadError

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


@pytest.fixture(scope="module")
def real_masks(layout_packs, tmp_path_factory) -> Path:
    """A pack whose runs can be drawn, with features."""
    root = tmp_path_factory.mktemp("real-masks") / "pack"
    shutil.copytree(layout_packs(), root)
    for spec in SPECS.values():
        write_side(root, spec)
    return root


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


@pytest.mark.parametrize("how", [{"mask_format": "runs"}, {"mask_size": 24}], ids=str)
@pytest.mark.parametrize("io", ["direct", "cached"])
@pytest.mark.parametrize("names", [NAMES, ["features"]], ids=str)
def test_masks_from_runs_are_read_together_with_features(real_masks, direct_folder, how, io, names):
    """Both are read to scratch memory, where neither may be in the way of the other."""
    root = direct_folder / "runs-and-sides"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(real_masks, root)
    drop(*root.glob("side/*/*/values/c*"), *root.glob("shards/*/*/c*"))
    ds = sa1bpack.open(root, features=names, **how)
    with sa1bpack.Loader(ds, 6, io=io, threads=1) as loader:
        [found] = loader
    [expected] = sa1bpack.make_dataloader(ds, 6, num_workers=0)
    for name in (*names, "bboxes", "image_ids"):
        assert torch.equal(found[name], expected[name]), name
    if how == {"mask_format": "runs"}:
        assert torch.equal(found["runs"].run_ends, expected["runs"].run_ends)
        assert torch.equal(found["runs"].run_offset, expected["runs"].run_offset)
    else:
        assert torch.equal(found["masks"], expected["masks"])


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


def test_damage_found_by_checked_reading_names_the_sample(on_disk):
    ds = sa1bpack.open(on_disk, features=["features"], verify_checksums=True)
    [path] = (on_disk / "side" / "features").glob("sa_000002-000-*/values/c*")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with (
        sa1bpack.Loader(ds, 3) as loader,
        pytest.raises(ReadError, match=r"features.*checksum of sample 0"),
    ):
        list(loader)
