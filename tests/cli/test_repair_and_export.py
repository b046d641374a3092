"""`sa1bpack repair` and `sa1bpack export`: exit codes, and what is printed where."""

import fcntl
import json
import shutil

import pytest
from commands import run
from edited_packs import flip, unfinished_pack
from small_packs import pack_small
from small_tars import contents

import sa1bpack


@pytest.fixture
def root(tar, tmp_path):
    pack_small(tar, tmp_path / "pack", max_masks=2)
    return tmp_path / "pack"


IMAGES = "shards/sa_000000-000/image/c.0.0.0.0"


def test_a_repair_names_what_was_damaged_and_what_was_rebuilt(command, root, tar):
    before = contents(root)
    assert command("repair", root, tar) == (0, f"{root}: sound, nothing to repair\n", "")
    assert contents(root) == before
    flip(root / IMAGES, 100)
    (root / "rejects.jsonl").unlink()
    code, out, error = command("repair", root, tar, "--workers", 1, "--dry-run")
    assert (code, error) == (0, "")
    plan = f"would rebuild sa_000000-000 from {tar}\nwould rewrite the pack's own files\n"
    assert plan in out
    assert out.splitlines()[-1].endswith("found, nothing was written")
    code, out, error = command("repair", root, tar, "--workers", 1)
    assert (code, error) == (0, "")
    assert "shard sa_000000-000, sample 0 (image_id" in out
    assert "\nrebuilt 1 shard: sa_000000-000\nrewrote the pack's own files\n" in out
    assert out.splitlines()[-1].endswith("found, repaired")
    assert contents(root) == before
    assert command("verify", root)[0] == 0


def test_a_repair_says_which_features_it_does_not_check(command, root, tar):
    ds = sa1bpack.open(root)
    sa1bpack.attach(ds, "caption", dict.fromkeys(ds.column("image_id").tolist(), "a dog"))
    path = next((root / "side/caption").glob("sa_*/values/c.0"))
    flip(path, 1)
    for options in ((), ("--dry-run",)):
        code, out, error = command("repair", root, tar, *options)
        assert (code, out) == (0, f"{root}: sound, nothing to repair\n")
        assert error == (
            "sa1bpack: features that are not checked, as no tar has their rows: caption; "
            f"sa1bpack verify {root} checks them\n"
        )
    assert command("verify", root)[0] == 1


def test_remaining_damage_is_1_and_names_what_is_needed(command, root):
    flip(root / IMAGES, 100)
    with (root / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert command("repair", root)[0] == 3  # in use
    code, out, error = command("repair", root)
    assert code == 1 and out.splitlines()[-1].endswith("STILL DAMAGED")
    assert error == (
        "sa1bpack: sa_000000-000 is still damaged: the source sa_000000 is needed, but was not "
        "given\n"
    )


def test_a_pack_that_is_not_complete_says_so(command, root, tar):
    (root / "manifest.json").unlink()
    code, out, error = command("repair", root, "--workers", 1)
    assert code == 0 and "NOT COMPLETE: repeat the pack command" in out
    assert "pack again with all tars" in error
    shutil.rmtree(root)
    root.mkdir()
    code, out, error = command("repair", root, tar)
    assert (code, out) == (2, "") and "not a pack" in error


def test_an_export_and_a_report_of_a_pack_that_is_not_complete_say_so(tmp_path):
    """In processes of their own: a dataset reports a pack once per process."""
    root = tmp_path / "pack"
    unfinished_pack(root, range(5))
    for name, written in (("export", "json"), ("report", "a.html")):
        code, out, error = run(name, root, "-o", tmp_path / written)
        assert code == 0 and out.splitlines()[0].endswith(", NOT COMPLETE"), out
        assert ": 4 images, " in out
        assert error.startswith(f"{root}: not complete: ") and error.count("\n") == 1
        assert error.endswith("repeat the pack command, which names what is missing\n")


def test_the_summary_of_an_export_names_what_the_pack_lacks(command, root, tmp_path):
    code, out, error = command("export", root, "-o", tmp_path / "json")
    assert (code, error) == (0, "")
    assert out == (
        f"{tmp_path / 'json'}: 6 images, 9 masks; 6 files written\n"
        "left out: 6 masks of these images, which the pack or the selection does not have\n"
    )
    again = command("export", root, "-o", tmp_path / "json")
    assert "6 images, 9 masks; 0 files written, 6 existed already\n" in again[1]


def test_every_choice_of_the_command_line_reaches_the_export(command, root, tmp_path):
    out = tmp_path / "coco.json"
    chosen = ("--shard", "sa_000000-001", "--image-id", 0, "--image-id", 1, "--renumber")
    assert command("export", root, "-o", out, "--format", "coco", *chosen)[0] == 0
    found = json.loads(out.read_text())
    ids = sa1bpack.open(root).from_shards("sa_000000-001")
    assert {image["id"] for image in found["images"]} == {0, 1, *(s["image_id"] for s in ids)}
    numbers = [annotation["id"] for annotation in found["annotations"]]
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 4
    assert command("export", root, "-o", tmp_path / "a", "--source", "sa_000000")[0] == 0


def test_a_file_with_other_contents_is_3_and_flipped_pixels_are_not_exported(
    command, root, tmp_path
):
    (tmp_path / "coco.json").write_text("mine")
    code, _, error = command("export", root, "-o", tmp_path / "coco.json", "--format", "coco")
    assert code == 3 and "has other contents" in error
    flip(root / IMAGES, 100)  # a record has no pixels
    assert command("export", root, "-o", tmp_path / "a")[0] == 0
