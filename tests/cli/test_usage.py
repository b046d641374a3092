"""How a command is called: help, options, paths, and messages about wrong usage."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SMALL_FLAGS
from small_tars import contents, members, write_tar

import sa1bpack

OF_PACKS = ["pack", "finalize", "verify", "repair", "merge"]
COMMANDS = [*OF_PACKS, "export", "subset", "info", "show", "report", "explore", "attach", "derive"]
COMMANDS += ["bench"]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_in_80_columns(command, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, error = command(name, "--help")
    assert (code, error) == (0, "")
    assert [line for line in out.splitlines() if len(line) > 79] == []
    description = re.search(r"\n\n([^-].*?)\n\n", out, re.S)
    usage = out[: description.start()]
    rest = out[description.end() :]
    flags = set(re.findall(r"--[a-z][a-z0-9-]+", usage)) | set(re.findall(r"-o\b", usage))
    for option in {"--output" if flag == "-o" else flag for flag in flags}:
        short = "-o(?: [A-Z.a-z]+)?, " if option == "--output" else ""  # as Python's version has it
        pair = "(?:--[a-z-]+, )?"  # --spatial, --no-spatial
        assert re.search(rf"^  {short}{pair}{option}[ ,\n]", rest, re.M), option
    assert rest.endswith("130 and 143 interrupted; see\n`sa1bpack --help`\n")


def test_the_main_help_names_every_command_in_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("--help")
    assert code == 0 and [line for line in out.splitlines() if len(line) > 79] == []
    for name in COMMANDS:
        assert re.search(rf"^    {name} ", out, re.M)
    assert command("--version") == (0, f"sa1bpack {sa1bpack.__version__}\n", "")


WRITTEN = "the following arguments are required: -o/--output, which names what is written; see `"


@pytest.mark.parametrize(
    "words, said",
    [
        ("pack a.tar -o packed --fitt pad", "--fitt: is --fit meant? See `sa1bpack pack --help`"),
        ("pack a.tar --dry", "--dry: is --dry-run meant? See `sa1bpack pack --help`"),
        ("pack a.tar --max-mask=50 -o x", "--max-mask: is --max-masks meant? See"),
        ("pack a.tar -o x -workers 2", "-workers: is --workers meant? See"),
        ("pack a.tar -o x -j 2", "-j; see `sa1bpack pack --help`"),
        ("show a --mi 3", "--mi: is --min-area or --min-iou or --min-stability meant? See"),
        ("verify --packs a", "--packs: PACK is given without a flag; see"),
        ("bench a --masks padded", "--masks: is --mask-format or --mask-layout meant? See"),
        ("--verison", "--verison: is --version meant? See `sa1bpack --help`"),
        ("pakc a.tar", "command 'pakc': is pack meant? See `sa1bpack --help`\n"),
        ("Pack a.tar", "command 'Pack': is pack meant?"),
        ("filter a.tar", "command 'filter': is subset meant?"),
        ("unlikely a.tar", f"command 'unlikely': the commands are {', '.join(COMMANDS)}"),
        ("merge both a b", WRITTEN),
        ("subset a --seed 3 a.sel", WRITTEN),
        ("export a b", WRITTEN),
    ],
    ids=lambda text: text.split(";")[0],
)
def test_what_is_mistyped_or_missing_is_answered_with_what_is_meant(command, words, said):
    code, out, error = command(*words.split())
    assert (code, out, error.count("\n")) == (2, "", 1)
    what = "" if said == WRITTEN else "there is no " if "command" in said else "there is no option "
    assert error.startswith(f"sa1bpack: {what}{said}")


def test_options_may_stand_among_the_sources(command, tar, root, tmp_path):
    more = [write_tar(tmp_path / f"sa_{n:06}.tar", members([10 * n])) for n in (1, 2)]
    small = ("--workers", 1, *SMALL_FLAGS)
    assert command("pack", tar, "-o", root, more[0], *small, more[1])[0] == 0
    assert len(sa1bpack.info(root).manifest.sources) == 3
    code, out, _ = command("repair", root, "--shard", "sa_000000-000", tar, more[0], "--dry-run")
    assert code == 0 and "sound" in out


def test_what_follows_two_hyphens_is_a_source_whatever_its_name(
    command, root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "--out.tar", members([1]))
    assert command("pack", "-o", root, "--workers", 1, *SMALL_FLAGS, "--", "--out.tar")[0] == 0
    assert [source["name"] for source in sa1bpack.info(root).manifest.sources] == ["--out"]


URL = "s3://bucket/pack"


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "{pack}", "-o", URL), ("show", "{pack}", "-o", URL),
        ("report", "{pack}", "-o", URL), ("explore", "{pack}", "--folder", URL),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_url_is_refused_by_name_and_nothing_is_created(
    command, packed, tmp_path, monkeypatch, arguments
):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    code, out, error = command(*(text.format(pack=packed) for text in arguments))
    assert (code, out) == (2, "")
    assert f"'{URL}': s3 URLs are not supported; give a path of this machine" in error
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("repair", URL, "a.tar"), "exchanges folders of shards"),
        (("merge", URL, "{pack}", "-o", "out"), "links files of the packs"),
        (("merge", "{pack}", "-o", URL), "links files of the packs"),
        (("finalize", URL), "parts of a job share a folder"),
    ],
    ids=str,
)
def test_what_needs_a_folder_says_why_and_what_to_do(
    command, packed, tmp_path, monkeypatch, arguments, why
):
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    code, out, error = command(*(text.format(pack=packed) for text in arguments))
    assert (code, out) == (2, "")
    assert URL in error and why in error
    assert contents(tmp_path) == before


WINDOWS_PATH = "D:\\data\\packed"


@pytest.mark.parametrize(
    "arguments",
    [
        ("pack", "{tar}", "-o", WINDOWS_PATH), ("pack", WINDOWS_PATH, "-o", "out"),
        ("pack", "{tar}", "-o", WINDOWS_PATH, "--dry-run"),
        ("pack", "{tar}", "-o", WINDOWS_PATH, "--part", "1/2"),
        ("pack", "{tar}", "-o", "out", "--md5sums", WINDOWS_PATH),
        ("pack", "-o", "out", "--links", WINDOWS_PATH),
        ("pack", "{tar}", "-o", "s3://bucket/pack", "--staging", WINDOWS_PATH),
        ("finalize", WINDOWS_PATH), ("repair", WINDOWS_PATH), ("repair", "{pack}", WINDOWS_PATH),
        ("merge", WINDOWS_PATH, "-o", "out"), ("merge", "{pack}", "-o", WINDOWS_PATH),
        ("verify", WINDOWS_PATH), ("info", WINDOWS_PATH),
        ("export", WINDOWS_PATH, "-o", "json"), ("export", "{pack}", "-o", WINDOWS_PATH),
        ("export", "{pack}", "-o", WINDOWS_PATH + ".json", "--format", "coco"),
        ("show", WINDOWS_PATH, "-o", "a.png"), ("show", "{pack}", "-o", WINDOWS_PATH + ".png"),
        ("report", WINDOWS_PATH, "-o", "a.html"),
        ("report", "{pack}", "-o", WINDOWS_PATH + ".html"),
        ("derive", WINDOWS_PATH, "grey", "--fn", "colorsys:rgb_to_hsv"),
        ("derive", "{pack}", "grey", "--fn", "colorsys:rgb_to_hsv", "--output", WINDOWS_PATH),
        ("subset", "{pack}", "-o", WINDOWS_PATH, "--where", "mask_count > 1"),
        ("bench", WINDOWS_PATH),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_path_of_windows_is_refused_with_the_path_in_wsl_and_nothing_is_created(
    command, packed, tar, tmp_path, monkeypatch, arguments
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    code, out, error = command(*(text.format(pack=packed, tar=tar) for text in arguments))
    assert (code, out) == (2, "")
    assert f"is {WINDOWS_PATH!r}"[:-1] in error and "'/mnt/d/data/packed" in error
    assert list(here.iterdir()) == []


def test_a_path_of_windows_with_slashes_is_refused_too(command, tar, tmp_path, monkeypatch):
    """Unless there is a folder of that name."""
    monkeypatch.chdir(tmp_path)
    code, _, error = command("pack", tar, "-o", "D:/packed")
    assert code == 2 and "is 'D:/packed'" in error and "'/mnt/d/packed'" in error
    assert not (tmp_path / "D:").exists()
    (tmp_path / "D:").mkdir()
    assert command("pack", tar, "-o", "D:/packed", *SMALL_FLAGS, "--workers", 1)[0] == 0


def test_a_share_of_windows_is_refused_and_a_folder_of_such_a_name_is_taken(
    command, tar, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    share = "\\\\server\\share\\sa_000000.tar"
    code, _, error = command("pack", share, "-o", "out")
    assert code == 2 and "mount the share, and give the path of the mount" in error
    Path(WINDOWS_PATH).mkdir()
    assert command("pack", tar, "-o", WINDOWS_PATH, *SMALL_FLAGS, "--workers", 1)[0] == 0
    assert command("verify", WINDOWS_PATH)[0] == 0


def test_a_command_is_needed_and_without_one_the_help_is_shown(command):
    assert command() == (2, command("--help")[1], "")


def test_messages_name_options_and_packs_as_they_were_typed(command, packed, tar, tmp_path):
    before = contents(tmp_path)
    for arguments, said in (
        (("repair", packed, "none.tar"), "none.tar: no such file"),
        (("repair", packed, "--workers", "0"), "--workers is 0"),
        (("show", packed, "-o", "x.gif"), "x.gif: name it *.png or *.jpg or *.jpeg"),
        (("show", packed, "-o", tmp_path / "a.png", "--image-id", 77), "no image_id 77 among"),
        (("show", packed, "-o", packed / "x.png"), f"--output is '{packed}/x.png', in the pack "),
        (("report", packed, "-o", tmp_path / "a.html", "--samples", 999), "from 1 to 400"),
        (("export", packed, "-o", packed / "json"), f"'{packed}/json', in the pack {packed}, "),
        (("export", packed, "-o", tmp_path / "x", "--renumber"), "--renumber"),
        (("show", packed, "-o", tmp_path / "a.png", "--row", -1), "--row is -1: choose"),
        (
            ("export", packed, "-o", tmp_path / "x", "--image-id", 2**70),
            f"--image-id is {2**70}: choose",
        ),
        (("derive", "", "x", "--fn", "json:dumps"), "PACK is '': give a path"),
        (("bench", packed, "--device", "tpu"), "--device is 'tpu'"),
        (("bench", tmp_path / "absent"), "absent: not a pack: the folder does not exist"),
        (("verify", packed, "--part", "3/2"), "--part is '3/2': choose K/N with K from 1 to N"),
        (("pack", tar, "-o", "s3://bucket/pack"), "name a folder as --staging"),
        (("pack", tar, "-o", "x", "--workers", "two"), "--workers: 'two' is not a whole number;"),
        (
            ("pack", tar, "-o", "x", "--min-iou", "high"),
            "--min-iou: 'high' is not a number, nor 'none';",
        ),
        (("export", packed, "-o", tmp_path / "x", "--shard", "b"), "no shard 'b': "),
        (("merge", packed, "-o", packed / "m"), "choose another"),
        (
            ("show", "-o", tmp_path / "a.png", "--image-id", 5, 6, packed),
            f"argument --image-id: '{packed}' is not a whole number; if it is an argument of its "
            "own, put it first; see ",
        ),
    ):
        code, out, error = command(*arguments)
        assert (code, out, error.count("\n")) == (2, "", 1), (arguments, error)
        assert said in error
    assert contents(tmp_path) == before


def test_a_list_of_ids_that_is_something_else_is_not_read_to_its_end(command, packed, tmp_path):
    code, _, error = command("subset", packed, "-o", tmp_path / "new", "--ids", "/dev/zero")
    assert code == 2 and "--ids is '/dev/zero': a line has 1000" in error and len(error) < 1000


def test_a_list_of_ids_may_begin_with_a_byte_order_mark(command, packed, tmp_path):
    ids = sa1bpack.open(packed).column("image_id")[[2, 0]]
    (tmp_path / "ids").write_text("\ufeff" + "\r\n".join(map(str, ids)), "utf-8")
    code, _, error = command("subset", packed, "-o", tmp_path / "new", "--ids", tmp_path / "ids")
    assert (code, error) == (0, "")
    chosen = sa1bpack.open(packed).load_selection(tmp_path / "new")
    assert chosen.column("image_id").tolist() == ids.tolist()


def test_a_selection_in_a_pack_is_refused_by_the_name_of_its_option(command, packed):
    code, _, error = command("subset", packed, "-o", packed / "new.sel", "--fraction", 1)
    assert code == 2 and f"--output is '{packed}/new.sel', in the pack" in error


def test_a_loop_of_links_is_a_message(command, packed, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for words in (
        ("info", loop), ("verify", loop), ("merge", packed, "-o", loop),
        ("subset", packed, "--fraction", 1, "-o", loop / "a.sel"),
    ):  # fmt: skip
        code, _, error = command(*words)
        assert code in (2, 4) and "loop" in error and error.count("\n") == 1, words


def test_what_would_colour_a_terminal_is_escaped_in_output(command, packed, tmp_path, monkeypatch):
    code, out, _ = command("export", packed, "-o", tmp_path / "\x1b[31m")
    assert code == 0 and r"\x1b[31m: " in out and "\x1b" not in out
    shown = "def fn(batch):\n    print('\\t\\x1b[31mred')\n    return batch['indices'][:, None]\n"
    (tmp_path / "shows.py").write_text(shown)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    code, out, error = command("derive", packed, "x", "--fn", "shows:fn")
    assert (code, error) == (0, "") and "\t\x1b[31mred" in out  # what a user's function prints


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_exit_code_is_right_though_messages_cannot_be_printed(tar, tmp_path):
    """To a log on a full disk: a script decides by the code."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    expected = {2: ["verify", tmp_path / "none"], 3: ["pack", tar, "-o", tmp_path / "other"]}
    codes = []
    for arguments in expected.values():
        with open("/dev/full", "w") as full:  # noqa: PTH123 - a device, not a path
            ended = subprocess.run([sys.executable, "-m", "sa1bpack", *arguments], stderr=full)
        codes.append(ended.returncode)
    assert codes == list(expected)
