"""To both checkers, what a running or killed packer leaves is a note; damage is still found."""

import os
import shutil

import msgspec
import pytest
from narrow_packs import shard_of
from reading_packs import manifest_of
from verify_script import script_finds

from sa1bpack import verify
from sa1bpack.format import index as index_module
from sa1bpack.format.index import open_index, publish, remove_stale
from sa1bpack.format.layout import Layout
from sa1bpack.format.manifest import read_manifest, shard_folders, write_manifest
from sa1bpack.format.shard_reader import open_shard

SHARD = "sa_000002-000"


def check(root, quick=False):
    """The report on a pack, once the script has reached the same verdict."""
    report = verify(root, quick=quick)
    code, text = script_finds(root, *(["--quick"] if quick else []))
    assert code == (1 if not report.ok else 0 if report.complete else 5), (report, text)
    assert ("NOT COMPLETE" in text) != report.complete
    if report.ok:
        assert ("note: " in text) == bool(report.notes), (report, text)
    return report


def reopen(root):
    """Publish a pack as not complete, as a packer does before it changes one."""
    return publish(root, msgspec.structs.replace(read_manifest(root), complete=False))


@pytest.fixture
def unfinished(pack):
    """A pack with a complete shard that the manifest does not list yet."""
    reopen(pack)
    shard_of(pack / "shards", SHARD, (2, 1), 7)
    return pack


def test_pack_without_a_shard_is_sound_but_not_complete(tmp_path):
    empty = manifest_of(Layout(), [], complete=False)
    write_manifest(tmp_path, empty)
    (tmp_path / ".lock").write_text("")
    report = check(tmp_path)
    assert report.ok and not report.complete and "nothing is published yet" in report.notes[0]
    publish(tmp_path, empty)
    report = check(tmp_path)
    assert report.ok and not report.complete and report.notes == ()


@pytest.mark.parametrize("quick", [False, True])
def test_unlisted_shard_of_an_unfinished_pack_is_a_note_and_is_counted(unfinished, quick):
    report = check(unfinished, quick)
    assert report.ok and not report.complete
    (note,) = report.notes
    assert SHARD in note and "not in the manifest yet" in note
    assert (report.counts["shards"], report.counts["samples"], report.counts["masks"]) == (4, 9, 18)


def test_damage_in_an_unlisted_shard_is_found(unfinished):
    paths = [path for path in (unfinished / "shards" / SHARD).rglob("*") if path.is_file()]
    assert len(paths) == 38
    for path in sorted(paths)[::4]:
        whole = path.read_bytes()
        path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        report = check(unfinished)
        assert not report.ok and report.problems[0].shard == SHARD, path
        path.write_bytes(whole)
    assert check(unfinished).ok


@pytest.mark.parametrize("name", ["stranger", "stranger.txt"])
def test_what_is_not_a_shard_is_a_problem_in_an_unfinished_pack(unfinished, name):
    path = unfinished / "shards" / name
    path.write_text("x") if name.endswith(".txt") else path.mkdir()
    report = check(unfinished)
    assert not report.ok and name in str(report.problems[0])


def test_stale_checksums_are_a_note_only_while_the_pack_is_unfinished(pack):
    manifest = read_manifest(pack)
    changed = msgspec.structs.replace(manifest, counts={"rejects": 1})
    write_manifest(pack, changed)
    assert not check(pack).ok
    write_manifest(pack, msgspec.structs.replace(changed, complete=False))
    (pack / "rejects.jsonl").write_text("{}\n")
    report = check(pack)
    assert report.ok and "not up to date for manifest.json, rejects.jsonl" in report.notes[0]


@pytest.mark.parametrize("name", ["zarr.json", "shards/zarr.json", "index", "shard", "checksums"])
def test_other_damage_at_the_top_of_an_unfinished_pack_is_found(unfinished, name):
    path = {
        "index": next(unfinished.glob("index-*")) / "image_id" / "c.0",
        "shard": unfinished / "shards" / "sa_000000-001" / "checksums.xxh128",
        "checksums": unfinished / "checksums.xxh128",
    }.get(name, unfinished / name)
    whole = path.read_bytes()
    path.unlink()
    assert not check(unfinished).ok
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert not check(unfinished).ok


def test_index_that_the_manifest_does_not_name_is_a_note(pack):
    shutil.copytree(next(pack.glob("index-*")), pack / "index-00000000")
    report = check(pack)
    assert report.ok and "index-00000000: an index that the manifest" in report.notes[0]
    (pack / "index-0").mkdir()
    (pack / "index-0" / "zarr.json").write_text("{}")
    assert not check(pack).ok


def all_shards(root, complete):
    """A manifest of all published shards."""
    entries = [open_shard(folder).entry for folder in shard_folders(root)]
    return manifest_of(read_manifest(root).layout, entries, complete=complete)


def test_an_index_replaced_during_a_long_check_is_not_damage(unfinished):
    manifest = read_manifest(unfinished)
    grown = all_shards(unfinished, complete=False)
    published = []

    def publish_meanwhile(done, total):
        if not published:
            published.append(publish(unfinished, grown))

    report = verify(unfinished, progress=publish_meanwhile)
    assert published and published[0].index != manifest.index
    assert report.ok, report.problems


def test_an_index_replaced_between_manifest_and_index_is_not_damage(unfinished, monkeypatch):
    """The check starts again with the newly published state."""
    manifest = read_manifest(unfinished)
    grown = all_shards(unfinished, complete=True)
    real, opened = index_module.open_index, []

    def open_late(root, manifest):
        if not opened:
            publish(unfinished, grown)
        opened.append(manifest.index)
        return real(root, manifest)

    monkeypatch.setattr(index_module, "open_index", open_late)
    report = verify(unfinished)
    assert report.ok and report.complete, report.problems
    assert opened == [manifest.index, read_manifest(unfinished).index]


class Killed(Exception):
    """Stands for the end of the process."""


def killed_after(step: str, survivors: int):
    """In place of `os.step`: each call raises Killed, except the first `survivors`, and opening a
    file for reading."""
    real, left = getattr(os, step), iter(range(survivors))

    def call(*arguments, **options):
        counts = step != "open" or arguments[1] & (os.O_CREAT | os.O_DIRECTORY)
        if counts and next(left, None) is None:
            raise Killed
        return real(*arguments, **options)

    return call


@pytest.mark.parametrize(
    ("step", "stride", "complete"),
    [("rename", 1, True), ("rename", 1, False), ("unlink", 1, True), ("open", 5, False),
     ("fsync", 5, True)],
)  # fmt: skip
def test_a_kill_is_no_damage(pristine_pack, tmp_path, monkeypatch, step, stride, complete):
    """Fail every call, or every fifth, of a run that reopens a pack and adds a shard."""
    kills = 0
    for survivors in range(0, 1000, stride):
        root = shutil.copytree(pristine_pack, tmp_path / str(survivors))
        old = read_manifest(root)
        call = killed_after(step, survivors)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, step, call)
                reopen(root)
            entry = shard_of(root / "shards", SHARD, (1,), 7)
            new = manifest_of(old.layout, [*old.shards, entry], complete=complete)
            with monkeypatch.context() as patch:
                patch.setattr(os, step, call)
                publish(root, new)
            break
        except Killed:
            kills += 1
            report = check(root, quick=True)
            assert report.ok, (survivors, report.problems)
            found = read_manifest(root)
            assert report.complete == found.complete
            assert (
                found.samples in (7, 8) and len(open_index(root, found).image_id) == found.samples
            )
            if found.samples == 7 and (root / "shards" / SHARD).exists():
                remove_stale(root)
                publish(root, new)
                assert check(root, quick=True).ok
            shutil.rmtree(root)
    assert kills > 1
    report = check(root)
    assert report.ok and report.notes == () and report.complete == complete


def test_unlisted_shard_of_a_complete_pack_is_a_problem(pack):
    shard_of(pack / "shards", SHARD, (2, 1), 7)
    (problem,) = check(pack).problems
    assert f"{SHARD}: not in the manifest" in problem.what
