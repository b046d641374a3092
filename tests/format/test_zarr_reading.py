"""Other programs read from a pack what was written, and what the memory maps show."""

import re

import numpy as np
import pytest
import zarr
from format_files import DOCS, index_of, manifest_of, publish, write_shard
from narrow_packs import NARROW, sample_of
from shard_files import arrays_of

from sa1bpack import open as open_pack

SHARD = "sa_000000-000"


@pytest.fixture(scope="module")
def shard(pristine_pack):
    return arrays_of(pristine_pack / "shards" / SHARD)


def test_pack_opens_as_one_zarr_group_from_the_top(pristine_pack):
    """Without a warning, which is an error here: zarr warns of files beside nodes that it lists."""
    root = zarr.open_group(pristine_pack, mode="r")
    assert root.attrs["sa1bpack"] == {"format": [1, 0]}
    shards = ["sa_000000-000", "sa_000000-001", "sa_000001-000"]
    assert sorted(root["shards"].group_keys()) == shards
    np.testing.assert_array_equal(root[f"shards/{SHARD}/image_id"][:], [99, 98, 97, 96])
    group = zarr.open_group(pristine_pack / "shards", mode="r")
    assert sorted(name for name, _ in group.groups()) == shards
    for name in shards:
        assert "image_id" in dict(group[name].arrays())


def test_zarr_reads_arrays_of_many_inner_chunks(tmp_path):
    masks = 40_000
    samples = [sample_of(number, count) for number, count in ((1, masks), (2, 1))]
    write_shard(tmp_path / "shards", "a-000", samples, NARROW)
    publish(tmp_path, ["a-000"], layout=NARROW)
    group = zarr.open_group(tmp_path / "shards/a-000", mode="r")
    assert group["bbox"].chunks[0] == 8192 and group["bbox"].shards[0] == 40_960
    found = open_pack(tmp_path, mask_format="runs", coordinates="source")[0]
    for name, key in (("bbox", "bboxes"), ("run_ends", "run_ends"), ("area", "areas")):
        expected = samples[0][name]
        np.testing.assert_array_equal(group[name][: len(expected)], expected)
        np.testing.assert_array_equal(found[key], expected)


def test_empty_shard_reads_as_arrays_without_rows(pristine_pack):
    folder = pristine_pack / "shards/sa_000000-001"
    group = zarr.open_group(folder, mode="r")
    assert group["image"][:].shape == (0, 16, 16, 3)
    assert list(group["mask_offset"][:]) == [0]
    assert not (folder / "image/c.0.0.0.0").exists()


def test_zarr_reads_the_index(pristine_pack):
    group = zarr.open_group(pristine_pack / manifest_of(pristine_pack)["index"], mode="r")
    for name, rows in index_of(pristine_pack).items():
        np.testing.assert_array_equal(group[name][:], rows)
    np.testing.assert_array_equal(group["image_id"][:], open_pack(pristine_pack).column("image_id"))


def test_python_of_the_docs_runs(pristine_pack, shard, monkeypatch):
    monkeypatch.chdir(pristine_pack.parent)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    blocks = [block for block in blocks if "zarr" in block]
    assert len(blocks) == 4
    exec(blocks[0], names)
    np.testing.assert_array_equal(names["image"], shard["image"])
    np.testing.assert_array_equal(names["sample"], shard["image"][1])
    exec(blocks[1], names)
    np.testing.assert_array_equal(names["pixels"], shard["image"][1])
    assert names["boxes"].shape == (0, 4) and names["dataset"].sizes["sample"] == 4
    exec(blocks[2], names)
    rows = names["rows"][: len(names["values"])]
    np.testing.assert_allclose(names["values"], rows, atol=np.abs(rows).max() / 200)
    exec(blocks[3], names)
    assert names["text"] == "a harbour at night" and names["shard"]["present"][:].sum() == 1
