"""Names that are not ASCII, in locales with and without UTF-8, or no text; a terminal."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
from contextlib import suppress

import pytest
from commands import COMMAND, pack_command, run
from small_packs import pack_small
from small_tars import SMALL, members, write_tar
from verify_script import SCRIPT

import sa1bpack
from sa1bpack import OptionError

REMEDY = "encodes names of files as ascii, and a pack needs UTF-8: set PYTHONUTF8=1, or LC_ALL=C."


@pytest.fixture
def ascii_locale(monkeypatch):
    """Child processes have a locale without UTF-8, and none of what Python does about it."""
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)


@pytest.fixture
def no_text(tmp_path):
    """A folder whose name is not UTF-8, with a tar."""
    folder = tmp_path / os.fsdecode(b"d\xff")
    folder.mkdir()
    write_tar(folder / "sa_000000.tar", members(range(4)))
    return folder


def pack(source, root):
    return pack_small(source, root)


def test_a_locale_without_utf8_refuses_a_source_that_needs_it(ascii_locale, tmp_path):
    tar = write_tar(tmp_path / "sä 1.tar", members(range(2)))
    code, out, error = run(*pack_command(tar, tmp_path / "pack"))
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert REMEDY in error and not (tmp_path / "pack").exists()


def test_a_locale_without_utf8_refuses_a_pack_that_needs_it(ascii_locale, tmp_path):
    pack(write_tar(tmp_path / "sä.tar", members(range(2))), tmp_path / "pack")
    code, out, error = run("verify", tmp_path / "pack")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert r"the name 's\xe4-000' is not ASCII" in error and REMEDY in error
    command = [sys.executable, str(SCRIPT), str(tmp_path / "pack")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and REMEDY in done.stderr


def test_a_locale_without_utf8_suffices_where_only_a_folder_needs_it(ascii_locale, tmp_path):
    (tmp_path / "ä").mkdir()
    tar = write_tar(tmp_path / "ä/sa_000000.tar", members(range(2)))
    root = tmp_path / "ä/päck"
    code, out, error = run(*pack_command(tar, root))
    assert (code, error) == (0, "") and r"\udcc3\udca4/p\udcc3\udca4ck: 2 images" in out
    assert run("verify", root)[0] == 0
    assert sa1bpack.verify(root).ok


def test_a_locale_without_utf8_refuses_a_condition_that_needs_it(ascii_locale, packed, tmp_path):
    words = ("--where", "file_name == 'sä.jpg'", "-o", tmp_path / "new.sel")
    code, _, error = run("subset", packed, *words)
    assert code == 2 and "--where is" in error and "set PYTHONUTF8=1" in error


def test_output_escapes_what_its_encoding_lacks(monkeypatch, tmp_path):
    pack(write_tar(tmp_path / "sä.tar", members(range(2))), tmp_path / "päck")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    code, out, error = run("verify", tmp_path / "päck")
    assert (code, error) == (0, "") and r"p\xe4ck: sound" in out


def test_a_source_in_a_folder_whose_name_is_no_text_is_indexed_and_its_failure_recorded(no_text):
    tar = no_text / "sa_000000.tar"
    assert len(sa1bpack.TarDataset(tar)) == 4
    tar.write_bytes(tar.read_bytes()[:-3000])
    result = sa1bpack.pack_part([tar], no_text / "pack", part=(1, 1), workers=1, **SMALL)
    assert list(result.failed) == ["sa_000000"]
    why = sa1bpack.finalize(no_text / "pack").missing["sa_000000"]
    assert r"d\udcff/sa_000000.tar: " in why


def test_a_selection_of_a_pack_in_a_folder_whose_name_is_no_text_is_refused(no_text, tmp_path):
    pack(no_text / "sa_000000.tar", no_text / "pack")
    with pytest.raises(OptionError, match=r"records where its pack is, as UTF-8.*rename"):
        sa1bpack.open(no_text / "pack").save_selection(tmp_path / "all.sel")
    code, _, error = run("subset", no_text / "pack", "-o", tmp_path / "all.sel", "--fraction", "1")
    assert code == 2 and r"d\udcff/pack: a selection records" in error
    assert not (tmp_path / "all.sel").exists()
    code, out, _ = run("verify", no_text / "pack", "--json")
    assert code == 0 and json.loads(out)["pack"] == str(no_text / "pack")


def test_a_terminal_that_does_not_know_its_size_shows_a_bar(tar, tmp_path):
    """With images and bytes per second."""
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (0, 0))
    command = [*COMMAND, *map(str, pack_command(tar, tmp_path / "pack"))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=its) as process:
        os.close(its)
        shown = b""
        with suppress(OSError):  # how Linux reports that the other end is closed
            while piece := os.read(mine, 65536):
                shown += piece
        os.close(mine)
    assert process.returncode == 0
    last = shown.decode().rstrip().split("\r")[-1]
    assert re.search(r"100%\|.*\d+ img/s", last), repr(shown)
    assert re.search(r"B/s", last) and "left" in last
