"""`repair` makes anew what is damaged, from the same tars to the same bytes, and nothing else."""

import os
import random
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from small_tars import SMALL, changed, contents, members, rejects_of, write_tar
from unprivileged import without_privileges

import sa1bpack
from sa1bpack.errors import (
    FormatError,
    NotAPack,
    OptionError,
    OutputLocked,
    SourceError,
    VersionError,
)
from sa1bpack.format import open_shard, publish, read_manifest
from sa1bpack.format.checksums import file_digest, format_checksums, read_checksums
from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.pack_state import PackState
from sa1bpack.packing.repair.run import OWN_FILES

FIRST, SECOND = "sa_000000-000", "sa_000000-001"
# The format's version in a manifest and in a group: what is before and behind its minor number.
VERSION, FORMAT = (rb'("%s":\s*\[\s*1,\s*)0(\s*\])' % key for key in (b"version", b"format"))


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    """Two tars of eleven photos: six shards, a reject in one, and one of a whole source."""
    folder = tmp_path_factory.mktemp("repair")
    found = members(range(11))
    found["./sa_5.json"] = b"{ not json"
    del found["./sa_10.json"]
    return [
        write_tar(folder / "sa_000000.tar", found, shuffle=3),
        write_tar(folder / "sa_000001.tar", members(range(20, 31)), shuffle=4),
    ]


@pytest.fixture(scope="module")
def sound(tars, tmp_path_factory) -> Path:
    """An undisturbed pack of `tars`; copied, never changed."""
    root = tmp_path_factory.mktemp("repair") / "pack"
    sa1bpack.pack(tars, root, workers=1, **SMALL)
    return root


@pytest.fixture(scope="module")
def expected(sound) -> dict[str, bytes]:
    return contents(sound)


@pytest.fixture
def root(sound, tmp_path) -> Path:
    return shutil.copytree(sound, tmp_path / "pack")


def flip(path: Path, at: float = 0.5) -> None:
    """Flip a bit of one byte, `at` of the way through a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


def files_of(expected: dict[str, bytes], *, shard: str | None) -> list[str]:
    """Files with bytes in them: of one shard, or of the pack itself."""
    inside = f"shards/{shard}/" if shard else ""
    own = [name for name in expected if not name.startswith("shards/sa_")]
    names = [name for name in expected if name.startswith(inside)] if shard else own
    return [name for name in names if expected[name]]


def test_a_flipped_bit_in_any_file_of_a_shard_is_mended(root, tars, expected):
    names = files_of(expected, shard=SECOND)
    assert len(names) == 38
    for number, name in enumerate(names):
        flip(root / name, at=(number % 7 + 1) / 8)
        result = sa1bpack.repair(root, tars, workers=1)
        assert (result.repaired, result.ok, result.rewritten) == ([SECOND], True, False), name
        assert contents(root) == expected, name


def test_a_flipped_bit_in_any_file_of_the_pack_itself_is_mended_from_the_shards(
    root, tars, expected
):
    names = files_of(expected, shard=None)
    assert len(names) == 14
    for number, name in enumerate(names):
        flip(root / name, at=(number % 7 + 1) / 8)
        result = sa1bpack.repair(root, tars, workers=1)
        assert (result.repaired, result.ok, result.rewritten) == ([], True, True), name
        assert contents(root) == expected, name


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json", "checksums.xxh128", "rejects.jsonl", "zarr.json", "shards/zarr.json",
        f"shards/{SECOND}/zarr.json", f"shards/{SECOND}/checksums.xxh128",
        f"shards/{SECOND}/image/c.0.0.0.0", f"shards/{SECOND}/bbox/zarr.json",
    ],
)  # fmt: skip
def test_files_that_are_missing_cut_short_or_empty_are_made_anew(root, tars, expected, name):
    path = root / name
    for spoil in (
        path.unlink, lambda: os.truncate(path, 0), lambda: os.truncate(path, 7),
        lambda: path.write_bytes(path.read_bytes() + b" "),
    ):  # fmt: skip
        spoil()
        result = sa1bpack.repair(root, tars, workers=1)
        assert result.ok and result.problems
        assert contents(root) == expected


def test_damage_in_many_places_at_once_is_mended(root, tars, expected):
    rng = random.Random(11)
    names = [name for name, data in expected.items() if data]
    for _ in range(8):
        for name in rng.sample(names, rng.randint(2, 6)):
            flip(root / name, rng.random())
        if rng.random() < 0.3:
            shutil.rmtree(root / "shards" / rng.choice(["sa_000001-000", FIRST]))
        assert sa1bpack.repair(root, tars, workers=1).ok
        assert contents(root) == expected


@pytest.mark.parametrize("workers", [1, 2])
def test_missing_exchanged_and_renamed_shards_are_made_anew(root, tars, expected, workers):
    shards = root / "shards"
    (shards / FIRST).rename(shards / "other")
    (shards / SECOND).rename(shards / FIRST)
    (shards / "other").rename(shards / SECOND)
    shutil.rmtree(shards / "sa_000001-002")
    result = sa1bpack.repair(root, tars, workers=workers)
    assert sorted(result.repaired) == [FIRST, SECOND, "sa_000001-002"] and result.ok
    assert contents(root) == expected


@pytest.mark.parametrize(
    "layout",
    [{"fit": "native", "pixels": "yuv420", "masks": "runs"}, {"fit": "squash", "masks": "bits"}],
    ids=["native-yuv420-runs", "squash-bits"],
)
def test_every_layout_is_mended_with_the_options_that_the_pack_records(tars, tmp_path, layout):
    root = tmp_path / "pack"
    chosen = {**SMALL, **layout, "max_masks": 2, "empty": "drop", "min_iou": 0.9}
    sa1bpack.pack(tars, root, workers=1, **chosen)
    before = contents(root)
    flip(next((root / "shards" / FIRST / "image").glob("c.*")))
    (root / "manifest.json").unlink()
    assert sa1bpack.repair(root, tars, workers=1).ok
    assert contents(root) == before


def test_only_pairs_of_damaged_shards_are_decoded_and_only_their_tars_read(
    root, tars, expected, monkeypatch
):
    decoded = []

    def attempt(file_name, *arguments):
        decoded.append(file_name)
        return original(file_name, *arguments)

    from sa1bpack.packing.execution import inline

    original = inline.attempt
    monkeypatch.setattr(inline, "attempt", attempt)
    flip(root / "shards" / "sa_000001-001" / "image" / "c.0.0.0.0")
    before = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    shutil.copy(tars[1], root.parent / "sa_000001.tar")
    fake = root.parent / "sa_000000.tar"  # it is not read, only looked at
    fake.write_bytes(tars[0].read_bytes()[:600])
    assert sa1bpack.repair(root, root.parent / "*.tar", workers=1).ok
    names = open_shard(root / "shards" / "sa_000001-001")["file_name"]
    assert decoded == [bytes(name).rstrip(b"\0").decode() for name in names]
    for path, was in before.items():
        if "sa_000001-001" not in str(path) and path.name != ".lock":
            assert (path.stat().st_ino, path.stat().st_mtime_ns) == (was.st_ino, was.st_mtime_ns)
    assert contents(root) == expected


def test_a_sound_pack_is_left_alone_and_said_to_be_sound(root, tars, expected):
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.complete
    assert (result.problems, result.repaired, result.rewritten) == ((), [], False)
    assert contents(root) == expected


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
    assert "but the pack was made from one of" in result.left[FIRST]
    cut = tmp_path / "other" / "sa_000000.tar"
    cut.write_bytes(tars[0].read_bytes()[:-4000] + bytes(4000))
    result = sa1bpack.repair(root, cut, workers=1)
    assert str(cut) in result.left[FIRST]
    assert contents(root) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_a_tar_of_the_same_size_and_other_images_is_refused_by_its_md5(tmp_path, workers):
    found = members(range(10))
    tar = write_tar(tmp_path / "sa_000000.tar", found, shuffle=None, compress=False)
    root = tmp_path / "pack"
    sa1bpack.pack(tar, root, workers=1, **SMALL)
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    before = contents(root)
    data = bytearray(tar.read_bytes())
    place = data.index(found["./sa_9.jpg"]) + len(found["./sa_9.jpg"]) - 20
    data[place] ^= 1  # in the last shard, which is damaged neither in the pack nor made anew
    tar.write_bytes(data)
    result = sa1bpack.repair(root, tar, workers=workers)
    assert result.repaired == []
    assert "its pairs differ" in result.left[FIRST]
    shutil.rmtree(root / "shards" / "sa_000000-002")
    result = sa1bpack.repair(root, tar, workers=workers)
    assert result.repaired == []
    assert "md5 is" in result.left[FIRST] and "md5 is" in result.left["sa_000000-002"]
    assert contents(root) == {
        name: data for name, data in before.items() if "sa_000000-002" not in name
    }


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


def test_a_shard_that_lies_elsewhere_behind_a_link_is_replaced_and_the_other_place_untouched(
    root, tars, expected, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    (root / "shards" / FIRST).rename(elsewhere)
    flip(elsewhere / "image" / "c.0.0.0.0")
    (root / "shards" / FIRST).symlink_to(elsewhere)
    before = contents(elsewhere)
    assert sa1bpack.repair(root, tars, workers=1).repaired == [FIRST]
    assert contents(root) == expected and contents(elsewhere) == before


def test_an_array_that_lies_elsewhere_behind_a_link_is_checked_and_mended(
    root, tars, expected, tmp_path
):
    elsewhere, image = tmp_path / "elsewhere", root / "shards" / FIRST / "image"
    image.rename(elsewhere)
    image.symlink_to(elsewhere)
    assert sa1bpack.repair(root, tars, workers=1).problems == ()
    flip(elsewhere / "c.0.0.0.0")
    before = contents(elsewhere)
    assert sa1bpack.repair(root, tars, workers=1).repaired == [FIRST]
    assert not image.is_symlink()
    assert contents(root) == expected and contents(elsewhere) == before
    shutil.rmtree(image)
    image.symlink_to(tmp_path / "gone")
    assert sa1bpack.repair(root, tars, workers=1).repaired == [FIRST]
    assert contents(root) == expected


@pytest.mark.parametrize("kind", ["linked", "file", "dangling"])
def test_an_index_that_is_no_folder_is_made_anew(root, expected, tmp_path, kind):
    elsewhere, index = tmp_path / "elsewhere", next(root.glob("index-*"))
    (root / "index-notes").mkdir()  # not the name of an index: the user's
    index.rename(elsewhere)
    if kind == "file":
        index.write_text("x")
    else:
        index.symlink_to(elsewhere if kind == "linked" else tmp_path / "gone")
    flip(root / "rejects.jsonl")
    before = contents(elsewhere)
    result = sa1bpack.repair(root, workers=1)
    assert result.rewritten and not result.left
    assert contents(root) == {**expected, "index-notes": b""}
    assert not index.is_symlink() and contents(elsewhere) == before


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "checksums.xxh128", "zarr.json", "rejects.jsonl", "shards/zarr.json"],
)
def test_a_folder_in_the_place_of_a_file_is_named_with_the_remedy(root, tars, expected, name):
    (root / name).unlink()
    (root / name).mkdir()
    before = contents(root)
    with pytest.raises(FormatError, match=f"{name}: a folder, where a file must be; move it out"):
        sa1bpack.repair(root, tars, workers=1)
    assert contents(root) == before
    (root / name).rename(root.parent / "aside")
    assert sa1bpack.repair(root, tars, workers=1).ok
    assert contents(root) == expected


# The manifest


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("{"), flip])
def test_a_lost_manifest_is_made_of_the_shards_and_the_tars(root, tars, expected, spoil):
    spoil(root / "manifest.json")
    flip(root / "shards" / SECOND / "run_ends" / "c.0")
    shutil.rmtree(root / "shards" / "sa_000001-000")
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.complete and result.rewritten
    assert contents(root) == expected


def test_a_manifest_lost_with_the_tars_leaves_a_pack_that_the_packer_completes(
    root, tars, expected, manifest_of
):
    (root / "manifest.json").unlink()
    result = sa1bpack.repair(root, workers=1)
    assert result.ok and not result.complete
    assert "pack again, with all tars" in result.notes[0]
    assert sa1bpack.verify(root).ok and not manifest_of(root)["complete"]
    assert len(sa1bpack.open(root)) == 20
    assert sa1bpack.pack(tars, root, workers=1, **SMALL).new_images == 0
    assert contents(root) == expected


def test_a_lost_manifest_needs_shards_that_agree_on_the_options(root, tars, tmp_path):
    other = tmp_path / "other"
    sa1bpack.pack(tars[1], other, workers=1, **SMALL, min_area=1)
    shutil.rmtree(root / "shards" / "sa_000001-000")
    (other / "shards" / "sa_000001-000").rename(root / "shards" / "sa_000001-000")
    (root / "manifest.json").unlink()
    before = contents(root)
    with pytest.raises(FormatError, match="the shards record different options"):
        sa1bpack.repair(root, tars, workers=1)
    for folder in (root / "shards").glob("sa_*"):
        flip(folder / "zarr.json")
    with pytest.raises(FormatError, match="no shard records what was packed"):
        sa1bpack.repair(root, tars, workers=1)
    assert contents(root).keys() == before.keys()


def test_a_folder_without_a_pack_and_sources_that_are_not_there_are_refused(root, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotAPack, match="no pack"):
        sa1bpack.repair(tmp_path)
    with pytest.raises(SourceError, match="no such file"):
        sa1bpack.repair(root, tmp_path / "none.tar")
    assert not (tmp_path / ".lock").exists()


def test_a_file_in_the_place_of_all_shards_is_refused(root, tars):
    shutil.rmtree(root / "shards")
    (root / "shards").write_text("mine")
    before = contents(root)
    with pytest.raises(FormatError, match="shards: a file, where the folder of the shards must be"):
        sa1bpack.repair(root, tars, workers=1)
    assert contents(root) == before


# Damage that stays, beside damage that goes


def test_a_shard_that_may_not_be_read_is_left_and_the_others_are_mended(root, tars, expected):
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


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("name", ["manifest.json", "checksums.xxh128"])
def test_a_pack_whose_own_records_may_not_be_read_is_not_repaired(
    root, tars, expected, name, dry_run
):
    (root / name).chmod(0)
    with without_privileges(), pytest.raises(PermissionError, match=name):
        sa1bpack.repair(root, tars, workers=1, dry_run=dry_run)
    (root / name).chmod(0o644)
    assert contents(root) == expected


def test_the_index_is_made_anew_although_a_shard_stays_damaged(root, tars, expected):
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
def test_the_packs_own_files_stay_damaged_with_a_shard_that_they_would_describe_wrongly(
    root, tars, expected, name
):
    flip(root / "shards" / FIRST / name)
    flip(root / "rejects.jsonl")
    before = contents(root)
    result = sa1bpack.repair(root, tars[1], workers=1)
    assert set(result.left) == {FIRST, OWN_FILES} and not result.rewritten
    assert FIRST in result.left[OWN_FILES]
    assert contents(root) == before
    assert sa1bpack.repair(root, tars, workers=1).ok
    assert contents(root) == expected


# Other versions


@pytest.fixture
def other_versions(monkeypatch):
    versions = {"sa1bpack": "9.9"}
    monkeypatch.setattr("sa1bpack.packing.repair.run.versions_in_force", lambda: versions)
    return versions


def test_other_versions_are_told_with_what_is_the_same(root, tars, expected, other_versions):
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    result = sa1bpack.repair(root, tars, workers=1)
    assert result.ok and result.repaired == [FIRST] and result.rewritten
    (note,) = result.notes
    assert "by sa1bpack 9.9; it was packed by " in note
    assert "4 of 4 samples are identical" in note
    report = sa1bpack.verify(root)
    assert report.ok and report.complete
    found = contents(root)
    differing = {name for name in found.keys() & expected.keys() if found[name] != expected[name]}
    assert {f"shards/{FIRST}/zarr.json", f"shards/{FIRST}/checksums.xxh128"} == {
        name for name in differing if name.startswith("shards")
    }


def test_other_versions_cannot_replace_a_shard_where_the_pack_cannot_be_published(
    root, tars, other_versions
):
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    flip(root / "shards" / "sa_000001-000" / "zarr.json")
    before = contents(root)
    result = sa1bpack.repair(root, tars[0], workers=1)
    assert result.repaired == [] and FIRST in result.left
    assert "as long as sa_000001-000 is damaged" in result.left[FIRST]
    assert contents(root) == before


def newer(path: Path, old: bytes, *, listed: bool) -> None:
    """Make a file one of format 1.1, as its folder's checksum file then says if `listed`."""
    data = path.read_bytes()
    path.write_bytes(re.sub(old, rb'\g<1>1\2, "new": 1', data, count=1))
    assert path.read_bytes() != data
    if listed:
        sums = path.with_name("checksums.xxh128")
        digests = read_checksums(sums) | {path.name: file_digest(path)}
        sums.write_bytes(format_checksums(digests))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("complete", [True, False])
def test_a_pack_of_a_newer_minor_version_is_refused_and_stays(root, tars, listed, complete):
    manifest = root / "manifest.json"
    if not complete:
        manifest.write_text(manifest.read_text().replace('"complete": true', '"complete": false'))
        assert '"complete": false' in manifest.read_text()
    newer(manifest, VERSION, listed=listed)
    flip(root / "rejects.jsonl")
    (root / "shards" / ".tmp-left").mkdir()
    before = contents(root)
    for dry_run in (True, False):
        with pytest.raises(VersionError, match=r"format version 1\.1, but this release writes"):
            sa1bpack.repair(root, tars, workers=1, dry_run=dry_run)
    assert contents(root) == before


@pytest.mark.parametrize("folder", [".", f"shards/{FIRST}"])
def test_the_groups_of_a_newer_minor_version_speak_for_a_lost_manifest(root, tars, folder):
    newer(root / folder / "zarr.json", FORMAT, listed=True)
    (root / "manifest.json").unlink()
    before = contents(root)
    with pytest.raises(VersionError, match=r"zarr\.json: format version 1\.1"):
        sa1bpack.repair(root, tars, workers=1)
    assert contents(root) == before


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("name", ["manifest.json", "zarr.json", f"shards/{FIRST}/zarr.json"])
def test_a_version_that_is_the_only_damage_is_mended(root, tars, expected, name, complete):
    if not complete:
        publish(root, msgspec.structs.replace(read_manifest(root), complete=False))
        expected = contents(root)
    path = root / name
    pattern = VERSION if name == "manifest.json" else FORMAT
    path.write_bytes(re.sub(pattern, rb"\g<1>1\2", path.read_bytes(), count=1))
    assert contents(root) != expected
    assert sa1bpack.repair(root, tars, workers=1).ok
    assert contents(root) == expected


# Unfinished packs, other processes, interruptions


def test_an_unfinished_pack_is_mended_and_stays_unfinished(tmp_path, manifest_of):
    found = members(range(10))
    found["./sa_9.json"] = b"{ not json"
    tar = write_tar(tmp_path / "sa_000000.tar", found, shuffle=None)
    root = tmp_path / "pack"
    with pytest.raises(sa1bpack.errors.TooManyRejects):
        sa1bpack.pack(tar, root, workers=1, max_rejects=0, **SMALL)
    before = contents(root)
    flip(root / "shards" / FIRST / "bbox" / "c.0.0")
    result = sa1bpack.repair(root, tar, workers=1)
    assert result.ok and result.repaired == [FIRST] and not result.complete
    assert contents(root) == before
    flip(root / "shards" / SECOND / "image" / "c.0.0.0.0")
    changed(found, 1, lambda record: record["image"].update(image_id=77))
    write_tar(tar, found, shuffle=None)
    result = sa1bpack.repair(root, tar, workers=1)
    assert "its pairs differ" in result.left[SECOND] and not manifest_of(root)["complete"]
    assert rejects_of(root) == []


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(root, tars):
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    flip(root / "shards" / "sa_000001-001" / "image" / "c.0.0.0.0")
    (root / "rejects.jsonl").unlink()
    (root / ".lock").unlink()
    before = contents(root)
    result = sa1bpack.repair(root, tars[0], dry_run=True)
    assert (result.repaired, result.rewritten, result.dry_run) == ([FIRST], True, True)
    assert list(result.left) == ["sa_000001-001"]
    assert contents(root) == before


def test_shards_that_are_named_are_read_in_full_and_the_others_checked_quickly(
    root, tars, expected
):
    for name in (FIRST, SECOND):
        flip(root / "shards" / name / "image" / "c.0.0.0.0")
    flip(root / "shards" / "sa_000001-000" / "bbox" / "c.0.0")
    result = sa1bpack.repair(root, tars, workers=1, shards=[SECOND])
    assert sorted(result.repaired) == [SECOND, "sa_000001-000"] and result.ok
    assert {problem.shard for problem in sa1bpack.verify(root).problems} == {FIRST}
    with pytest.raises(OptionError, match="no shard 'sa_9-000'"):
        sa1bpack.repair(root, tars, shards=["sa_9-000"])
    assert sa1bpack.repair(root, tars, workers=1, shards=[FIRST]).ok
    assert contents(root) == expected


def test_a_folder_that_is_packed_into_is_refused(root, tars):
    state = PackState(root, PackOptions(**SMALL))
    with pytest.raises(OutputLocked):
        sa1bpack.repair(root, tars, workers=1)
    state.release()
    assert sa1bpack.repair(root, tars, workers=1).ok


def test_a_damaged_shard_stays_until_its_replacement_is_whole(root, tars, monkeypatch):
    flip(root / "shards" / FIRST / "image" / "c.0.0.0.0")
    before = contents(root)

    def inspect(*_):
        found = contents(root)
        assert found.items() >= before.items()
        raise KeyboardInterrupt

    monkeypatch.setattr("sa1bpack.packing.repair.run.put_in_place", inspect)
    with pytest.raises(KeyboardInterrupt):
        sa1bpack.repair(root, tars, workers=1)
    assert contents(root) == before
