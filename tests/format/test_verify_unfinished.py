"""To both checkers, what a running or killed packer leaves is a note; damage is still found."""

import os
import shutil
import signal

import pytest
from format_files import as_json, manifest_of, publish, replace
from narrow_packs import NARROW, shard_of
from scenarios import Case, Stage
from verify_script import script_finds

import sa1bpack
from sa1bpack import verify

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


@pytest.fixture
def unfinished(pack):
    """A pack with a complete shard that the manifest does not list yet."""
    publish(pack, complete=False)
    shard_of(pack / "shards", SHARD, (2, 1), 7)
    return pack


def test_pack_without_a_shard_is_sound_but_not_complete(tmp_path):
    publish(tmp_path, [], layout=NARROW, complete=False)
    report = check(tmp_path)
    assert report.ok and not report.complete and report.notes == ()
    for path in tmp_path.rglob("*"):
        if path.name != "manifest.json" and path.is_file():
            path.unlink()
    (tmp_path / "shards").rmdir()
    (tmp_path / ".lock").write_text("")
    report = check(tmp_path)
    assert report.ok and not report.complete and "nothing is published yet" in report.notes[0]


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
    changed = manifest_of(pack) | {"counts": {"rejects": 1}}
    replace(pack / "manifest.json", as_json(changed))
    assert not check(pack).ok
    replace(pack / "manifest.json", as_json(changed | {"complete": False}))
    (pack / "rejects.jsonl").write_text("{}\n")
    report = check(pack)
    assert report.ok and "not up to date for manifest.json, rejects.jsonl" in report.notes[0]


@pytest.mark.parametrize("name", ["zarr.json", "shards/zarr.json", "index", "shard", "checksums"])
def test_other_damage_at_the_top_of_an_unfinished_pack_is_found(unfinished, name):
    path = {
        "index": next(unfinished.glob("index-*")) / "image_id/c.0",
        "shard": unfinished / "shards/sa_000000-001/checksums.xxh128",
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
    (pack / "index-0/zarr.json").write_text("{}")
    assert not check(pack).ok


def publish_all(root, **keys) -> None:
    """Publish all shards that there are."""
    publish(root, sorted(path.name for path in (root / "shards").glob("sa_*")), **keys)


def test_an_index_replaced_during_a_long_check_is_not_damage(unfinished):
    before = manifest_of(unfinished)["index"]
    report = verify(unfinished, progress=lambda done, total: publish_all(unfinished))
    assert manifest_of(unfinished)["index"] != before
    assert report.ok, report.problems


def test_an_index_replaced_between_manifest_and_index_is_not_damage(unfinished, monkeypatch):
    """The check starts again with the newly published state."""
    before = manifest_of(unfinished)["index"]
    real = os.open
    opened = []

    def open_late(path, *arguments, **options):
        if str(path).endswith(f"{before}/zarr.json"):
            publish_all(unfinished, complete=True)
            opened.append(path)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_late)
    report = verify(unfinished)
    assert report.ok and report.complete, report.problems
    assert len(opened) == 1 and manifest_of(unfinished)["index"] != before


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    """Tars, and undisturbed packs of them, which no test changes."""
    return Stage(tmp_path_factory.mktemp("stage"))


@pytest.mark.parametrize("call", ["rename", "unlink", "rmdir"])
@pytest.mark.parametrize("scenario", ["added", "withdrawn"])
def test_a_kill_is_no_damage(stage, tmp_path, request, scenario, call):
    """Of a run that adds to a complete pack, and of one that takes back what it has added. With
    --torture, at every call."""
    case = Case(stage, tmp_path / "case", scenario)
    whole = len(sa1bpack.open(stage.begun))
    call_count = case.calls(calls=(call,))
    step = 2 if call == "rename" else 8
    if request.config.getoption("torture"):
        step = 1
    for number in range(0, call_count, step):
        case.begin()
        code, said = case.run(case.plan("kill", at=number, calls=(call,)).apply)
        assert code == (-signal.SIGKILL if case.hits() else case.code), said
        report = check(case.root, quick=True)
        assert report.ok, (number, report.problems)
        assert len(sa1bpack.open(case.root)) >= whole
        assert report.complete == manifest_of(case.root)["complete"]


def test_unlisted_shard_of_a_complete_pack_is_a_problem(pack):
    shard_of(pack / "shards", SHARD, (2, 1), 7)
    (problem,) = check(pack).problems
    assert f"{SHARD}: not in the manifest" in problem.what
