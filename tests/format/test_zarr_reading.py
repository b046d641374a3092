"""Other programs read from a pack what was written, and what the memory maps show."""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from narrow_packs import NARROW, sample_of

from sa1bpack.format.index import open_index
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.shard_reader import open_shard
from sa1bpack.format.shard_writer import ShardWriter, finished_rows

DOCS = Path(__file__).parents[2] / "docs" / "format.md"
SHARD = "sa_000000-000"


@pytest.fixture(scope="module")
def shard(pristine_pack):
    return open_shard(pristine_pack / "shards" / SHARD)


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized:UserWarning")  # checksum files
def test_pack_opens_as_one_zarr_group_from_the_top(pristine_pack):
    root = zarr.open_group(pristine_pack, mode="r")
    assert root.attrs["sa1bpack"] == {"format": [1, 0]}
    shards = ["sa_000000-000", "sa_000000-001", "sa_000001-000"]
    assert sorted(root["shards"].group_keys()) == shards
    np.testing.assert_array_equal(root[f"shards/{SHARD}/image_id"][:], [99, 98, 97, 96])


def test_zarr_reads_arrays_of_many_inner_chunks(tmp_path):
    masks = 40_000
    with ShardWriter(tmp_path, "a-000", NARROW) as writer:
        for number, count in ((1, masks), (2, 1)):
            writer.append(finished_rows(NARROW, sample_of(number, count)))
        writer.publish({"source": "a", "part": 0})
    shard = open_shard(tmp_path / "a-000")
    group = zarr.open_group(shard.folder, mode="r")
    assert group["bbox"].chunks[0] == 8192 and group["bbox"].shards[0] == 40_960
    for name in ("bbox", "mask_bits", "run_ends", "run_offset"):
        np.testing.assert_array_equal(group[name][:], shard[name])
    np.testing.assert_array_equal(shard["bbox"][:masks], sample_of(1, masks)["bbox"])


def test_empty_shard_reads_as_arrays_without_rows(pristine_pack):
    folder = pristine_pack / "shards" / "sa_000000-001"
    group = zarr.open_group(folder, mode="r")
    assert group["image"][:].shape == (0, 16, 16, 3)
    assert list(group["mask_offset"][:]) == [0]
    assert not (folder / "image" / "c.0.0.0.0").exists()
    assert len(open_shard(folder)) == 0


def test_zarr_reads_the_index(pristine_pack):
    manifest = read_manifest(pristine_pack)
    index = open_index(pristine_pack, manifest)
    group = zarr.open_group(pristine_pack / manifest.index, mode="r")
    for name in ("shard_offset", "image_id", "id_order", "mask_offset"):
        np.testing.assert_array_equal(group[name][:], getattr(index, name))


def test_python_of_the_docs_runs(pristine_pack, shard, monkeypatch):
    monkeypatch.chdir(pristine_pack.parent)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    blocks = [block for block in blocks if "zarr" in block]
    assert len(blocks) == 3
    exec(blocks[0], names)
    np.testing.assert_array_equal(names["image"], shard["image"])
    np.testing.assert_array_equal(names["sample"], shard["image"][1])
    exec(blocks[1], names)
    np.testing.assert_array_equal(names["pixels"], shard["image"][1])
    assert names["boxes"].shape == (0, 4) and names["dataset"].sizes["sample"] == 4
    exec(blocks[2], names)
    rows = names["rows"][: len(names["values"])]
    np.testing.assert_allclose(names["values"], rows, atol=np.abs(rows).max() / 200)
