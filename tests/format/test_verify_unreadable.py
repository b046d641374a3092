"""What is missing or unreadable is reported once, and the rest is checked all the same."""

import shutil

import numpy as np
import pytest
from edited_packs import flip
from format_files import publish
from system import without_privileges
from verify_script import script_finds

import sa1bpack
from sa1bpack import verify

SHARD = "sa_000000-000"


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name, array", [
    ("zarr.json", None), ("shards/zarr.json", None), ("checksums.xxh128", None), ("INDEX", None),
    (f"shards/{SHARD}", None), (f"shards/{SHARD}/zarr.json", None),
    (f"shards/{SHARD}/checksums.xxh128", None), (f"shards/{SHARD}/bbox/zarr.json", "bbox"),
    (f"shards/{SHARD}/bbox/c.0.0", "bbox"), (f"shards/{SHARD}/image/c.0.0.0.0", "image"),
    (f"shards/{SHARD}/mask_offset/c.0", "mask_offset"),
])  # fmt: skip
def test_what_is_missing_is_one_problem(pack, name, array, quick):
    path = next(pack.glob("index-*")) if name == "INDEX" else pack / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (problem,) = verify(pack, quick=quick).problems
    assert problem.what.startswith(str(path)) and ": missing" in problem.what
    assert (problem.shard is None) == (SHARD not in name) and problem.array == array
    code, text = script_finds(pack, *(["--quick"] if quick else []))
    assert code == 1 and str(path) in text


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    "name",
    ["zarr.json", "checksums.xxh128", "INDEX", "shards", f"shards/{SHARD}",
     f"shards/{SHARD}/zarr.json", f"shards/{SHARD}/checksums.xxh128", f"shards/{SHARD}/bbox",
     f"shards/{SHARD}/bbox/c.0.0", f"shards/{SHARD}/mask_offset/zarr.json"],
)  # fmt: skip
def test_what_may_not_be_read_is_reported_as_such_and_the_rest_is_checked(pack, name, quick):
    hidden = next(pack.glob("index-*")) if name == "INDEX" else pack / name
    other = pack / "shards/sa_000001-000/area/c.0"
    flip(other, 3)
    hidden.chmod(0)
    with without_privileges():
        report = verify(pack, quick=quick)
        options = ["--quick"] if quick else []
        code, text = script_finds(pack, *options)
    hidden.chmod(0o755)
    denied = [problem for problem in report.problems if problem.denied]
    assert denied and len({problem.what for problem in denied}) == len(denied)
    assert all(
        problem.what.startswith(f"{hidden}") and "cannot be read: Permission denied" in problem.what
        for problem in denied
    )
    others = [problem for problem in report.problems if not problem.denied]
    found = name == "shards" or any(problem.what.startswith(f"{other}: ") for problem in others)
    assert found and all(problem.shard == "sa_000001-000" for problem in others)
    lines = text.splitlines()
    assert code == 1 and len(set(lines)) == len(lines)
    assert any(
        line.startswith(f"{hidden}") and line.endswith("cannot be read: Permission denied")
        for line in lines
    )
    assert name == "shards" or any(line.startswith(f"{other}: XXH3-128 is") for line in lines)
    assert lines[-1].startswith("shards: 3, ")


@pytest.mark.parametrize("where", [".", "shards", "side", "side/f", f"shards/{SHARD}/bbox"])
def test_a_folder_that_may_not_be_listed_hides_no_stray_file(pack, where):
    """Its files can be read by their names, and a glob passes over it."""
    ds = sa1bpack.open(pack)
    sa1bpack.attach(ds, "f", np.zeros((len(ds), 2), np.float32), ds.column("image_id"))
    folder = pack / where
    (folder / "stray").write_bytes(b"x")
    folder.chmod(0o311)
    with without_privileges():
        report = verify(pack, quick=True)
        code, text = script_finds(pack, "--quick")
    folder.chmod(0o755)
    (what,) = {problem.what for problem in report.problems}
    assert what == f"{folder}: cannot be read: Permission denied"
    assert code == 1 and f"{folder}: cannot be read: Permission denied" in text.splitlines()


def test_unreadable_parts_of_an_unfinished_pack_hide_no_damage(pack):
    (pack / "rejects.jsonl").write_text("{}\n")
    publish(pack, complete=False)
    (pack / "rejects.jsonl").chmod(0)
    flip(pack / "zarr.json", 2)  # which the checksum file lists after it
    with without_privileges():
        problems = verify(pack, quick=True).problems
        code, text = script_finds(pack, "--quick")
    assert {problem.what.split(":")[0] for problem in problems} == {
        str(pack / "rejects.jsonl"), str(pack / "zarr.json")
    }  # fmt: skip
    assert code == 1 and f"{pack / 'zarr.json'}: XXH3-128" in text
    assert f"{pack / 'rejects.jsonl'}: cannot be read" in text


def test_an_unreadable_manifest_is_not_called_damaged(pack):
    (pack / "manifest.json").chmod(0)
    with without_privileges():
        with pytest.raises(PermissionError):
            verify(pack)
        code, text = script_finds(pack)
    path = pack / "manifest.json"
    assert (code, text) == (4, f"{path}: cannot be read: Permission denied\n")
