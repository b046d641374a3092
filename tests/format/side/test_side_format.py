"""Features on disk: what `attach` writes is what docs/format.md says; races; what is stale."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from edited_packs import edit, rewrite_checksums
from format_files import documented, index_of, section
from packs_with_features import SPECS, Feature, names_of_feature_shards, side_values, write_side
from shard_files import arrays_of
from small_tars import contents

import sa1bpack
from sa1bpack import OptionError, verify
from sa1bpack.errors import NotAPack, OutputLocked, OutputRefused

IMAGE = SPECS["teacher"]
QUANTIZE = {"scaled_int8": "int8", "scaled_float8_e4m3fn": "float8"}


def attached(pack, spec: Feature, output):
    """A feature with the rows of `write_side`, made by `attach`."""
    ids = index_of(pack)["image_id"].tolist()
    masks = np.diff(index_of(pack)["mask_offset"])
    each = [side_values(spec, *sample) for sample in zip(ids, masks.tolist(), strict=True)]
    rows = torch.from_numpy(np.concatenate(each))
    if spec.dtype == "bfloat16":
        rows = rows.view(torch.int16).view(torch.bfloat16)
    ds = sa1bpack.open(pack)
    of_rows = ds.column("image_id") if spec.axis == "sample" else ds.mask_column("annotation_id")
    options = {"axis": spec.axis, "quantize": QUANTIZE.get(spec.dtype), "spatial": spec.spatial}
    if spec.spatial:
        options["covers"] = "canvas"
    return sa1bpack.attach(ds, spec.name, rows, of_rows, output=output, **options)


COVERING = {"spatial": True, "covers": "canvas"}
WIDE = Feature("wide", "sample", "uint8", (2, 3, 4, 5))


@pytest.mark.parametrize("spec", [*SPECS.values(), WIDE], ids=lambda spec: spec.name)
def test_every_file_of_a_feature_is_the_documented_one(pack, tmp_path, spec):
    """But for what the manifest says of how it was made. A shard without samples has no rows."""
    shards = ("sa_000000-000", "sa_000001-000")
    made = contents(attached(pack, spec, tmp_path / spec.name).folder)
    written = contents(write_side(pack, spec, shards))
    keys, expected = (json.loads(files.pop("manifest.json")) for files in (made, written))
    assert keys | {"provenance": 0} == expected | {"provenance": 0}
    made.pop("checksums.xxh128"), written.pop("checksums.xxh128")
    assert made == written
    optional = {"covers", "interpolation", "missing"}
    assert set(keys) == {row[0] for row in documented("Features")} - optional
    for name in (names_of_feature_shards(pack)[shard] for shard in shards):
        group = zarr.open_group(tmp_path / spec.name / name, mode="r")
        for array, rows in arrays_of(tmp_path / spec.name / name).items():
            np.testing.assert_array_equal(group[array][:], rows)


def test_the_documented_types_are_those_that_can_be_stored(pack, tmp_path):
    line = next(row for row in section("Features").splitlines() if row.startswith("| `dtype`"))
    dtypes = re.findall(r'"(\w+)"', line)
    assert dtypes.pop() == "text"  # whose rows are ragged: see test_ragged_sides.py
    for dtype in dtypes:
        folder = attached(pack, Feature("a", "sample", dtype, (2,)), tmp_path / dtype).folder
        assert json.loads((folder / "manifest.json").read_text())["dtype"] == dtype
        assert verify(folder).ok


def test_a_pack_with_features_is_sound_and_its_own_bytes_are_the_same(pack):
    before = contents(pack)
    for spec in SPECS.values():
        attached(pack, spec, None)
    report = verify(pack)
    assert report.ok and report.notes == () and report.counts["features"] == len(SPECS)
    after = contents(pack).items()
    assert {path: data for path, data in after if not path.startswith("side")} == before


@pytest.mark.parametrize("shape, options, message", [
    ((1,) * 9, {}, "at most 8 axes"), ((0,), {}, "row_shape is (0,)"),
    ((1 << 20, 1 << 10), {}, "1 to 1073741824 bytes"), ((4,), COVERING, "spatial is True"),
    ((2, 2), {**COVERING, "axis": "mask"}, "spatial is True, but rows are (2, 2) per mask"),
    ((), {"quantize": "int8"}, "cannot be stored with scales"),
])  # fmt: skip
def test_rows_that_cannot_be_stored_are_refused(pack, tmp_path, shape, options, message):
    ds = sa1bpack.open(pack)
    of_masks = options.get("axis") == "mask"
    ids = ds.mask_column("annotation_id") if of_masks else ds.column("image_id")
    rows = np.broadcast_to(np.float16(0), (len(ids), *shape))
    with pytest.raises(OptionError, match=re.escape(message)):
        sa1bpack.attach(ds, "a", rows, ids, output=tmp_path / "a", **options)


def test_a_changed_shard_makes_exactly_its_rows_stale(pack):
    folder = write_side(pack, IMAGE)
    names = names_of_feature_shards(pack)
    edit(
        pack / "shards/sa_000001-000/zarr.json",
        lambda group: group["attributes"]["sa1bpack"].update(more=1),
    )
    rewrite_checksums(pack)
    report = verify(pack)
    assert report.ok and len(report.notes) == 2
    assert "1 shard missing (1 stale): sa_000001-000" in report.notes[0]
    assert f"rows for 1 shard not of this pack, such as {names['sa_000001-000']}" in report.notes[1]
    with pytest.raises(OptionError, match=r"1 shard missing \(1 stale\): sa_000001-000"):
        sa1bpack.open(pack, features="teacher")
    shutil.rmtree(folder)
    write_side(pack, IMAGE, shards=())
    assert "2 shards missing: " in verify(pack).notes[0]


def test_another_array_under_the_same_name_is_refused(pack, tmp_path):
    folder = write_side(pack, IMAGE)
    attached(pack, IMAGE, tmp_path / "a")
    with pytest.raises(OptionError, match=r"rows are float32 .*, are float16"):
        attached(pack, IMAGE._replace(dtype="float32"), tmp_path / "a")
    with pytest.raises(OutputRefused, match="name is 'teacher', not 'other'"):
        attached(pack, IMAGE._replace(name="other"), tmp_path / "a")
    with pytest.raises(OutputRefused, match="made with function 'test', not 'sa1bpack:attach'"):
        attached(pack, IMAGE, folder)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/file").touch()
    with pytest.raises(OutputRefused, match="not a feature"):
        attached(pack, IMAGE, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_feature_that_another_call_replaced_meanwhile_gets_no_rows(pack, tmp_path, monkeypatch):
    real = os.open

    def late(path, *given, **options):
        if str(path).endswith(".lock"):
            edit(tmp_path / "a/manifest.json", lambda found: found.update(dtype="int16"))
        return real(path, *given, **options)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(OutputRefused, match=r"rows are int16 .*, not float16"):
        attached(pack, IMAGE, tmp_path / "a")
    assert list((tmp_path / "a").glob("*sa_*")) == []


def test_a_feature_that_comes_into_use_while_it_is_replaced_stays(pack, monkeypatch):
    folder = write_side(pack, IMAGE, shards=())
    rename = Path.rename
    locks = []

    def late(path, target):
        if path == folder:
            locks.append((path / ".tmp-other.lock").open("w"))
            fcntl.flock(locks[0], fcntl.LOCK_EX)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    with pytest.raises(OutputRefused):
        attached(pack, IMAGE._replace(dtype="float32"), folder)
    assert (folder / ".tmp-other.lock").exists()
    locks[0].close()


# Derives a feature of ones; with HOLD, it waits in the second batch.
ROWS_OF_ONES = """
import os, sys
import torch, sa1bpack

def ones(batch):
    if "HOLD" in os.environ and batch["indices"][0]:
        print("made", flush=True)
        sys.stdin.read()
    return torch.ones(len(batch["image_ids"]), 1)

def derive(pack, folder):
    return sa1bpack.derive(sa1bpack.open(pack), "ones", ones, output=folder, batch_size=1)
"""


def test_two_writers_of_one_feature_shard_exclude_each_other_and_a_killed_one_leaves_nothing(
    pack, tmp_path, monkeypatch
):
    (tmp_path / "rows_of_ones.py").write_text(ROWS_OF_ONES)
    monkeypatch.syspath_prepend(tmp_path)
    from rows_of_ones import derive

    folder = tmp_path / "ones"
    program = "import sys; from rows_of_ones import derive; derive(*sys.argv[1:])"
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(pack), str(folder)],
        env={**os.environ, "HOLD": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdout.readline() == "made\n"
        with pytest.raises(OutputLocked, match="another process makes this feature shard"):
            derive(pack, folder)
        child.kill()
        child.wait()
    assert len(list(folder.glob(".tmp-*"))) == 2  # a folder and its lock, of a feature in use
    assert len(derive(pack, folder).made) == 2
    assert list(folder.glob(".tmp-*")) == [] and verify(folder).ok


def test_a_feature_is_not_taken_for_a_pack_and_a_pack_for_none(pack):
    folder = write_side(pack, IMAGE)
    with pytest.raises(NotAPack, match=r"teacher: not a pack, but a feature.* features=\[FOLDER\]"):
        sa1bpack.open(folder)
    with pytest.raises(NotAPack, match="this is not a feature"):
        sa1bpack.open(pack, features=pack)
