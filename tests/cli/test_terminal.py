"""What a terminal shows, in a process of its own."""

import os
import pty
import re
import subprocess
import termios

import pytest
from commands import COMMAND, SMALL_FLAGS, run
from small_tars import members, write_tar


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "sa_000000.tar", members(range(12)))


def test_a_terminal_shows_a_bar_with_images_and_bytes_per_second(tar, tmp_path):
    shown = shown_by("pack", tar, "--output", tmp_path / "pack", "--workers", 1, *SMALL_FLAGS)
    last = shown.rstrip().split("\r")[-1]
    assert re.search(r"100%\|.*\d+ img/s", last), repr(shown)
    assert re.search(r"B/s", last) and "left" in last


def shown_by(*arguments) -> str:
    """The output of a command that succeeds, on a terminal that does not know its size."""
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (0, 0))
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=its,
    ) as process:
        os.close(its)
        shown = _read_all(mine)
    assert process.returncode == 0
    return shown


def _read_all(descriptor: int) -> str:
    pieces = []
    try:
        while piece := os.read(descriptor, 65536):
            pieces.append(piece)
    except OSError:  # how Linux reports that the other end is closed
        pass
    os.close(descriptor)
    return b"".join(pieces).decode()


def test_a_strange_name_in_a_pack_is_shown_escaped(packed, monkeypatch):
    """Not UTF-8, and not harmless: it could not be printed, or would colour the terminal."""
    (packed / "shards" / os.fsdecode(b"sa\xff\x1b[31m")).write_bytes(b"")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    code, out, error = run("verify", packed)
    assert (code, error) == (1, "")
    assert r"sa\udcff\x1b[31m: not in the manifest" in out
