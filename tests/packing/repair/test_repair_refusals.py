"""What `repair` leaves as it is: what it must not touch, and what it cannot repair."""

import shutil

import pytest
from edited_packs import FIRST, SECOND, flip, forget_xxh128
from small_tars import contents, members, pack_small, write_tar
from system import without_privileges

import sa1bpack


def test_what_lacks_its_tar_is_left_as_it_was_and_named(root, tars, expected):
    flip(root / "shards" / FIRST / "mask_bits" / "c.0.0.0")
    flip(root / "shards" / "sa_000001-000" / "area" / "c.0")
    left = contents(root)[f"shards/{FIRST}/mask_bits/c.0.0.0"]
    result = sa1bpack.repair(root, tars[1], workers=1)
    assert result.repaired == ["sa_000001-000"] and not result.ok
    assert result.left == {FIRST: "the source sa_000000 is needed, but was not given"}
    assert contents(root) == {**expected, f"shards/{FIRST}/mask_bits/c.0.0.0": left}
    assert {problem.shard for problem in sa1bpack.verify(root).problems} == {FIRST}


def test_a_tar_that_is_not_the_one_that_was_packed_changes_nothing(root, tars, tmp_path):
    (tmp_path / "other").mkdir()
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    before = contents(root)
    longer = write_tar(tmp_path / "other" / "sa_000000.tar", members(range(12)))
    result = sa1bpack.repair(root, longer, workers=1)
    assert "bytes, not" in result.left[FIRST]
    cut = tmp_path / "other" / "sa_000000.tar"
    cut.write_bytes(tars[0].read_bytes()[:-4000] + bytes(4000))
    result = sa1bpack.repair(root, cut, workers=1)
    assert str(cut) in result.left[FIRST]
    assert contents(root) == before


@pytest.mark.parametrize("earlier", [True, False], ids=["earlier release", "this one"])
def test_a_tar_of_the_same_size_and_other_images_is_refused_by_its_digest(tmp_path, earlier):
    found = members(range(10))
    tar = write_tar(tmp_path / "sa_000000.tar", found, shuffle=None, compress=False)
    root = tmp_path / "pack"
    pack_small(tar, root, md5=earlier)
    if earlier:
        forget_xxh128(root)
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    before = contents(root)
    data = bytearray(tar.read_bytes())
    place = data.index(found["./sa_9.jpg"]) + len(found["./sa_9.jpg"]) - 20
    data[place] ^= 1  # in the last shard, which is damaged neither in the pack nor rebuilt
    tar.write_bytes(data)
    result = sa1bpack.repair(root, tar, workers=1)
    assert result.repaired == []
    assert "its pairs are others" in result.left[FIRST]
    shutil.rmtree(root / "shards" / "sa_000000-002")
    result = sa1bpack.repair(root, tar, workers=1)
    assert result.repaired == []
    kind = "md5 is" if earlier else "XXH3-128 is"
    assert kind in result.left[FIRST] and kind in result.left["sa_000000-002"]
    assert contents(root) == {
        name: data for name, data in before.items() if "sa_000000-002" not in name
    }


def test_a_pack_of_an_earlier_release_is_repaired_to_its_bytes(root, tars):
    shutil.rmtree(root)
    pack_small(tars, root, md5=True)
    forget_xxh128(root)
    expected = contents(root)
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.repaired == [FIRST]
    assert contents(root) == expected


def test_files_that_are_not_the_packs_are_listed_and_never_touched(root, tars, expected):
    for name in ("notes.txt", f"shards/{FIRST}/notes.txt", "shards/notes.txt"):
        (root / name).write_text("mine")
    (root / "shards" / "mine-000").mkdir()
    before = contents(root)
    result = sa1bpack.repair(root, tars, workers=1)
    assert (result.repaired, result.left, result.ok) == ([], {}, False)
    assert len(result.extra) == 4 and contents(root) == before
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    result = sa1bpack.repair(root, tars, workers=1)
    assert "move them away first" in result.left[FIRST]
    assert (root / "shards" / FIRST / "notes.txt").read_text() == "mine"
    (root / "shards" / FIRST / "notes.txt").unlink()
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.repaired == [FIRST] and len(result.extra) == 3
    assert contents(root).items() >= expected.items()


# Damage that stays, beside damage that goes


def test_a_shard_that_may_not_be_read_is_left_and_the_others_are_repaired(root, tars, expected):
    hidden = root / "shards" / FIRST / "bbox" / "c.0.0"
    hidden.chmod(0)
    flip(root / "shards" / SECOND / "image" / "c.0.0.0.0")
    (root / "rejects.jsonl").unlink()
    with without_privileges():
        result = sa1bpack.repair(root, tars, workers=1)
    assert (result.repaired, list(result.left)) == ([SECOND], [FIRST])
    assert result.left[FIRST].startswith(f"{hidden}: cannot be read: Permission denied")
    hidden.chmod(0o644)
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.repaired == [] and contents(root) == expected


@pytest.mark.parametrize("name", ["manifest.json", "checksums.xxh128"])
def test_a_pack_whose_own_records_may_not_be_read_is_not_repaired(root, tars, expected, name):
    (root / name).chmod(0)
    with without_privileges(), pytest.raises(PermissionError, match=name):
        sa1bpack.repair(root, tars, workers=1)
    (root / name).chmod(0o644)
    assert contents(root) == expected


def test_a_dry_run_reports_what_would_be_done_and_writes_nothing(root, tars):
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    flip(root / "shards" / "sa_000001-001" / "image" / "c.0.0.0.0")
    (root / "rejects.jsonl").unlink()
    (root / ".lock").unlink()
    before = contents(root)
    result = sa1bpack.repair(root, tars[0], dry_run=True)
    assert (result.repaired, result.rewritten, result.dry_run) == ([FIRST], True, True)
    assert list(result.left) == ["sa_000001-001"]
    assert result.plan == [f"rebuild {FIRST} from {tars[0]}", "rewrite the pack's own files"]
    assert contents(root) == before
