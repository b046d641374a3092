"""Side arrays in batches: Loader, make_dataloader and Collate agree, however they are read."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from packs_with_sides import SPECS, expected_rows, with_sides  # noqa: F401 - a fixture
from page_cache import drop
from side_arrays import write_side
from unflushed import unflushed

import sa1bpack
from sa1bpack.errors import ReadError

NAMES = list(SPECS)
TYPES = {"quality": torch.bfloat16, "teacher": torch.float16, "odd": torch.int8,
         "score": torch.float64, "features": torch.float32, "level": torch.uint8}  # fmt: skip
LAYOUTS = ("padded", "flat", "padded_bits", "flat_bits")


def as_stored(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def check_batch(batch, padded: bool) -> None:
    """Compare with the rows of the samples; kept masks are found by their annotation ids."""
    sources = check_batch.samples
    offsets = None if padded else batch["mask_offsets"].tolist()
    for k, image_id in enumerate(batch["image_ids"].tolist()):
        source = sources[image_id]
        count = int(batch["mask_counts"][k])
        span = (k, slice(0, count)) if padded else slice(offsets[k], offsets[k + 1])
        kept = [source.index(found) for found in batch["annotation_ids"][span].tolist()]
        assert len(kept) == count
        for name in NAMES:
            assert batch[name].dtype == TYPES[name]
            rows = expected_rows(name, image_id, len(source))
            if SPECS[name].axis == "sample":
                np.testing.assert_array_equal(as_stored(batch[name][k]), rows)
                continue
            np.testing.assert_array_equal(as_stored(batch[name][span]), rows[kept])
            if padded:
                assert not batch[name][k, count:].any()
                assert batch[name].shape[1] == batch["areas"].shape[1]


@pytest.fixture(autouse=True)
def sources(with_sides):  # noqa: F811
    check_batch.samples = {
        int(sample["image_id"][0]): sample["annotation_id"].tolist()
        for sample in with_sides.samples
    }


@pytest.fixture
def ds(with_sides):  # noqa: F811
    return sa1bpack.open(with_sides.root, side=NAMES)


@pytest.mark.parametrize("masks", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"max_masks": 3}, {"max_masks": 4, "choose": "random"}])
def test_a_batch_has_the_rows_of_its_samples_and_kept_masks(ds, masks, options):
    seen = 0
    with sa1bpack.Loader(ds, 5, masks=masks, seed=3, **options) as loader:
        for batch in loader:
            check_batch(batch, masks.startswith("padded"))
            seen += len(batch["image_ids"])
    assert seen == len(ds)


@pytest.fixture(scope="module")
def real_masks(layout_packs, tmp_path_factory) -> Path:
    """A pack whose runs can be drawn, with side arrays."""
    root = tmp_path_factory.mktemp("real-masks") / "pack"
    shutil.copytree(layout_packs(), root)
    with unflushed():
        for spec in SPECS.values():
            write_side(root, spec)
    return root


@pytest.mark.parametrize(
    "how",
    [
        {"masks": "runs"},
        {"mask_size": 8},
        {"check": "read"},
        {"check": "read", "mask_size": 8},
        {"min_area": 500},
        {"min_area": 500, "check": "read"},
    ],
    ids=str,
)
@pytest.mark.parametrize("masks", ["padded", "flat"])
def test_other_masks_and_checked_reading_change_nothing(real_masks, how, masks):
    ds, everything = sa1bpack.open(real_masks, side=NAMES, **how), sa1bpack.open(real_masks)
    offsets, ids = everything.mask_offsets, everything.mask_column("annotation_id")
    if "min_area" in how:
        assert 0 < ds.mask_offsets[-1] < offsets[-1]
    check_batch.samples = {
        image: ids[offsets[k] : offsets[k + 1]].tolist()
        for k, image in enumerate(ds.column("image_id").tolist())
    }
    for sample in ds:
        stored = check_batch.samples[sample["image_id"]]
        kept = [stored.index(found) for found in sample["annotation_ids"].tolist()]
        rows = expected_rows("quality", sample["image_id"], len(stored))[kept]
        np.testing.assert_array_equal(sample["quality"], rows)
    with sa1bpack.Loader(ds, 4, masks=masks, max_masks=3) as loader:
        for batch in loader:
            check_batch(batch, masks == "padded")


@pytest.mark.parametrize("masks", LAYOUTS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_yields_the_same_batches(ds, masks, workers):
    options = {"masks": masks, "max_masks": 3, "pad_to_max": masks.startswith("padded"), "seed": 5}
    made = sa1bpack.make_dataloader(ds, 5, workers=workers, **options)
    with sa1bpack.Loader(ds, 5, **options) as loader:
        for one, other in zip(loader, made, strict=True):
            for name in NAMES:
                assert torch.equal(one[name], other[name]), name


def test_a_transform_keeps_side_arrays_and_may_change_them(with_sides):  # noqa: F811
    def halved(sample):
        return sample | {"teacher": sample["teacher"][:2], "score": sample["score"] * 2}

    ds = sa1bpack.open(with_sides.root, side=NAMES, transform=halved)
    batch = next(iter(sa1bpack.make_dataloader(ds, 3, workers=0, order="sequential")))
    assert batch["teacher"].shape == (3, 2, 32, 32)
    for k in range(3):
        found = expected_rows("score", int(batch["image_ids"][k]), 0)
        assert batch["score"][k] == 2 * found


def test_collate_makes_tensors_with_the_spec_of_the_dataset(ds):
    batch = sa1bpack.Collate(sample_spec=ds.spec)([ds[0], ds[2]])
    check_batch(batch, padded=True)
    assert isinstance(sa1bpack.Collate()([ds[0], ds[2]])["teacher"], list)


@pytest.fixture
def on_disk(with_sides, direct_folder) -> Path:  # noqa: F811
    target = direct_folder / "with-sides"
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(with_sides.root, target))


@pytest.mark.parametrize("masks", ["padded", "flat_bits"])
@pytest.mark.parametrize("cold", ["all", "sides", "features", "none"])
@pytest.mark.parametrize("io", ["direct", "cached"])
def test_rows_are_the_same_wherever_they_are_read_from(on_disk, io, cold, masks):
    sides, features = "side/*/*/values/c*", "side/features/*/values/c*"
    patterns = {
        "all": (sides, "shards/*/image/c*", "shards/*/mask_bits/c*"), "sides": (sides,),
        "features": (features,), "none": (),
    }  # fmt: skip
    ds = sa1bpack.open(on_disk, side=NAMES)
    for shard in range(len(ds.shards)):
        ds.shards[shard]
    drop(*(path for pattern in patterns[cold] for path in on_disk.glob(pattern)))
    with sa1bpack.Loader(ds, 6, io=io, masks=masks, max_masks=4, threads=2) as loader:
        for batch in loader:
            check_batch(batch, masks == "padded")
        assert loader.plan().files > 2 * len(ds.shards)


@pytest.mark.parametrize("how", [{"masks": "runs"}, {"mask_size": 24}], ids=str)
@pytest.mark.parametrize("io", ["direct", "cached"])
@pytest.mark.parametrize("names", [NAMES, ["teacher"], ["odd"], ["features"], ["level"]], ids=str)
def test_masks_from_runs_are_read_together_with_side_arrays(
    real_masks, direct_folder, how, io, names
):
    """Both are read to scratch memory, where neither may be in the way of the other."""
    root = direct_folder / "runs-and-sides"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(real_masks, root)
    drop(*root.glob("side/*/*/values/c*"), *root.glob("shards/*/*/c*"))
    ds = sa1bpack.open(root, side=names, **how)
    with sa1bpack.Loader(ds, 6, io=io, threads=1, order="sequential") as loader:
        [found] = loader
    [expected] = sa1bpack.make_dataloader(ds, 6, workers=0, order="sequential")
    for name in (*names, "bboxes", "image_ids"):
        assert torch.equal(found[name], expected[name]), name
    if how == {"masks": "runs"}:
        assert torch.equal(found["runs"].run_ends, expected["runs"].run_ends)
        assert torch.equal(found["runs"].run_offset, expected["runs"].run_offset)
    else:
        assert torch.equal(found["masks"], expected["masks"])


@pytest.mark.parametrize("io", ["direct", "cached"])
@pytest.mark.parametrize("name", ["teacher", "features"])
def test_a_file_that_is_cut_short_while_it_is_open_is_a_read_error(on_disk, io, name):
    ds = sa1bpack.open(on_disk, side=[name])
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
    ds = sa1bpack.open(on_disk, side=["features"], check="read")
    [path] = (on_disk / "side" / "features").glob("sa_000002-000-*/values/c*")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with (
        sa1bpack.Loader(ds, 3) as loader,
        pytest.raises(ReadError, match=r"features.*checksum of sample 0"),
    ):
        list(loader)


def test_large_rows_are_lent_and_small_ones_are_copies(ds):
    with sa1bpack.Loader(ds, 4) as loader:
        batch, nbytes = next(iter(loader)), loader.plan().batch_bytes
        start = batch["images"].data_ptr()  # images come first in the buffer
        for name in NAMES:
            shared = start <= batch[name].data_ptr() < start + nbytes
            assert shared == (SPECS[name].row_bytes >= 4096), name


def test_the_plan_counts_side_arrays(ds, with_sides):  # noqa: F811
    bare = sa1bpack.Loader(sa1bpack.open(with_sides.root), 4).plan()
    plan = sa1bpack.Loader(ds, 4).plan()
    rows = 4 * 8192 + 4 * bare.most_masks * 8192
    assert rows <= plan.batch_bytes - bare.batch_bytes < rows + 16384
