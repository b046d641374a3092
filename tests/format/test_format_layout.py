"""Packs of the packer are, byte for byte, what docs/format.md makes of their samples."""

import json
import re
import shutil

import numpy as np
import pytest
import zarr
from absent_numbers import ALL, COCO, without
from edited_packs import edit
from format_files import (
    DOCS,
    SUMS,
    array_table,
    as_json,
    checksums,
    digest_of,
    documented,
    layout_of,
    manifest_of,
    publish,
    sample_views,
    write_group,
    write_shard,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_packs import LAYOUTS, layout_packs  # noqa: F401 - a fixture
from shard_files import arrays_of
from small_packs import pack_small
from small_tars import changed, contents, members, write_tar
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import sa1bpack
from sa1bpack import FormatError

# Bits of `number_types` that a number has.
BITS = {"predicted_iou": [5], "point_coords": [6, 7], "crop_box": range(8, 12),
        "stability_score": [12]}  # fmt: skip
NUMBERS = ("bbox", "area", "predicted_iou", "point_coords", "crop_box", "stability_score")


def check_documented(root, tmp_path) -> None:
    """Write all of a pack again, from its samples alone; but for the packer's own records."""
    manifest = manifest_of(root)
    assert sa1bpack.verify(root).ok
    for entry in manifest["shards"]:
        folder = root / "shards" / entry["name"]
        made = tmp_path / "shards" / entry["name"]
        samples = [sample_views(folder, row) for row in range(entry["samples"])]
        write_shard(made.parent, made.name, samples, manifest["layout"])
        group = json.loads((made / "zarr.json").read_text())
        own = json.loads((folder / "zarr.json").read_text())["attributes"]["sa1bpack"]
        group["attributes"]["sa1bpack"] = own | group["attributes"]["sa1bpack"]
        (made / "zarr.json").write_bytes(as_json(group))
        (made / SUMS).unlink()
        digests = {name: digest_of(made / name) for name, data in contents(made).items() if data}
        (made / SUMS).write_bytes(checksums(digests))
        assert contents(made) == contents(folder)
    again = shutil.copytree(root, tmp_path / "again")
    shutil.rmtree(again / manifest["index"])
    for path in (SUMS, "zarr.json", "shards/zarr.json"):
        (again / path).unlink()
    publish(again, [entry["name"] for entry in manifest["shards"]])
    assert contents(again) == contents(root)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_every_file_of_a_pack_is_the_documented_one(layout_packs, layout, tmp_path):  # noqa: F811
    check_documented(layout_packs(*layout), tmp_path)


@pytest.mark.parametrize("fit", ["pad", "native"])
def test_so_are_arrays_of_many_chunks_and_ids_that_occur_again(tmp_path, fit):
    tars = [
        write_tar(tmp_path / f"sa_00000{k}.tar", members(range(7), 300 if k else 2))
        for k in range(2)
    ]
    sa1bpack.pack(tars, tmp_path / "pack", workers=1, image_size=200, mask_size=96, fit=fit)
    check_documented(tmp_path / "pack", tmp_path)
    [path] = (tmp_path / "pack").glob("shards/sa_000001-000/mask_bits/zarr.json")
    assert json.loads(path.read_text())["codecs"][0]["configuration"]["chunk_shape"][0] == 128


@pytest.mark.parametrize(
    "absent, options",
    [
        (ALL, {}),
        (COCO, {"fit": "native", "pixels": "yuv420", "masks": "runs"}),
        (("point_coords",), {"fit": "squash", "masks": "bits"}),
        (("annotation_id", "stability_score"), {}),
    ],
)
def test_so_are_those_of_a_pack_that_lacks_numbers(tmp_path, absent, options):
    """Bits of absent numbers are zero, and those of others are as without the option."""
    found = members(range(6), lambda number: number)
    full = write_tar(tmp_path / "sa_000000.tar", found, shuffle=None)
    pack_small(full, tmp_path / "full", **options)
    write_tar(full, without(found, absent), shuffle=None)
    pack_small(full, tmp_path / "pack", absent=absent, **options)
    check_documented(tmp_path / "pack", tmp_path)
    assert manifest_of(tmp_path / "pack")["layout"]["absent"] == [n for n in ALL if n in absent]
    cleared = sum(1 << bit for name in absent for bit in BITS.get(name, ()))
    for folder in (tmp_path / "full/shards").glob("sa_*"):
        stored = arrays_of(tmp_path / "pack/shards" / folder.name)
        for name, values in arrays_of(folder).items():
            if name == "number_types":
                values = values & ~np.uint16(cleared)
            if name not in ("checksum", *absent):
                np.testing.assert_array_equal(stored[name], values, name)


def numbers_as(value, kind: type):
    """A number, or a list of them, as whole numbers or as floats."""
    return [numbers_as(each, kind) for each in value] if isinstance(value, list) else kind(value)


def test_the_bits_of_number_types_are_the_documented_ones(tmp_path):
    """Of each record, the numbers under one key are whole."""
    found = members(range(len(NUMBERS)), 1)
    for number, whole in enumerate(NUMBERS):

        def change(record, whole=whole):
            [annotation] = record["annotations"]
            for key in NUMBERS:
                annotation[key] = numbers_as(annotation[key], int if key == whole else float)

        changed(found, number, change)
    tar = write_tar(tmp_path / "sa_000000.tar", found, shuffle=None)
    pack_small(tar, tmp_path / "pack")
    folders = sorted((tmp_path / "pack/shards").glob("sa_*"))
    bits = np.concatenate([arrays_of(folder)["number_types"] for folder in folders]).tolist()
    text = DOCS.read_text()
    for name, number in zip(NUMBERS, bits, strict=True):
        first, last = re.search(rf"\b(\d+)(?:\u2013(\d+))?\s+`{name}`", text).groups()
        assert number == sum(1 << bit for bit in range(int(first), int(last or first) + 1)), name


@pytest.mark.parametrize(
    "fit, samples_per_shard, shards", [("pad", 6144, 2), ("native", 12_288, 1)]
)
def test_all_of_sa1b_stays_below_the_documented_number_of_files(fit, samples_per_shard, shards):
    arrays = len(array_table(layout_of(fit=fit)))
    of_index = len(documented("Arrays of the index"))
    shard = (2 + 2 * arrays) + (1 + arrays)
    assert -(-11_186 // samples_per_shard) == shards
    index = 1 + 2 * of_index + 1 + of_index
    top = len(["shards/", "shards/zarr.json", "zarr.json", "manifest.json", "checksums.xxh128",
               "rejects.jsonl"])  # fmt: skip
    total = 1000 * shards * shard + index + top
    assert total < 120_000
    text = DOCS.read_text()
    assert f"{total:,}" in text and f"{shard} entries" in text
    assert str(samples_per_shard) in text.replace(",", "")


@settings(max_examples=20)
@given(
    rows=st.integers(1, 40),
    row_shape=st.lists(st.sampled_from([1, 3, 64, 700]), max_size=2),
    dtype=st.sampled_from(["|u1", "<u2", "<i4", "<i8", "<u8", "<f8"]),
)
def test_a_chunk_file_as_documented_is_what_zarr_writes(tmp_path_factory, rows, row_shape, dtype):
    values = np.arange(1, rows * int(np.prod(row_shape, dtype=int)) + 1).astype(dtype)
    values = values.reshape(rows, *row_shape)
    tmp = tmp_path_factory.mktemp("zarr")
    dims = ("n", "y", "x")[: values.ndim]
    write_group(tmp / "ours", {"a": (values, dims)})
    ours = zarr.open_group(tmp / "ours", mode="r")["a"]
    sharding = ShardingCodec(
        chunk_shape=ours.chunks, codecs=[BytesCodec()],
        index_codecs=[BytesCodec(), Crc32cCodec()], index_location="end",
    )  # fmt: skip
    array = zarr.create(
        store=tmp / "a", shape=values.shape, dtype=values.dtype, fill_value=0,
        chunks=ours.shards, codecs=[sharding], zarr_format=3,
        dimension_names=dims, chunk_key_encoding={"name": "default", "separator": "."},
        config={"write_empty_chunks": True},
    )  # fmt: skip
    array[...] = values
    assert contents(tmp / "a").keys() == contents(tmp / "ours/a").keys()
    [path] = (tmp / "a").glob("c.*")
    assert path.read_bytes() == (tmp / "ours/a" / path.name).read_bytes()


@pytest.mark.parametrize("change, message", [
    *(({key: value}, rf"{key}.*newer sa1bpack") for key, value in [
        ("image_size", 0), ("image_size", 1.5), ("image_size", True), ("image_size", 16385),
        ("mask_size", 12), ("mask_size", 0), ("mask_size", 16392), ("fit", "crop"),
        ("pixels", "yuv444"), ("runs", 1), ("bits", None),
    ]),
    ({"bits": False, "runs": False}, "bits.*newer sa1bpack"),
    ({"image_size": 1023, "pixels": "yuv420"}, "image_size.*newer sa1bpack"),
    ({"image_size": 1023, "pixels": "yuv420", "fit": "squash"}, "image_size.*newer sa1bpack"),
    ({"depth": 1}, "keys"),
])  # fmt: skip
def test_a_layout_that_cannot_be_stored_is_refused(pack, change, message):
    edit(pack / "manifest.json", lambda manifest: manifest["layout"].update(change))
    with pytest.raises(FormatError, match=message):
        sa1bpack.open(pack)


@pytest.mark.parametrize("layout", [None, [], {}])
def test_a_layout_without_its_keys_is_refused(pack, layout):
    edit(pack / "manifest.json", lambda manifest: manifest.update(layout=layout))
    with pytest.raises(FormatError, match="keys"):
        sa1bpack.open(pack)
