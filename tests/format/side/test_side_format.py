"""Features on disk: what is written is read back by numpy, Zarr and sa1bpack; races; merging."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xxhash
import zarr
from packs_with_features import side_rows, write_side
from small_tars import contents

from sa1bpack import FormatError, OptionError, verify
from sa1bpack.errors import NotAPack, OutputLocked, OutputRefused
from sa1bpack.format.index import open_manifest_and_index
from sa1bpack.format.manifest import read_manifest
from sa1bpack.format.side.spec import (
    CHECKSUM,
    SCALED_DTYPES,
    SIDE_AXES,
    SIDE_DTYPES,
    SIDE_FORMAT_NAME,
    SIDE_FORMAT_VERSION,
    FeatureShard,
    SideManifest,
    SideSpec,
    coverage,
    create_side,
    feature_shard_names,
    is_side,
    is_unused,
    read_side_manifest,
    remove_unused,
    shard_identities,
)
from sa1bpack.format.side.writer import FeatureShardWriter

DOCS = Path(__file__).parents[3] / "docs" / "format.md"
IMAGE = SideSpec("teacher", "sample", "float16", (4, 3, 3), spatial=True)
MASK = SideSpec("quality", "mask", "bfloat16", (5,))
SCALAR = SideSpec("depth", "mask", "int8", ())


def section() -> str:
    return DOCS.read_text().split("\n## Features\n")[1].split("\n## ")[0]


def test_the_documented_keys_and_types_are_those_of_the_code(tmp_path):
    keys = re.findall(r"^\| `(\w+)` \|", section(), re.MULTILINE)
    create_side(tmp_path / "a", SideManifest(IMAGE, {}))
    assert set(keys) == set(json.loads((tmp_path / "a" / "manifest.json").read_text()))
    line = next(line for line in section().splitlines() if line.startswith("| `dtype`"))
    assert tuple(re.findall(r'"(\w+)"', line)) == (*SIDE_DTYPES, *SCALED_DTYPES.values())
    line = next(line for line in section().splitlines() if line.startswith("| `axis`"))
    assert tuple(re.findall(r'"(\w+)"', line)) == SIDE_AXES
    assert f'"{SIDE_FORMAT_NAME}"' in section() and SIDE_FORMAT_VERSION == (1, 0)
    assert f"{CHECKSUM.dtype.name} (N,)" in section()


@pytest.mark.parametrize("spec", [IMAGE, MASK, SCALAR], ids=lambda spec: spec.name)
def test_a_chunk_file_is_a_memory_map_and_a_zarr_array_of_the_documented_form(pack, spec):
    folder = write_side(pack, spec)
    manifest, index = open_manifest_and_index(pack)
    ids, edges = index.image_id.tolist(), index.shard_offset.tolist()
    masks = np.diff(index.mask_offset).tolist()
    for number, shard in enumerate(manifest.shards):
        listed = pack / "shards" / shard.name / "checksums.xxh128"
        digest = xxhash.xxh3_128_hexdigest(listed.read_bytes())
        made = folder / f"{shard.name}-{digest[:8]}"
        span = range(edges[number], edges[number + 1])
        each = [side_rows(spec, ids[k], masks[k]) for k in span]
        expected = np.concatenate([np.empty((0, *spec.row_shape), spec.stored), *each])
        group = zarr.open_group(made, mode="r")
        assert group.attrs["sa1bpack"] == {
            "format": [1, 0], "side": spec.name, "shard": shard.name, "digest": digest,
            "samples": shard.samples, "masks": shard.masks,
        }  # fmt: skip
        np.testing.assert_array_equal(group["values"][:], expected)
        sums = [xxhash.xxh3_64_intdigest(rows.tobytes()) for rows in each]
        np.testing.assert_array_equal(group["checksum"][:], np.array(sums, np.uint64))
        names = group["values"].metadata.dimension_names
        inner = ("channel", "y", "x") if spec.spatial else ("axis_1",) * len(spec.row_shape)
        assert names == (spec.axis, *inner)
        if len(expected):
            path = made / "values" / ("c" + ".0" * expected.ndim)
            mapped = np.memmap(path, spec.stored, "r", shape=expected.shape)
            np.testing.assert_array_equal(mapped, expected)
    found = read_side_manifest(folder)
    assert found.spec == spec and found.provenance == {"function": "test"}


def test_a_pack_with_features_is_sound_and_its_own_bytes_are_the_same(pack):
    before = contents(pack)
    for spec in (IMAGE, MASK, SCALAR):
        write_side(pack, spec)
    report = verify(pack)
    assert report.ok and report.notes == () and report.counts["features"] == 3
    after = contents(pack).items()
    assert {path: data for path, data in after if not path.startswith("side")} == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "bool"}, "dtype is 'bool'"), ({"row_shape": (0,)}, "row_shape is (0,)"),
        ({"row_shape": (1,) * 9}, "at most 8 axes"),
        ({"row_shape": (1 << 20, 1 << 10)}, "1 to 1073741824 bytes"),
        ({"spatial": True, "row_shape": (4,)}, "spatial is True"),
        ({"spatial": True, "axis": "mask"}, "spatial is True"),
    ],
)  # fmt: skip
def test_a_spec_that_cannot_be_stored_is_refused(change, message):
    good = {"name": "a", "axis": "sample", "dtype": "float16", "row_shape": (2, 3, 4)}
    with pytest.raises(OptionError, match=re.escape(message)):
        SideSpec(**{**good, **change})


def test_a_changed_shard_makes_exactly_its_rows_stale(pack):
    folder = write_side(pack, IMAGE)
    shards = shard_identities(pack, read_manifest(pack))
    assert coverage(feature_shard_names(folder), shards).missing == ()
    changed = [*shards[:2], dataclasses.replace(shards[2], digest="0" * 32)]
    found = coverage(feature_shard_names(folder), changed)
    assert found.missing == found.stale == (shards[2].name,)
    assert found.others == (shards[2].feature_shard,)
    assert "1 shard missing (1 stale)" in str(found)
    with pytest.raises(FormatError, match="no rows for shard"):
        FeatureShard.open(folder, IMAGE, changed[2])
    never = coverage([], shards)
    assert never.stale == () and "2 shards missing: " in str(never)


def test_another_array_under_the_same_name_is_refused(tmp_path):
    made = SideManifest(IMAGE, {"function": "f", "options": {}})
    assert create_side(tmp_path / "a", made) == made
    assert create_side(tmp_path / "a", made) == made
    other = SideManifest(MASK, {})
    with pytest.raises(OutputRefused, match="name is 'teacher', not 'quality'"):
        create_side(tmp_path / "a", other)
    with pytest.raises(OutputRefused, match="made with function 'f', not 'g'"):
        create_side(tmp_path / "a", SideManifest(IMAGE, {"function": "g"}))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").touch()
    with pytest.raises(OutputRefused, match="not a feature"):
        create_side(tmp_path / "b", made)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert is_side(tmp_path / "a") and not is_side(tmp_path / "b")


def test_a_feature_shard_is_published_whole_or_not_at_all(pack):
    shard = shard_identities(pack, read_manifest(pack))[0]
    create_side(pack / "side" / "teacher", SideManifest(IMAGE, {}))
    rows = np.zeros((1, 4, 3, 3), np.float16)
    with FeatureShardWriter(pack / "side" / "teacher", IMAGE, shard) as writer:
        writer.append(rows, np.array([1]))
    assert feature_shard_names(pack / "side" / "teacher") == []
    assert list((pack / "side" / "teacher").glob(".tmp-*")) == []


def test_two_writers_of_one_feature_shard_exclude_each_other_and_a_killed_one_leaves_nothing(pack):
    folder = pack / "side" / "teacher"
    shard = shard_identities(pack, read_manifest(pack))[0]
    create_side(folder, SideManifest(IMAGE, {}))
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from sa1bpack.format.manifest import read_manifest\n"
        "from sa1bpack.format.side.spec import read_side_manifest, shard_identities\n"
        "from sa1bpack.format.side.writer import FeatureShardWriter\n"
        "pack, folder = map(Path, sys.argv[1:])\n"
        "shard = shard_identities(pack, read_manifest(pack))[0]\n"
        "writer = FeatureShardWriter(folder, read_side_manifest(folder).spec, shard)\n"
        "print('made', flush=True)\n"
        "sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(pack), str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdout.readline() == "made\n"
        with pytest.raises(OutputLocked, match="another process makes this feature shard"):
            FeatureShardWriter(folder, IMAGE, shard)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert len(list(folder.glob(".tmp-*"))) == 2  # a folder and its lock
    with FeatureShardWriter(folder, IMAGE, shard) as writer:
        writer.append(np.ones((4, 4, 3, 3), np.float16), np.ones(4, int))
        writer.publish()
    assert (
        feature_shard_names(folder) == [shard.feature_shard] and list(folder.glob(".tmp-*")) == []
    )


def test_a_feature_in_use_is_not_removed_and_a_writer_notices_that_it_is_another(pack):
    folder, shard = pack / "side" / "teacher", shard_identities(pack, read_manifest(pack))[0]
    create_side(folder, SideManifest(IMAGE, {}))
    with FeatureShardWriter(folder, IMAGE, shard):
        assert not is_unused(folder)
        remove_unused(folder)
        assert read_side_manifest(folder).spec == IMAGE
    assert is_unused(folder)
    with pytest.raises(OutputRefused, match=r"rows are .*, not "):
        FeatureShardWriter(folder, MASK, shard)
    assert is_unused(folder)
    remove_unused(folder)
    assert list(folder.parent.iterdir()) == []


def test_a_feature_is_not_taken_for_a_pack_and_a_pack_for_none(pack):
    folder = write_side(pack, IMAGE)
    with pytest.raises(NotAPack, match=r"teacher: not a pack, but a feature.* features=\[FOLDER\]"):
        read_manifest(folder)
    with pytest.raises(NotAPack, match="this is not a feature"):
        read_side_manifest(pack)
