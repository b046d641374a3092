"""The command line, called within this process: options, exit codes, what is printed where."""

import fcntl
import json
import subprocess
from dataclasses import fields

import pytest
from commands import COMMAND, SMALL_FLAGS, pack_command
from small_tars import contents, members, rejects_of, write_tar

from sa1bpack import PackOptions

CHOSEN = {
    "image_size": 32, "fit": "squash", "resample": "exact", "mask_size": 8,
    "mask_sampling": "center", "max_masks": 2, "mask_select": "random", "seed": 7,
    "min_area": 3, "max_area_frac": 0.9, "min_iou": 0.1, "min_stability": 0.2, "empty": "drop",
    "samples_per_shard": 5, "masks": "bits", "pixels": "yuv420",
}  # fmt: skip


@pytest.mark.parametrize("chosen", [{}, CHOSEN], ids=["defaults", "chosen"])
def test_every_option_of_the_command_line_reaches_the_pack(command, tar, root, chosen):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in chosen.items()]
    assert command("pack", tar, "--output", root, "--workers", 1, *flags)[0] == 0
    options = json.loads((root / "manifest.json").read_text())["options"]
    assert options == PackOptions(**chosen).to_json()
    names = {field.name for field in fields(PackOptions)}
    others = {"keep", "absent", "records", "keys"}  # recorded where they were chosen
    assert options.keys() == names - others - {"mask_select", "preset"} | {"select"}


def test_a_run_is_summarized_on_stdout_and_stderr_stays_empty(command, tar, root):
    code, out, error = command(*pack_command(tar, root, "--max-masks", 3))
    assert (code, error) == (0, "")
    nbytes = sum(path.stat().st_size for path in (root / "shards").rglob("c.*"))
    assert f"{root}: 6 images, 12 of 15 masks; {nbytes / 1000:.3g} kB\n" in out
    assert "\nmasks: 3 of 15 left out by --max-masks 3\n" in out
    assert "this run: 6 images in" in out
    assert f"\nnext, a page with pictures: sa1bpack report {root}\n" in out


def test_a_complete_pack_is_reported_as_such(command, tar, root, tmp_path):
    other = write_tar(tmp_path / "sa_000001.tar", members([50]))
    pack = pack_command([tar, other], root)
    assert command(*pack)[0] == 0
    code, out, error = command(*pack)
    assert (code, error) == (0, "")
    assert "\nthis run: all 2 sources are in the pack already; nothing to do\n" in out
    expected = (0, "all 2 sources are in the pack already; nothing to do\n", "")
    assert command(*pack, "--dry-run") == expected
    code, out, _ = command(*pack_command(tar, root, "--dry-run"))
    assert (code, out) == (0, "the source is in the pack already; nothing to do\n")


def test_rejects_and_dropped_images_are_reported(command, root, tmp_path):
    found = members(range(5), masks=lambda number: number)
    found["./sa_3.json"] = b"{ not json"
    tar = write_tar(tmp_path / "a.tar", found)
    code, out, error = command(*pack_command(tar, root, "--empty", "drop"))
    assert (code, error) == (0, "")
    assert "dropped: no masks remained in 1 image, not counted above\n" in out
    assert f"rejected: 1 member (1 bad-annotation), see {root}/rejects.jsonl" in out
    assert len(rejects_of(root)) == 1


def test_too_many_rejects_fail(command, root, tmp_path):
    tar = write_tar(tmp_path / "a.tar", {**members([1, 2]), "./sa_1.json": b"x"})
    code, _, error = command(*pack_command(tar, root, "--max-rejects", 0))
    assert code == 1
    assert error.startswith(
        "sa1bpack: --max-rejects is 0, but 1 member was rejected; the run ends, and published "
        f"shards stay:\n  {tar}: sa_1.json: "
    )
    assert "rejects.jsonl" in error and error.endswith("repeat with a higher limit\n")


def test_a_run_that_packs_no_image_names_rejects_only_if_there_are_any(command, tmp_path):
    nothing = write_tar(tmp_path / "a.tar", {"./readme.txt": b"hello"})
    code, _, error = command(*pack_command(nothing, tmp_path / "pack_a"))
    assert code == 1
    assert error == (
        "sa1bpack: no pair of an image and a .json file of the same name is in a: it has other "
        "files, such as ./readme.txt; if it should hold images of SA-1B, download it again\n"
        "sa1bpack: no image was packed\n"
    )
    dropped = write_tar(tmp_path / "b.tar", members([1], masks=lambda number: 1))
    code, out, error = command(
        *pack_command(dropped, tmp_path / "pack_b", "--min-area", 10**6, "--empty", "drop")
    )
    assert code == 1 and "0 images, 0 of 0 masks\n" in out
    assert "dropped: no masks remained in 1 image" in out
    assert error == "sa1bpack: no image was packed\n"


@pytest.mark.parametrize(
    "flag, said",
    [
        ("--fit=stretch", "--fit"),
        ("--max-masks=few", "'few' is not a whole number, nor 'all'"),
        ("--workers=0", ": --workers is 0"),
        ("--mask-select=best", "--mask-select"),
        ("--mask-size=20", ": --mask-size is 20: choose a multiple of 8"),
        ("--image-size=1", ": --image-size is 1: choose a whole number from 16 to 8192"),
        ("--max-rejects=-1", ": --max-rejects is -1"),
        ("--max-area-frac=2", ": --max-area-frac is 2.0: choose a number from 0 to 1"),
        ("--min-stability=80", ": --min-stability is 80.0: choose a number of at most 1"),
        ("--min-iou=nan", ": --min-iou is nan: choose a number of at most 2"),
    ],
)
def test_wrong_usage_is_2_and_writes_nothing(command, tar, root, flag, said):
    code, out, error = command(*pack_command(tar, root, flag))
    assert (code, out) == (2, "")
    assert said in error
    assert "None" not in error
    assert not root.exists()


def test_sources_and_lists_that_cannot_be_used_are_2_and_write_nothing(
    command, tar, root, tmp_path
):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "twin").mkdir()
    twin = write_tar(tmp_path / "twin" / tar.name, members([9]))
    file = tmp_path / "text"
    for arguments, word in (
        ((tmp_path / "none_*.tar",), "none_*.tar: nothing matches"),
        ((tmp_path / "text",), "it is a text, where a tar is expected"),
        ((tar, twin), "both called 'sa_000000'"),
        ((tar, "--md5sums", tmp_path / "none"), "cannot be read: No such file or directory\n"),
        ((tar, "-o", file), f": {file}: {file} is a file; give a new folder, or that of a"),
        ((tar, "-o", file / "pack"), f": {file / 'pack'}: {file} is a file; give a new folder"),
    ):
        code, out, error = command("pack", "--output", root, *SMALL_FLAGS, *arguments)
        assert (code, out) == (2, "") and word in error and "repeat" not in error
    assert not root.exists() and file.read_text() == "hello"


def test_what_a_pack_cannot_take_is_3_and_changes_nothing(command, packed, tar, tmp_path):
    (tmp_path / "twin").mkdir()
    twin = write_tar(tmp_path / "twin" / tar.name, members([9]))
    before = contents(packed)
    code, _, error = command(*pack_command(twin, packed))
    assert code == 3 and "the pack holds a source 'sa_000000'" in error
    others = ("--fit", "squash", "--min-iou", "0.5", "--max-masks", 100)
    code, _, error = command(*pack_command(tar, packed, *others))
    assert code == 3 and error.count("the pack has") == 3
    for said in (
        "--fit: the pack has 'pad', this run asks for 'squash'",
        "--min-iou: the pack has none, this run asks for 0.5",
        "--max-masks: the pack has all, this run asks for 100",
    ):
        assert f"\n  {said}\n" in error
    assert contents(packed) == before


def test_a_folder_in_use_is_refused(command, tar, packed):
    with (packed / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        code, _, error = command(*pack_command(tar, packed))
    assert code == 3 and "another process packs into this folder" in error


@pytest.mark.parametrize(
    "text", ['{"format": "sa1bpack", "version": [2, 0]}', '{"a":1', "[]", ""], ids=str
)
def test_a_pack_that_cannot_be_added_to_is_refused_and_unchanged(command, packed, tar, text):
    (packed / "manifest.json").write_text(text)
    before = contents(packed)
    code, out, error = command(*pack_command(tar, packed))
    assert (code, out) == (3, "") and f"{packed / 'manifest.json'}: " in error
    assert contents(packed) == before


def test_a_dry_run_writes_nothing_and_says_whether_it_fits(command, tar, root, free):
    code, out, error = command(*pack_command(tar, root, "--dry-run"))
    assert (code, error) == (0, "")
    assert "images    about" in out and "it fits" in out and "nothing was written" in out
    assert not root.exists()
    free(10)
    code, out, _ = command(*pack_command(tar, root, "--dry-run"))
    assert code == 1 and "DOES NOT FIT" in out


def test_a_reader_that_stops_early_is_not_a_disk_error(packed):
    command = [*COMMAND, "info", packed]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
