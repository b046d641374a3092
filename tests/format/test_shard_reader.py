"""Every defect of a shard is named before the first view of it."""

import gc
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from edited_packs import edit, rewrite_checksums
from format_files import layout_of
from narrow_packs import pack_of
from shard_files import writable_array
from system import open_files

from sa1bpack import ReadError, verify
from sa1bpack import open as open_pack

SHARD = "sa_000000-000"


@pytest.fixture
def folder(pack) -> Path:
    return pack / "shards" / SHARD


def check_named(pack: Path, message: str, row: int | None = 0) -> None:
    """A quick check finds it; reading a sample, unless row is None, is refused for it."""
    text = "\n".join(str(problem) for problem in verify(pack, quick=True).problems)
    assert re.search(message, text), text
    if row is not None:
        with pytest.raises(ReadError, match=message):
            open_pack(pack)[row]


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
    damage(pack / "shards" / name)
    check_named(pack, f"{name}: {message}", 0 if name.startswith(SHARD) else None)


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
def test_metadata_that_describes_another_array_is_named(pack, folder, change, message):
    """No memory map depends on it."""
    edit(folder / "image/zarr.json", change)
    check_named(pack, f"image/zarr.json: {message}", None)
    assert open_pack(pack)[0]["image_id"] == 99


def test_metadata_in_other_spacing_and_order_is_accepted(pack):
    for path in pack.rglob("zarr.json"):
        data = json.loads(path.read_text())
        path.write_text(json.dumps(dict(reversed(data.items())), indent=3))
    rewrite_checksums(pack)
    assert verify(pack).ok and open_pack(pack)[0]["image_id"] == 99


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
def test_an_impossible_group_is_named(pack, folder, change, message):
    edit(folder / "zarr.json", change)
    check_named(pack, f"{SHARD}/zarr.json: {message}")


@pytest.mark.parametrize("key, value, message", [
    ("format", [2, 0], r"2.0.*install"),
    ("layout", layout_of(), "layout is .*, but the pack's is"),
])  # fmt: skip
def test_a_shard_of_another_version_or_layout_is_refused(pack, folder, key, value, message):
    edit(folder / "zarr.json", own(key, value))
    check_named(pack, message)


@pytest.mark.parametrize("name, row, value, message", [
    ("mask_offset", 0, 1, "run from 1 to 8"), ("mask_offset", 4, 9, "run from 0 to 9"),
    ("run_offset", 8, -3, "run from 0 to -3"),
])  # fmt: skip
def test_offsets_with_wrong_ends_are_named(pack, folder, name, row, value, message):
    writable_array(folder, name)[row] = value
    check_named(pack, f"{name}: offsets {message}")


def test_runs_without_a_layout_of_runs_are_named(tmp_path):
    pack_of(tmp_path, layout_of(image_size=16, mask_size=8, runs=False))
    edit(tmp_path / "shards" / SHARD / "zarr.json", own("runs", 4))
    check_named(tmp_path, "runs is 4, but the layout stores no runs")


def test_samples_are_views_of_maps_that_keep_no_file_open(pack):
    ds = open_pack(pack)
    before = len(open_files())
    samples = [ds[row] for row in range(len(ds))]
    assert len(open_files()) == before
    image = samples[0].stored()["image"]
    assert not image.flags.owndata
    assert ds[0].stored()["image"].ctypes.data == image.ctypes.data


def test_views_outlive_the_dataset_and_the_files(pack, folder):
    ds = open_pack(pack)
    view = ds[2].stored()["image"]
    expected = np.array(view)
    shutil.rmtree(folder)
    del ds
    gc.collect()
    np.testing.assert_array_equal(view, expected)
