"""The pack's own files (manifest, index, checksums) are rewritten from the shards."""

import shutil
from pathlib import Path

import pytest
from edited_packs import FIRST, SECOND, flip
from format_files import manifest_of
from on_ray import on_ray
from small_tars import contents, pack_small

import sa1bpack
from sa1bpack import FormatError, OptionError


def test_a_flipped_bit_in_any_file_of_the_pack_itself_is_repaired_from_shards(root, tars, expected):
    names = [name for name in expected if not name.startswith("shards/sa_") and expected[name]]
    assert len(names) == 14
    for number, name in enumerate(names):
        flip(root / name, at=(number % 7 + 1) / 8)
        result = sa1bpack.repair(root, tars, workers=1)
        assert (result.repaired, result.ok, result.rewritten) == ([], True, True), name
        assert contents(root) == expected, name


def test_a_folder_in_place_of_a_file_of_the_pack_itself_makes_way(root, tars, expected):
    """If it is empty: what is in another one is not the pack's, and stays."""
    names = [name for name in expected if not name.startswith("shards/sa_") and expected[name]]
    for name in names:
        (root / name).unlink()
        (root / name).mkdir()
        result = sa1bpack.repair(root, tars, workers=1)
        assert result.ok and result.rewritten, name
        assert contents(root) == expected, name
    top = [name for name in names if not name.startswith("index-")]
    for name in top:
        (root / name).unlink()
        (root / name / "mine").mkdir(parents=True)
        before = contents(root)
        with pytest.raises(FormatError) as caught:
            sa1bpack.repair(root, tars, workers=1)
        assert str(caught.value) == (
            f"{root / name}: a folder with other files, where a file of the pack must be; move it "
            "away, and repeat the command"
        )
        assert contents(root) == before
        shutil.rmtree(root / name)
        assert sa1bpack.repair(root, tars, workers=1).ok
        assert contents(root) == expected, name


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{"), flip])
def test_a_lost_manifest_is_rewritten_from_the_shards_and_the_tars(root, tars, expected, spoil):
    spoil(root / "manifest.json")
    flip(root / "shards" / SECOND / "area" / "c.0")
    shutil.rmtree(root / "shards" / "sa_000001-000")
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.complete and result.rewritten
    assert contents(root) == expected


def test_a_manifest_lost_with_the_tars_leaves_a_pack_to_complete(root, tars, expected):
    (root / "manifest.json").unlink()
    result = sa1bpack.repair(root, workers=1)
    assert result.ok and not result.complete
    assert "pack again with all tars" in result.notes[0]
    assert sa1bpack.verify(root).ok and not manifest_of(root)["complete"]
    assert len(sa1bpack.open(root)) == 20
    assert pack_small(tars, root).new_images == 0
    assert contents(root) == expected


def test_a_lost_manifest_is_rewritten_here_where_a_cluster_is_asked_for(
    root, tars, expected, monkeypatch
):
    """No task can: so no cluster is needed. The home folder is that of this process."""
    monkeypatch.setenv("HOME", str(tars[0].parent))
    monkeypatch.chdir(root)
    (root / "manifest.json").unlink()
    result = on_ray("repair")(root, "~/sa_*.tar", workers=1, progress=False)
    assert result.ok and contents(root) == expected
    (root / "manifest.json").unlink()
    with pytest.raises(OptionError, match="sources has 5: give paths and patterns"):
        on_ray("repair")(root, 5, progress=False)


def test_a_manifest_lost_with_a_shard_is_restored_by_a_repair_with_its_tar(root, tars, expected):
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    flip(root / "manifest.json")
    result = sa1bpack.repair(root, tars[1], workers=1)
    assert FIRST in result.left and not result.complete
    assert len(sa1bpack.open(root)) == 20  # the damaged shard stays listed
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.complete
    assert contents(root) == expected


def test_a_lost_manifest_needs_shards_that_agree_on_the_options(root, tars, tmp_path):
    other = tmp_path / "other"
    pack_small(tars[1], other, min_area=1)
    shutil.rmtree(root / "shards" / "sa_000001-000")
    (other / "shards" / "sa_000001-000").rename(root / "shards" / "sa_000001-000")
    (root / "manifest.json").unlink()
    before = contents(root)
    with pytest.raises(FormatError, match="its shards record different options"):
        sa1bpack.repair(root, tars, workers=1)
    for folder in (root / "shards").glob("sa_*"):
        flip(folder / "zarr.json")
    with pytest.raises(FormatError, match="its shards record no options"):
        sa1bpack.repair(root, tars, workers=1)
    assert contents(root).keys() == before.keys()


def test_the_index_is_rebuilt_although_a_shard_stays_damaged(root, tars, expected):
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    index = next(root.glob("index-*"))
    flip(index / "image_id" / "c.0")
    result = sa1bpack.repair(root, workers=1)
    assert list(result.left) == [FIRST] and result.rewritten
    found = contents(root)
    assert {name for name in found if found[name] != expected[name]} == {
        f"shards/{FIRST}/image/c.0.0.0.0"
    }


@pytest.mark.parametrize("name", ["checksums.xxh128", "zarr.json"])
def test_the_packs_own_files_stay_damaged_with_a_shard_they_misdescribe(root, tars, expected, name):
    flip(root / "shards" / FIRST / name)
    flip(root / "rejects.jsonl")
    before = contents(root)
    result = sa1bpack.repair(root, tars[1], workers=1)
    assert set(result.left) == {FIRST, "the pack's own files"} and not result.rewritten
    assert FIRST in result.left["the pack's own files"]
    assert contents(root) == before
    assert sa1bpack.repair(root, tars, workers=1).ok
    assert contents(root) == expected
