"""Both checkers find every kind of damage, agree, and name the sample that was hit."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from damage import HEAVY_ARRAYS
from edited_packs import edit, flip, rewrite_checksums, rewrite_sample
from format_files import SUMS, digest_pack, manifest_of
from shard_files import writable_array
from small_tars import contents
from system import failing
from verify_script import SCRIPT, script, script_finds

from sa1bpack import FormatError, verify
from sa1bpack.errors import VersionError

SHARD = "sa_000000-000"


def run_script(root, *options):
    """The stand-alone script as a process of its own, with sa1bpack out of reach."""
    return subprocess.run(
        [sys.executable, "-I", str(SCRIPT), str(root), *options], capture_output=True, text=True
    )


def test_sound_pack_passes_both_checkers_full_and_quick(pristine_pack):
    report = verify(pristine_pack)
    assert report.ok and report.problems == ()
    assert report.counts == {
        "shards": 3, "samples": 7, "masks": 15, "files": 37 + (1 + 18 + 2) + 37 + (3 + 9 + 3),
        "bytes": sum(shard["bytes"] for shard in manifest_of(pristine_pack)["shards"]),
    }  # fmt: skip
    assert verify(pristine_pack, quick=True).ok
    for options in ([], ["--quick"]):
        done = run_script(pristine_pack, *options)
        assert (done.returncode, done.stderr) == (0, "") and "shards: 3, " in done.stdout


def test_every_file_of_a_pack_is_covered_by_both_checkers(pack):
    """Flip one bit in the middle of each file of a shard, of the index and of the pack.

    The quick checks skip heavy data only.

    The middle of a number_types or area file may be its shard index: that counts as well.
    """
    paths = [path for path in pack.rglob("*") if path.is_file()]
    paths = sorted(path for path in paths if "shards/sa_000000-001" not in str(path)
                   and "shards/sa_000001" not in str(path))  # fmt: skip
    assert len(paths) > 50
    for path in paths:
        whole = path.read_bytes()
        flip(path, len(whole) // 2)
        report = verify(pack)
        quick = verify(pack, quick=True)
        assert not report.ok, path
        assert script_finds(pack)[0] == 1, path
        heavy = path.name != "zarr.json" and path.parent.name in HEAVY_ARRAYS
        assert quick.ok == heavy, path
        code = script_finds(pack, "--quick")[0]
        assert code == (0 if heavy else 1), path
        path.write_bytes(whole)
    assert verify(pack).ok


def test_damaged_sample_is_named_by_shard_row_id_and_file(pack):
    for name, row_bytes, rows_before in (("image", 768, 2), ("bbox", 32, 3), ("area", 8, 3)):
        path = next((pack / "shards" / SHARD / name).glob("c.*"))
        whole = path.read_bytes()
        flip(path, rows_before * row_bytes + 5)
        samples = [problem for problem in verify(pack).problems if problem.sample is not None]
        (problem,) = samples
        assert (problem.shard, problem.sample, problem.image_id) == (SHARD, 2, 97)
        assert problem.file_name == "sa_97.jpg"
        assert "sample 2 (image_id 97, sa_97.jpg): checksum" in str(problem)
        code, text = script_finds(pack)
        assert code == 1 and f"{path}: XXH3-128 is" in text and "problems: 1\n" in text
        path.write_bytes(whole)


def cut_end(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage, message", [
    (lambda s: os.truncate(s / "image/c.0.0.0.0", 100), "image/c.0.0.0.0: "),
    (lambda s: (s / "extra.txt").write_text("x"), "extra.txt: not a file of the pack"),
    (lambda s: (s / "area/c.1").write_text("x"), "area/c.1: not a file of the pack"),
    (lambda s: (s / ".hidden").write_text("x"), "hidden: not a file of the pack"),
    (lambda s: shutil.rmtree(s), f"{SHARD}: missing"),
    (lambda s: (s.parent / "stranger-000").mkdir(), "stranger-000: not in the manifest"),
    (lambda s: (s.parent / "x.txt").write_text(""), "x.txt: not a shard; remove|not in the man"),
    (lambda s: (s.parents[1] / "notes.txt").write_text("x"), "notes.txt: not"),
    (lambda s: (next(s.parents[1].glob("index-*")) / "x").write_text(""), "x: not a file"),
    (lambda s: (s / SUMS).write_text("0" * 32 + "  ../../manifest.json\n"), SUMS),
    (lambda s: (s / SUMS).write_bytes(b""), "must list exactly|not lines of"),
    (lambda s: (s.parents[1] / SUMS).write_bytes(b""), "must list exactly|not lines of"),
    (lambda s: cut_end(s / SUMS), "not separated by newlines|not lines of"),
    (lambda s: cut_end(s.parents[1] / SUMS), "not separated by newlines|not lines of"),
])  # fmt: skip
@pytest.mark.parametrize("quick", [False, True])
def test_missing_and_unknown_files_are_named_by_both_checkers(pack, damage, message, quick):
    damage(pack / "shards" / SHARD)
    text = "\n".join(str(problem) for problem in verify(pack, quick=quick).problems)
    assert re.search(message, text), text
    code, text = script_finds(pack, *(["--quick"] if quick else []))
    assert code == 1
    assert re.search(message.replace(": missing", ": .*(missing|No such file)"), text), text


@pytest.mark.parametrize("damage, message, quick", [
    (lambda p: flip(p / "shards" / SHARD / "checksum/c.0", 3 * 8),
     "sample 3 (image_id 96, sa_96.jpg): checksum", False),
    (lambda p: flip(p / "shards" / SHARD / "bbox/c.0.0", -1),
     "bbox/c.0.0: the padding or the shard index", False),
    (lambda p: flip(next(p.glob("index-*/id_order/c.0")), 8), "not the stable argsort", True),
    (lambda p: flip(next(p.glob("index-*/image_id/c.0")), 8), f"not those of shard {SHARD}", True),
    (lambda p: edit(p / "manifest.json", lambda data: data["shards"][0].update(annotations=13)),
     "annotations is 12, but the manifest says 13", True),
])  # fmt: skip
def test_what_is_wrong_is_found_even_if_all_digests_match(pack, damage, message, quick):
    """`quick`: whether a quick check finds it, too."""
    damage(pack)
    rewrite_checksums(pack)
    (problem,) = verify(pack).problems
    assert message in str(problem) and verify(pack, quick=True).ok != quick


@pytest.mark.parametrize("array, at, value, message", [
    ("size", (0, 0), 0, "source size 0 x "),
    ("size", (0, 1), -5, " x -5 is not at least 1 x 1"),
    ("file_name", (0, 2), 255, "is not UTF-8"),
    ("file_name", (0, 2), 0, "is not UTF-8 followed by zeros"),
    ("file_name", (0, slice(None)), 0, "file_name b'' is not UTF-8"),
    ("annotation_count", 0, -1, "annotation_count is -1"),
    ("number_types", 0, 1 << 13, "mask 0: number_types is 0x2000"),
    ("run_ends", 1, -1, "mask 0: its run ends decrease"),
    ("run_ends", 0, -1, "mask 0: its run ends decrease, or are negative"),
])  # fmt: skip
def test_a_record_that_the_format_excludes_is_found_even_if_all_checksums_match(
    pack, array, at, value, message
):
    folder = pack / "shards" / SHARD
    writable_array(folder, array)[at] = value
    rewrite_sample(folder, 0)
    rewrite_checksums(pack)
    problem = verify(pack).problems[0]
    assert problem.sample == 0 and message in str(problem)


def test_runs_of_another_image_are_found_even_if_all_checksums_match(pack):
    folder = pack / "shards" / SHARD
    writable_array(folder, "size")[0, 0] += 1
    rewrite_sample(folder, 0)
    rewrite_checksums(pack)
    (problem,) = verify(pack).problems
    assert problem.sample == 0 and "mask 0: its runs end at" in str(problem)


def test_annotations_that_do_not_add_up_are_found_even_if_all_checksums_match(pack):
    folder = pack / "shards" / SHARD
    writable_array(folder, "annotation_count")[0] += 1
    rewrite_sample(folder, 0)
    rewrite_checksums(pack)
    (problem,) = verify(pack).problems
    assert problem.array == "annotation_count" and "add up to 13" in str(problem)


def test_an_extra_file_of_a_shard_is_found_even_if_the_checksums_list_it(pack):
    (pack / "shards" / SHARD / "extra").write_text("x")
    rewrite_checksums(pack)
    assert "missing or extra: ['extra']" in str(verify(pack).problems)


def test_damaged_manifest_is_reported_and_a_missing_one_is_an_error(pack):
    (pack / "manifest.json").write_text("{")
    report = verify(pack)
    (problem,) = report.problems
    assert problem.what == f"{pack / 'manifest.json'}: not JSON (Input data was truncated)"
    assert (report.complete, report.counts) == (None, {})
    assert run_script(pack).returncode == 1
    (pack / "manifest.json").unlink()
    with pytest.raises(FormatError, match="missing"):
        verify(pack)
    done = run_script(pack)
    assert done.returncode == 2 and "is not a pack" in done.stderr


@pytest.mark.parametrize("quick", [False, True])
def test_progress_reaches_the_total(pristine_pack, quick):
    calls = []
    verify(pristine_pack, quick=quick, progress=lambda *counts: calls.append(counts))
    assert calls == sorted(calls)
    total = sum(shard["bytes"] for shard in manifest_of(pristine_pack)["shards"])
    assert calls[-1] == (total, total)


def test_script_explains_itself_and_refuses_wrong_usage():
    done = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for word in ("exit status", "--quick", "xxh128sum -c"):
        assert word in done.stdout
    assert subprocess.run([sys.executable, str(SCRIPT)], capture_output=True).returncode == 2


def test_script_that_is_interrupted_or_not_read_shows_no_traceback(pristine_pack):
    start = f"sys.argv = ['', {str(pristine_pack)!r}]; runpy.run_path({str(SCRIPT)!r}, None, "
    start += "'__main__')"
    interrupted = "import json, os, runpy, sys; json.loads = lambda _: os.kill(os.getpid(), 2)"
    unread = "import os, runpy, sys; end = os.pipe(); os.close(end[0]); os.dup2(end[1], 1)"
    for code, ended, error in (
        (interrupted, 130, "verify_shards.py: interrupted\n"),
        (unread, -signal.SIGPIPE, ""),
    ):
        command = [sys.executable, "-c", f"{code}; {start}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (ended, "", error)


def test_checksum_files_have_the_form_of_xxhsum(pristine_pack):
    files = {name: data for name, data in contents(pristine_pack).items() if data}
    top = files["checksums.xxh128"].decode()
    lines = [line.split("  ", 1) for line in top.splitlines()]
    assert top.endswith("\n") and [path for _, path in lines] == sorted(path for _, path in lines)
    assert all(xxhash.xxh128_hexdigest(files[path]) == digest for digest, path in lines)
    index = next(name.split("/")[0] for name in files if name.startswith("index-"))
    expected = {"manifest.json", "zarr.json", "shards/zarr.json"}
    expected |= {name for name in files if name.startswith(index)}
    expected |= {name for name in files if name.endswith("/checksums.xxh128")}
    assert {path for _, path in lines} == expected


@pytest.mark.skipif(shutil.which("xxhsum") is None, reason="needs the program xxhsum")
def test_xxhsum_checks_a_pack(pack):
    folders = [pack, *(path for path in (pack / "shards").iterdir() if path.is_dir())]
    for folder in folders:
        command = ["xxhsum", "-c", "checksums.xxh128"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0 and "FAILED" not in done.stdout, done.stdout
    flip(pack / "shards" / SHARD / "image/c.0.0.0.0", 5)
    done = subprocess.run(command, cwd=pack / "shards" / SHARD, capture_output=True, text=True)
    assert done.returncode == 1 and "image/c.0.0.0.0: FAILED" in done.stdout


def make_minor(pack, minor: int) -> None:
    """Make a pack one of a newer minor version, with a group beside `shards` and new keys."""
    for path in (pack / "shards").glob("*/zarr.json"):
        edit(path, lambda d: d["attributes"]["sa1bpack"].update(format=[1, minor], more=5))
    rewrite_checksums(pack)
    edit(pack / "zarr.json", lambda d: d["attributes"]["sa1bpack"].update(format=[1, minor]))
    edit(pack / "manifest.json", lambda d: d.update(version=[1, minor], more=[7]))
    (pack / "derived").mkdir()
    (pack / "derived/zarr.json").write_text("{}")
    digest_pack(pack, "derived/zarr.json")


def test_a_newer_minor_version_is_not_damage_and_its_known_parts_are_checked(pack):
    make_minor(pack, 99)
    report = verify(pack)
    assert report.ok, report.problems
    assert "format 1.99, but this release knows 1.0" in report.notes[0]
    assert script_finds(pack)[0] == 0
    flip(pack / "derived/zarr.json", 0)  # it is listed, so it can be compared
    assert "derived/zarr.json: XXH3-128" in str(verify(pack).problems[0])
    assert script_finds(pack)[0] == 1
    (pack / "derived/zarr.json").write_text("{}")
    flip(pack / "shards" / SHARD / "image/c.0.0.0.0", 768)
    assert {problem.sample for problem in verify(pack).problems} == {None, 1}


def test_pack_of_another_major_version_is_refused_and_not_called_damaged(pack):
    edit(pack / "manifest.json", lambda data: data.update(version=[2, 0]))
    with pytest.raises(VersionError, match=r"format version 2\.0, but this release reads 1\.x"):
        verify(pack)
    code, text = script_finds(pack)
    assert code == 3 and "format version 2, but this script checks 1" in text


@pytest.mark.parametrize("name", ["mask_offset", "run_offset"])
def test_a_sample_whose_offset_decreases_is_named_even_if_all_digests_match(pack, name):
    """So it is clear where to look, although the shard cannot be split into samples."""
    with (pack / "shards" / SHARD / name / "c.0").open("r+b") as file:
        file.seek(8 * 3)
        file.write(bytes(8))
    rewrite_checksums(pack)
    for quick in (False, True):
        problem = verify(pack, quick=quick).problems[0]
        found = (problem.array, problem.shard, problem.sample, problem.image_id)
        assert found == (name, SHARD, 2, 97)


@pytest.mark.parametrize("change", [
    lambda array: array["chunk_grid"]["configuration"].update(chunk_shape=[0, 4]),
    lambda array: array["codecs"][0]["configuration"].update(chunk_shape=[0, 4]),
    lambda array: array.update(shape=[3, 4]),
    lambda array: array.update(shape=[]),
    lambda array: array.update(shape=["8", 4]),
    lambda array: array.update(data_type="float65"),
    lambda array: array.update(codecs=[]),
])  # fmt: skip
def test_script_survives_metadata_of_any_kind(pack, change):
    edit(pack / "shards" / SHARD / "bbox/zarr.json", change)
    for options in ([], ["--quick"]):
        code, text = script_finds(pack, *options)
        assert code == 1 and "bbox/zarr.json" in text


def test_a_failing_disk_is_a_problem_of_the_file_for_both(pack, monkeypatch):
    """Through a memory map it would end the process."""
    place = str(pack / "shards" / SHARD / "bbox/c.0.0")
    real = os.preadv
    fail_to_read = failing(errno.EIO)

    def preadv(fd, *rest):
        if str(Path(f"/proc/self/fd/{fd}").readlink()) == place:
            fail_to_read()
        return real(fd, *rest)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("open files have no names here")
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        (problem,) = verify(pack).problems
        assert problem.shard == SHARD and not problem.denied
        assert problem.what == f"{place}: cannot be read: Input/output error"
    with monkeypatch.context() as patch:
        patch.setattr(script, "file_digest", fail_to_read)
        code, text = script_finds(pack)
    assert code == 1 and f"{pack / 'zarr.json'}: cannot be read: Input/output error" in text


def test_damaged_checksum_file_does_not_hide_damaged_samples(pack):
    (pack / "shards" / SHARD / "checksums.xxh128").write_text("0" * 32 + "\n")
    flip(pack / "shards" / SHARD / "image/c.0.0.0.0", 2 * 768)
    assert [p.sample for p in verify(pack).problems if p.sample is not None] == [2]
