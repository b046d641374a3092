"""One packer a folder, one set of options a pack, and nothing of others is touched."""

import json
import shutil

import pytest
import xxhash
from edited_packs import unfinished_pack
from format_files import manifest_of
from shard_files import arrays_of
from small_tars import SMALL, contents, members, names_of, pack_small, rejects_of, write_tar

import sa1bpack
from sa1bpack import FormatError, PackOptions
from sa1bpack.errors import OutputRefused, VersionError


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "shards/sa_9-000/zarr.json"])
def test_a_folder_of_something_else_is_refused_untouched(tar, root, name):
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text("mine")
    before = contents(root)
    with pytest.raises(OutputRefused, match=r"not empty and holds no manifest\.json"):
        pack_small(tar, root)
    assert contents(root) == before


def test_a_pack_with_a_source_packed_in_part_is_not_complete(root, tmp_path):
    first = unfinished_pack(root, range(8))
    second = write_tar(tmp_path / "sa_2.tar", members([8, 9]))
    assert len(manifest_of(root)["shards"]) == 1
    assert pack_small(second, root).complete
    assert not manifest_of(root)["complete"]
    pack_small([first, second], root)
    assert manifest_of(root)["complete"]


def test_versions_that_made_another_part_are_told(tar, root, tmp_path, other_decoder, capsys):
    pack_small(tar, root)
    other = write_tar(tmp_path / "sa_000001.tar", members([50]))
    other_decoder()
    result = pack_small(other, root)
    (note,) = result.notes
    assert "made with" in note and note in capsys.readouterr().err
    assert len(sa1bpack.info(root).packed_by) == 2


def test_what_a_pack_records_of_a_source_is_true(tar, root):
    pack_small(tar, root)
    (record,) = manifest_of(root)["sources"]
    assert record == {
        "name": "sa_000000", "kind": "gzip-tar", "nbytes": tar.stat().st_size,
        "xxh128": xxhash.xxh3_128_hexdigest(tar.read_bytes()), "md5": None,
        "md5_checked": False, "pairs": 6,
        "dropped": 0, "rejects": [], "ignored": {}, "ignored_names": [],
    }  # fmt: skip
    assert json.dumps(manifest_of(root)["options"]) == json.dumps(
        PackOptions(**SMALL).to_json(), sort_keys=True
    )


@pytest.mark.parametrize("change", ["copied", "renamed"])
def test_a_shard_under_another_name_is_named_and_not_taken_in(tar, root, change):
    pack_small(tar, root)
    ours, other = root / "shards" / "sa_000000-001", root / "shards" / "sa_000000-900"
    shutil.copytree(ours, other)
    if change == "renamed":
        shutil.rmtree(ours)
    with pytest.raises(FormatError, match="shard 1 of sa_000000, named sa_000000-001"):
        pack_small(tar, root)
    shutil.rmtree(other)
    assert pack_small(tar, root).complete
    assert sa1bpack.verify(root).ok


def test_a_pack_of_a_newer_minor_version_is_read_but_not_added_to(tar, root):
    pack_small(tar, root)
    manifest = manifest_of(root)
    (root / "manifest.json").write_text(json.dumps(manifest | {"version": [1, 7], "new": 1}))
    before = contents(root)
    assert len(sa1bpack.open(root)) == 6
    with pytest.raises(VersionError, match=r"format version 1\.7, but this release writes 1\.0"):
        pack_small(tar, root)
    assert contents(root) == before


def test_what_is_packed_is_all_that_is_sound(sources, root):
    result = pack_small(sources, root)
    shards = {folder.name: arrays_of(folder) for folder in sorted(root.glob("shards/sa_*"))}
    samples = {name for shard in shards.values() for name in names_of(shard)}
    expected = {*range(100, 111), *range(200, 214), 300, 301, 302, *range(400, 406)}
    expected -= {103, 107, 109, *range(204, 212)}
    assert samples == {f"sa_{number}.jpg" for number in expected}
    assert result.images == len(expected) == sum(len(shard["size"]) for shard in shards.values())
    assert "sa_000001-003" in shards and "sa_000001-002" not in shards  # which has no sample
    assert len(rejects_of(root)) == 11 == result.rejects
    records = manifest_of(root)["sources"]
    assert [record["pairs"] for record in records] == [10, 14, 0, 6, 3]  # rejected ones, too
    assert records[0]["ignored"] == {"foreign": 1}
    assert records[0]["ignored_names"] == ["./readme.txt"]
