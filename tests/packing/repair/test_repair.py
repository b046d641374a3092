"""`repair` rebuilds damaged shards from the same tars to the same bytes, and nothing else."""

import os
import shutil

import pytest
import simplejpeg
from edited_packs import FIRST, SECOND, flip, unfinished_pack
from format_files import manifest_of
from small_tars import SMALL, changed, contents, members, photo, rejects_of, write_tar

import sa1bpack
from sa1bpack import OptionError


def test_a_flipped_bit_in_a_file_of_a_shard_is_repaired(root, tars, expected):
    inside = f"shards/{SECOND}/"
    names = [name for name, data in expected.items() if name.startswith(inside) and data]
    assert len(names) == 38
    for number, name in enumerate(names[::9]):
        flip(root / name, at=(number % 7 + 1) / 8)
        result = sa1bpack.repair(root, tars, workers=1)
        assert (result.repaired, result.ok, result.rewritten) == ([SECOND], True, False), name
        assert contents(root) == expected, name


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json", "checksums.xxh128", "rejects.jsonl", "shards/zarr.json",
        f"shards/{SECOND}/checksums.xxh128", f"shards/{SECOND}/image/c.0.0.0.0",
    ],
)  # fmt: skip
def test_files_that_are_missing_cut_short_or_empty_are_rebuilt(root, tars, expected, name):
    path = root / name
    for spoil in (
        path.unlink, lambda: os.truncate(path, 0), lambda: os.truncate(path, 7),
        lambda: path.write_bytes(path.read_bytes() + b" "),
    ):  # fmt: skip
        spoil()
        result = sa1bpack.repair(root, tars, workers=1)
        assert result.ok and result.problems
        assert contents(root) == expected


def test_missing_exchanged_and_renamed_shards_are_rebuilt(root, tars, expected):
    shards = root / "shards"
    (shards / FIRST).rename(shards / "other")
    (shards / SECOND).rename(shards / FIRST)
    (shards / "other").rename(shards / SECOND)
    shutil.rmtree(shards / "sa_000001-002")
    result = sa1bpack.repair(root, tars, workers=2)
    assert sorted(result.repaired) == [FIRST, SECOND, "sa_000001-002"] and result.ok
    assert contents(root) == expected


@pytest.mark.parametrize(
    "layout",
    [{"fit": "native", "pixels": "yuv420", "masks": "runs"}, {"fit": "squash", "masks": "bits"}],
    ids=["native-yuv420-runs", "squash-bits"],
)
def test_every_layout_is_repaired_with_the_options_that_the_pack_records(tars, tmp_path, layout):
    root = tmp_path / "pack"
    chosen = {**SMALL, **layout, "max_masks": 2, "empty": "drop", "min_iou": 0.9}
    sa1bpack.pack(tars, root, workers=1, **chosen)
    before = contents(root)
    flip(next((root / "shards" / FIRST / "image").glob("c.*")))
    (root / "manifest.json").unlink()
    assert sa1bpack.repair(root, tars, workers=1).ok
    assert contents(root) == before


def test_only_pairs_and_tars_of_damaged_shards_are_read(root, tars, expected, monkeypatch):
    decoded, numbers = [], {photo(number): number for number in range(31)}

    def decode_jpeg(jpeg, *arguments, **options):
        if jpeg in numbers:  # and not one that only warms up
            decoded.append(numbers[jpeg])
        return original(jpeg, *arguments, **options)

    original = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", decode_jpeg)
    flip(root / "shards" / "sa_000001-001" / "image" / "c.0.0.0.0")
    before = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    shutil.copy(tars[1], root.parent / "sa_000001.tar")
    fake = root.parent / "sa_000000.tar"  # it is not read, only looked at
    fake.write_bytes(tars[0].read_bytes()[:600])
    assert sa1bpack.repair(root, root.parent / "*.tar", workers=1).ok
    ids = sa1bpack.open(root).from_shards("sa_000001-001").column("image_id")
    assert decoded == ids.tolist()
    for path, was in before.items():
        if "sa_000001-001" not in str(path) and path.name != ".lock":
            assert (path.stat().st_ino, path.stat().st_mtime_ns) == (was.st_ino, was.st_mtime_ns)
    assert contents(root) == expected


def test_a_shard_behind_a_link_is_replaced_and_its_target_untouched(root, tars, expected, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (root / "shards" / FIRST).rename(elsewhere)
    flip(elsewhere / "image" / "c.0.0.0.0")
    (root / "shards" / FIRST).symlink_to(elsewhere)
    before = contents(elsewhere)
    assert sa1bpack.repair(root, tars, workers=1).repaired == [FIRST]
    assert contents(root) == expected and contents(elsewhere) == before


# Unfinished packs, other processes, interruptions


def test_an_unfinished_pack_is_repaired_and_stays_unfinished(tmp_path):
    root = tmp_path / "pack"
    tar = unfinished_pack(root)
    before = contents(root)
    flip(root / "shards" / FIRST / "bbox" / "c.0.0")
    result = sa1bpack.repair(root, tar, workers=1)
    assert result.ok and result.repaired == [FIRST] and not result.complete
    assert contents(root) == before
    flip(root / "shards" / SECOND / "image" / "c.0.0.0.0")
    found = members(range(10)) | {"./sa_9.json": b"{ not json"}
    changed(found, 1, lambda record: record["image"].update(image_id=77))
    write_tar(tar, found, shuffle=None)
    result = sa1bpack.repair(root, tar, workers=1)
    assert "its pairs are others" in result.left[SECOND] and not manifest_of(root)["complete"]
    assert rejects_of(root) == []


def test_shards_that_are_named_are_read_in_full_and_others_checked_quickly(root, tars, expected):
    for name in (FIRST, SECOND):
        flip(root / "shards" / name / "image" / "c.0.0.0.0")
    flip(root / "shards" / "sa_000001-000" / "bbox" / "c.0.0")
    quickly = sa1bpack.repair(root, tars, workers=1, shards=[], dry_run=True)
    assert quickly.repaired == ["sa_000001-000"]  # its sample of shards differs, bytes do not count
    result = sa1bpack.repair(root, tars, workers=1, shards=[SECOND])
    assert sorted(result.repaired) == [SECOND, "sa_000001-000"] and result.ok
    assert {problem.shard for problem in sa1bpack.verify(root).problems} == {FIRST}
    with pytest.raises(OptionError, match=rf"no shard 'sa_9-000'; it has {FIRST} to .* \(\d+\)"):
        sa1bpack.repair(root, tars, shards=["sa_9-000"])
    assert sa1bpack.repair(root, tars, workers=1, shards=[FIRST]).ok
    assert contents(root) == expected
