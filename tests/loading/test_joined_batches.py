"""Small batches that are read and handed over together: they are what they would be alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from batches import flattened
from packs_with_features import with_features  # noqa: F401 - a fixture
from page_cache import drop
from reading_packs import write_pack

import sa1bpack
from sa1bpack import Buckets, Loader, ReadError, make_dataloader

FIELDS = ["teacher", "odd", "scaled"]  # rows of one size per image
OPTIONS = [
    {},
    {"shuffle": True, "seed": 5},
    {"shuffle": True, "seed": 1, "drop_last": True},
    {"pad_last": True, "world_size": 2, "rank": 1},
    {"shuffle": True, "seed": 2, "world_size": 3, "rank": 2, "pad_last": True},
]


@pytest.fixture
def ds(with_features):  # noqa: F811
    return sa1bpack.open(with_features.root, features=FIELDS)


def assert_same(batch: dict, expected: dict) -> None:
    """Assert that two batches have the same keys and values."""
    batch = flattened(batch)
    expected = flattened(expected)
    assert batch.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(batch[key], value), key
        else:
            assert batch[key] == value, key


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("fields", [FIELDS, ["images"], ["image_ids"]], ids="+".join)
def test_joined_batches_are_those_of_a_dataloader(ds, fields, options):
    for batch_size in (1, 2, 5):
        with Loader(ds, batch_size, fields=fields, threads=2, **options) as loader:
            assert loader.plan().together > 1
            expected = make_dataloader(ds, batch_size, fields=fields, **options)
            for epoch in range(2):
                loader.set_epoch(epoch)
                expected.set_epoch(epoch)
                for batch, other in zip(loader, expected, strict=True):
                    assert_same(batch, other)


def test_batches_with_masks_are_not_joined(ds):
    assert Loader(ds, 1).plan().together == 1
    assert Loader(ds, 1, fields=["teacher", "areas"]).plan().together == 1


def test_the_plan_says_how_many_share_their_memory(ds):
    plan = Loader(ds, 2, fields=FIELDS, prefetch=1).plan()
    assert plan.batches == 3 * plan.together
    assert plan.host_bytes >= plan.batches * plan.batch_bytes
    assert f"up to {plan.together} batches share their memory" in str(plan)


def test_a_run_resumes_after_any_of_the_batches_that_came_together(ds):
    options = {"fields": FIELDS, "shuffle": True, "seed": 4}
    complete = list(Loader(ds, 1, **options))
    for done in range(1, len(complete)):
        first = Loader(ds, 1, **options)
        for _, _ in zip(range(done), first, strict=False):
            pass
        state = first.state_dict()
        first.close()
        assert state["samples"] == done
        rest = Loader(ds, 1, **options)
        rest.load_state_dict(state)
        for batch, expected in zip(rest, complete[done:], strict=True):
            assert_same(batch, expected)


def test_a_batch_size_that_changes_and_exact_classes_are_joined_too(ds):
    options = {"fields": ["images", "teacher"], "shuffle": True, "seed": 3}
    for more in (
        {"batch_size": [1, 3]},
        {"batch_size": 2, "bucket_by": Buckets(ds, aspects=[0.7, 1.0, 1.4], exact=True)},
    ):
        loader = Loader(ds, **options, **more)
        expected = make_dataloader(ds, **options, **more)
        for epoch in range(2):
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            for batch, other in zip(loader, expected, strict=True):
                assert_same(batch, other)


def test_on_a_device_each_has_tensors_of_its_own(ds, cuda):
    batches = list(Loader(ds, 1, fields=FIELDS, device="cuda:0"))
    cuda.synchronize()
    for batch, expected in zip(batches, make_dataloader(ds, 1, fields=FIELDS), strict=True):
        assert_same(batch, expected)
    weight = torch.ones((), requires_grad=True)
    loss = (batches[0]["scaled"].float() * weight).sum() + (batches[0]["teacher"] * weight).sum()
    for batch in batches[1:]:
        batch["teacher"].zero_()  # autograd takes it for a change of views of the same memory
    loss.backward()


@pytest.fixture
def cut(with_features, tmp_path):  # noqa: F811
    """A dataset that was opened before a file of its was cut, and the ids of what it lacks."""
    root = Path(shutil.copytree(with_features.root, tmp_path / "pack"))
    ds = sa1bpack.open(root, features=["teacher"])
    for shard in range(len(ds.shards)):
        ds.shards[shard]  # lengths were checked, and are no longer right
    [path] = (root / "side" / "teacher").glob("sa_000001-000-*/values/c*")
    drop(path)
    os.truncate(path, 0)
    ids = ds.column("image_id").tolist()
    lost = [
        image_id
        for row, image_id in enumerate(ids)
        if ds.shards.folder(ds.locate(row)[0]).name == "sa_000001-000"
    ]
    assert 0 < len(lost) < len(ds)
    return ds, lost


@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_batches_before_an_error_come_and_it_is_the_error_of_its_batch(cut, batch_size):
    ds, lost = cut
    expected = []
    for ids in make_dataloader(ds, batch_size, fields=["image_ids"]):
        if set(ids["image_ids"].tolist()) & set(lost):
            break
        expected.append(ids["image_ids"].tolist())
    assert expected
    loader = Loader(ds, batch_size, fields=["teacher"], threads=1)
    found = []
    with pytest.raises(ReadError) as error:
        for batch in loader:
            found.append(batch["image_ids"].tolist())
    assert found == expected
    assert error.value.image_id in lost
    assert loader.state_dict()["samples"] == batch_size * len(expected)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_samples_that_cannot_be_read_are_dropped_from_their_own_batch(cut, batch_size):
    ds, lost = cut
    expected = []
    for batch in make_dataloader(ds, batch_size, fields=["image_ids"]):
        ids = batch["image_ids"].tolist()
        kept = [image_id for image_id in ids if image_id not in lost]
        if kept:
            expected.append((int(batch["batch_idx"]), kept, len(ids) - len(kept)))
    options = {"on_error": "drop", "max_dropped": 1.0}
    loader = Loader(ds, batch_size, fields=["teacher"], threads=1, **options)
    found = []
    for batch in loader:
        dropped = len(batch["dropped"])
        found.append((batch["batch_idx"], batch["image_ids"].tolist(), dropped))
    assert found == expected
    assert sorted(error.image_id for error in loader.dropped) == sorted(lost)


def test_leaving_early_and_keeping_one_batch_frees_the_memory_of_the_others(ds):
    loader = Loader(ds, 1, fields=FIELDS)
    kept = next(iter(loader))
    expected = {key: value.clone() for key, value in kept.items() if torch.is_tensor(value)}
    for _ in range(3):
        for _ in loader:
            pass
    for key, value in expected.items():
        assert torch.equal(kept[key], value), key


CUT_SHORT = """
import os, sys
import numpy as np
import sa1bpack

root = sys.argv[1]
ds = sa1bpack.open(root, features=["short"])
loader = sa1bpack.Loader(ds, len(ds), fields=["short"], threads=1, on_error="drop",
                         max_dropped=1.0)
assert sum(len(batch["image_ids"]) for batch in loader) == len(ds)
path = ds.shards.open(0).features[0].path
os.truncate(path, os.path.getsize(path) // 2)
left = sum(len(batch["image_ids"]) for batch in loader)
print(left, len(loader.dropped))
"""


def test_a_file_of_short_rows_that_is_cut_short_is_an_error_of_its_samples(tmp_path):
    """Most short rows are not asked for, but judged by others: none lies beyond the file's end."""
    rows = 200
    write_pack(tmp_path / "pack", {"sa_000000-000": [0] * rows})
    ds = sa1bpack.open(tmp_path / "pack")
    values = torch.arange(rows * 512).reshape(rows, 512).numpy()
    sa1bpack.attach(ds, "short", values, ds.column("image_id"), progress=False)
    command = [sys.executable, "-c", CUT_SHORT, str(tmp_path / "pack")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    left, dropped = map(int, done.stdout.split())
    assert left + dropped == rows
    assert 0 < left < rows
