"""Every defect of a shard is named before the first view of it."""

import gc
import json
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
from edited_packs import edit
from narrow_packs import pack_of
from system import open_files

from sa1bpack import FormatError
from sa1bpack.errors import VersionError
from sa1bpack.format.files import map_bytes
from sa1bpack.format.layout import Layout
from sa1bpack.format.shard_reader import open_shard

SHARD = "sa_000000-000"


@pytest.fixture
def folder(pack) -> Path:
    return pack / "shards" / SHARD


def own(key, value):
    """A change of one of the attributes that the format defines."""
    return lambda data: data["attributes"]["sa1bpack"].__setitem__(key, value)


def resize(more):
    return lambda path: os.truncate(path, path.stat().st_size + more)


@pytest.mark.parametrize("name, damage, message", [
    (f"{SHARD}/image/c.0.0.0.0", resize(-1), r"cut short: \d+ bytes, but must have \d+"),
    (f"{SHARD}/bbox/c.0.0", resize(1), "too long"),
    (f"{SHARD}/bbox/c.0.0", Path.unlink, "missing"),
    ("sa_000000-001/area/c.0", lambda path: path.write_bytes(b"0"),  # an array without rows
     "too long: 1 bytes, but must have 0"),
])  # fmt: skip
def test_a_file_of_another_length_is_named(pack, name, damage, message):
    path = pack / "shards" / name
    damage(path)
    with pytest.raises(FormatError, match=f"{name}: {message}"):
        open_shard(path.parents[1])


@pytest.mark.parametrize("change, message", [
    (lambda d: d["shape"].__setitem__(0, 5), r"shape\[0\] is 5, but must be 4"),
    (lambda d: d.update(data_type="int8"), "data_type is 'int8', but must be 'uint8'"),
    (lambda d: d.update(fill_value=1), "fill_value is 1"),
    (lambda d: d.update(extra=1), "extra is not a key of the format"),
    (lambda d: d.pop("dimension_names"), "dimension_names is missing"),
    (lambda d: d["dimension_names"].pop(), "dimension_names is "),
    (lambda d: d["codecs"][0]["configuration"].update(index_location="start"),
     r"codecs\[0\].configuration.index_location is 'start', but must be 'end'"),
])  # fmt: skip
def test_metadata_that_describes_another_array_is_named(folder, change, message):
    edit(folder / "image" / "zarr.json", change)
    with pytest.raises(FormatError, match=f"image/zarr.json: {message}"):
        open_shard(folder)


def test_metadata_in_other_spacing_and_order_is_accepted(folder):
    for path in folder.rglob("zarr.json"):
        data = json.loads(path.read_text())
        path.write_text(json.dumps(dict(reversed(data.items())), indent=3))
    assert len(open_shard(folder)) == 4


@pytest.mark.parametrize("change, message", [
    (own("samples", 5), r"consolidated_metadata.*shape\[0\] is 4, but must be 5"),
    (own("samples", -1), "attributes: .*samples"),
    (own("samples", "4"), "attributes: .*samples"),
    (own("samples", True), "attributes: .*samples"),
    (own("layout", {}), "layout: a layout has the keys"),
    (lambda d: d["attributes"].clear(), "not a Zarr group with sa1bpack"),
    (lambda d: d["attributes"].update(sa1bpack=[]), "not a Zarr group with sa1bpack"),
    (lambda d: d["attributes"]["sa1bpack"].pop("source"), "attributes: .*source"),
    (lambda d: d.pop("consolidated_metadata"), "consolidated_metadata is missing"),
    (lambda d: d.update(zarr_format=2), "zarr_format is 2, but must be 3"),
])  # fmt: skip
def test_an_impossible_group_is_named(folder, change, message):
    edit(folder / "zarr.json", change)
    with pytest.raises(FormatError, match=f"{SHARD}/zarr.json: {message}"):
        open_shard(folder)


def test_another_major_version_names_the_release_to_install(folder):
    edit(folder / "zarr.json", own("format", [2, 0]))
    with pytest.raises(VersionError, match=r"2.0.*install"):
        open_shard(folder)


def test_a_shard_with_another_layout_is_refused(folder):
    with pytest.raises(FormatError, match="but the pack's is"):
        open_shard(folder, Layout())


@pytest.mark.parametrize("name, row, value, message", [
    ("mask_offset", 0, 1, "run from 1 to 8"), ("mask_offset", 4, 9, "run from 0 to 9"),
    ("run_offset", 8, -3, "run from 0 to -3"),
])  # fmt: skip
def test_offsets_with_wrong_ends_are_named(folder, name, row, value, message):
    offsets = np.memmap(folder / name / "c.0", "<i8", "r+", shape=row + 1)
    offsets[row] = value
    offsets.flush()
    with pytest.raises(FormatError, match=f"{name}: offsets {message}"):
        open_shard(folder)


def test_runs_without_a_layout_of_runs_are_named(tmp_path):
    pack_of(tmp_path, Layout(image_size=16, mask_size=8, runs=False))
    folder = tmp_path / "shards" / SHARD
    edit(folder / "zarr.json", own("runs", 4))
    with pytest.raises(FormatError, match="runs is 4, but the layout stores no runs"):
        open_shard(folder)


def test_arrays_are_read_only_maps_made_once(folder):
    shard = open_shard(folder)
    image = shard["image"]
    assert shard["image"] is image and not image.flags.writeable and not image.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        image[0, 0, 0, 0] = 1
    with pytest.raises(KeyError, match="the arrays are image, "):
        shard["nothing"]


def test_mapped_shard_keeps_no_file_open(folder):
    before = len(open_files())
    shard = open_shard(folder)
    arrays = [shard[spec.name] for spec in shard.layout.arrays]
    assert len(arrays) == 18 and len(open_files()) == before


def test_map_never_reaches_past_the_end_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert map_bytes(path, 3).tobytes() == b"abc"
    with pytest.raises(FormatError, match="3 bytes, but 4 are to be mapped"):
        map_bytes(path, 4)


def test_views_outlive_the_shard_and_the_map_does_not_outlive_the_views(folder):
    shard = open_shard(folder)
    expected = np.array(shard["bbox"][1:3])
    view = shard["bbox"][1:3]
    holder = view
    while isinstance(holder.base, np.ndarray):
        holder = holder.base
    mapping = weakref.ref(holder.base)
    del shard, holder
    gc.collect()
    np.testing.assert_array_equal(view, expected)
    assert mapping() is not None
    del view
    gc.collect()
    assert mapping() is None
