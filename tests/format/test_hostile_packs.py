"""Malicious packs: nothing hangs, leads out of the folder, or fills memory."""

import functools
import json
import os
import shutil
from pathlib import Path

import pytest
from edited_packs import edit
from system import peak_growth

from sa1bpack import FormatError, verify
from sa1bpack.format.files import (
    CHECKSUMS_NAME,
    MAX_METADATA_BYTES,
    file_digest,
    read_checksums,
    remove_published,
)
from sa1bpack.format.index import open_index, remove_stale
from sa1bpack.format.manifest import MANIFEST_NAME, read_manifest
from sa1bpack.format.shard_reader import open_shard

SHARD = "shards/sa_000000-000"
READERS = {
    MANIFEST_NAME: read_manifest,
    f"{SHARD}/zarr.json": lambda root: open_shard(root / SHARD),
    f"{SHARD}/area/zarr.json": lambda root: open_shard(root / SHARD),
    f"{SHARD}/{CHECKSUMS_NAME}": lambda root: read_checksums(root / SHARD / CHECKSUMS_NAME),
    "index": lambda root: open_index(root, read_manifest(root)),
}


def file_of(root: Path, name: str) -> Path:
    return root / read_manifest(root).index / "zarr.json" if name == "index" else root / name


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(pack, name):
    path = file_of(pack, name)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FormatError, match="a pipe or a device"):
        READERS[name](pack)
    if name != MANIFEST_NAME:
        chunk = pack / SHARD / "area" / "c.0"
        chunk.unlink()
        os.mkfifo(chunk)
        with pytest.raises(FormatError, match="a pipe or a device"):
            file_digest(chunk)
        assert not verify(pack).ok


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_a_terabyte_of_zeros_is_refused_unread(pack, name):
    os.truncate(file_of(pack, name), 1 << 40)
    with pytest.raises(FormatError, match=f"a file of its kind has at most {MAX_METADATA_BYTES}"):
        READERS[name](pack)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", [b'{"attributes":' * 100_000, b"\xff" * 1000])
def test_nonsense_of_any_depth_is_refused_with_a_short_message(pack, name, text):
    reader = READERS[name]
    path = file_of(pack, name)
    path.write_bytes(text)
    with pytest.raises(FormatError) as caught:
        reader(pack)
    assert path.name in str(caught.value) and len(str(caught.value)) < 1000


def test_attributes_of_any_depth_are_not_descended_into(pack):
    """Those of the packer may be anything; a defect beside them is named all the same."""
    path = pack / SHARD / "zarr.json"
    metadata = json.loads(path.read_text())
    metadata["attributes"]["sa1bpack"]["own"] = "@"
    opened = 0
    for depth in (100, *range(800, 1000, 40)):
        text = json.dumps(metadata).replace('"@"', "[" * depth + "]" * depth)
        path.write_text(text)
        try:
            open_shard(pack / SHARD)
            opened += 1
        except FormatError as error:
            assert "recursion" in str(error) and depth > 800
        path.write_text(text.replace('"node_type": "group"', '"node_type": "array"'))
        with pytest.raises(FormatError, match=r"node_type is 'array'|recursion"):
            open_shard(pack / SHARD)
    assert opened


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["shards"][0].update(samples=2**63),
        lambda d: d["shards"][0].update(bytes=10**400),
        lambda d: d["shards"][0].update(masks=-(2**63)),
        lambda d: d.update(samples=10**4000),
        lambda d: d.update(version=[10**4000, 0]),
        lambda d: d.update(version=[[[[[]]]]] * 10_000),
        lambda d: d["layout"].update(image_size=10**4000),
        lambda d: d["layout"].update(fit=["x" * 100_000]),
        lambda d: d["layout"].update(fit=functools.reduce(lambda x, _: [x], range(900), [])),
        lambda d: d["layout"].update({"x" * 100_000: 1}),
        lambda d: d["shards"][0].update(name="x" * 100_000),
        lambda d: d["shards"][0].update(name="\x1b[2J"),
        lambda d: d.update(index="x" * 100_000),
    ],
)
def test_values_of_any_size_are_refused_with_a_short_message(pack, change):
    edit(pack / MANIFEST_NAME, change)
    with pytest.raises(FormatError) as caught:
        read_manifest(pack)
    message = str(caught.value)
    assert len(message) < 1000 and message.isprintable()


def test_a_manifest_of_very_many_repeated_shards_is_refused_at_once(pack):
    """Searching all names for each of them took quadratic time."""
    edit(pack / MANIFEST_NAME, lambda d: d.update(shards=[d["shards"][0] | {"name": f"s{n // 2}"}
                                          for n in range(40_000)]))  # fmt: skip
    with pytest.raises(FormatError, match="s0 is listed twice") as caught:
        read_manifest(pack)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name",
    ["..", ".", "../elsewhere", "/etc", "a/b", "a\\b", "", "\0", "a\0b", ".tmp-x", "__x", "\ud800",
     "a\nb", "\u202egpj"],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(pack, name):
    edit(pack / MANIFEST_NAME, lambda d: d["shards"][0].update(name=name))
    with pytest.raises(FormatError, match=r"cannot be the name of a shard|not JSON"):
        read_manifest(pack)


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a//b", "./a", "a/..", "a\0b", "a\x1bb"])
@pytest.mark.parametrize("where", [".", SHARD])
def test_no_checksum_is_read_outside_the_folder(pack, path, where):
    listed = pack / where / CHECKSUMS_NAME
    listed.write_text(f"{'0' * 32}  {path}\n{listed.read_text()}")
    with pytest.raises(FormatError, match="line 1"):
        read_checksums(listed)
    report = verify(pack)
    assert any("line 1" in problem.what for problem in report.problems)
    assert all(str(problem).isprintable() for problem in report.problems)


def test_links_within_a_pack_are_read_and_their_targets_checked(pack, tmp_path):
    whole = open_shard(pack / SHARD)["bbox"].tolist()
    for number, name in enumerate((f"{SHARD}/bbox/c.0.0", f"{SHARD}/bbox", SHARD)):
        away = tmp_path / str(number)
        (pack / name).rename(away)
        (pack / name).symlink_to(away)
        assert open_shard(pack / SHARD)["bbox"].tolist() == whole
        assert verify(pack).ok
        damaged = next(away.rglob("c.0.0")) if away.is_dir() else away
        damaged.write_bytes(damaged.read_bytes()[::-1])
        assert not verify(pack).ok
        damaged.write_bytes(damaged.read_bytes()[::-1])


def test_a_loop_of_links_is_an_error_not_a_hang(pack):
    shutil.rmtree(pack / SHARD / "area")
    (pack / SHARD / "area").symlink_to(pack / SHARD / "area")
    with pytest.raises(OSError, match="symbolic links"):
        open_shard(pack / SHARD)
    assert not verify(pack).ok


def test_removing_a_linked_shard_removes_the_link_alone(pack, tmp_path):
    away = tmp_path / "away"
    (pack / SHARD).rename(away)
    (pack / SHARD).symlink_to(away)
    remove_published(pack / SHARD)
    assert not (pack / SHARD).exists() and (away / "zarr.json").exists()
    (pack / "shards" / ".tmp-left").symlink_to(away)
    remove_stale(pack)
    assert not (pack / "shards" / ".tmp-left").is_symlink() and (away / "zarr.json").exists()


def test_a_sparse_pack_of_terabytes_opens_in_bounded_memory(pack):
    """A shard that claims 10^10 masks, with files of that length that are all holes."""
    program = """
import json
from pathlib import Path
from sa1bpack.format.layout import AxisLengths, Layout
from sa1bpack.format.arrays import ChunkFile, group_metadata
folder, masks = Path(sys.argv[1]), 10**10
attributes = json.loads((folder / "zarr.json").read_text())["attributes"]["sa1bpack"]
attributes["masks"] = masks
layout = Layout.from_json(attributes["layout"])
lengths = AxisLengths(attributes["samples"], masks, attributes["runs"], attributes["image_bytes"])
arrays = layout.array_rows(lengths)
(folder / "zarr.json").write_text(json.dumps(group_metadata(attributes, arrays)))
for spec, rows in arrays.items():
    with open(folder / spec.chunk_path, "r+b") as file:
        file.truncate(ChunkFile(spec, rows).file_bytes)
try:
    open_shard(folder, deep=False)
    raise SystemExit("opened")
except (FormatError, OSError) as error:
    assert "mask_offset" in str(error) or "c.0" in str(error), error
"""
    imports = (
        "sa1bpack; from sa1bpack.format.shard_reader import open_shard; "
        "from sa1bpack.errors import FormatError"
    )
    assert peak_growth(program, pack / SHARD, imports=imports) < 64
