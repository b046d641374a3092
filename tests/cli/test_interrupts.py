"""Interruptions and odd standard streams, in a process of its own."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from commands import COMMAND, pack_command, run, run_each, temporaries
from preloads import MOMENTS, lost_signal, signal_before_import
from small_packs import pack_small

import sa1bpack

# Stands for a module that is slow to import: it raises the signal of Ctrl-C meanwhile.
_INTERRUPTING = "import os, signal\nos.kill(os.getpid(), signal.{})\nraise SystemExit('too late')\n"


@pytest.mark.parametrize(
    "name, code, word", [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)
def test_an_interruption_while_modules_load_shows_no_traceback(tar, tmp_path, name, code, word):
    (tmp_path / "path").mkdir()
    (tmp_path / "path/numba.py").write_text(_INTERRUPTING.format(name))
    done = run("pack", tar, "--output", tmp_path / "pack", path=tmp_path / "path")
    assert done == (code, "", f"sa1bpack: {word}\n")


@pytest.mark.parametrize(
    "module, by",
    [
        ("sa1bpack.interrupts", "module"),
        ("sa1bpack.interrupts", "script"),
        ("sa1bpack.cli.main", "script"),
        ("sa1bpack.cli.checking", "script"),
    ],
)
def test_ctrl_c_at_the_very_start_is_one_line(tmp_path, module, by):
    """Before the command line has been read, and with it what a signal should do."""
    (tmp_path / "sitecustomize.py").write_text(signal_before_import(module, signal.SIGINT))
    command = COMMAND if by == "script" else (sys.executable, "-m", "sa1bpack")
    done = subprocess.run(
        [*command, "verify", "pack"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sa1bpack: interrupted\n")


def test_ctrl_c_after_the_work_shows_no_traceback(tmp_path):
    ending = f"import atexit, os\natexit.register(os.kill, os.getpid(), {signal.SIGINT:d})\n"
    (tmp_path / "sitecustomize.py").write_text(ending)
    code, out, error = run("info", path=tmp_path)
    assert (code, error) == (-signal.SIGINT, "") and out.startswith("sa1bpack ")


def test_the_installed_command_is_the_one_that_is_tested():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["sa1bpack"].partition(":")
    assert f"from {module} import {function}; sys.exit({function}())" in COMMAND[-1]


@pytest.mark.parametrize(
    "moment, workers, sent",
    [
        *((moment, 1, signal.SIGINT) for moment in MOMENTS if moment != "between two samples"),
        ("between two samples", 2, signal.SIGTERM),
    ],
)
def test_a_signal_whose_exception_is_lost_ends_the_run_all_the_same(
    tar, tmp_path, moment, workers, sent
):
    code, word = {2: (130, "interrupted"), 15: (143, "terminated")}[sent]
    (tmp_path / "sitecustomize.py").write_text(lost_signal(moment, sent))
    root = tmp_path / "pack"
    found, out, error = run(*pack_command(tar, root, workers=workers), path=tmp_path)
    assert (found, out) == (code, "")
    assert error.startswith(f"sa1bpack: {word}\n")
    assert "Traceback" not in error
    assert pack_small(tar, root).complete
    assert sa1bpack.verify(root).ok and temporaries(root) == []


def test_a_signal_that_the_caller_ignores_is_ignored(tar, tmp_path):
    """As `nohup` and a shell's background jobs have it."""
    ignoring = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    preload = ignoring + lost_signal("while modules load", signal.SIGINT)
    (tmp_path / "sitecustomize.py").write_text(preload)
    assert run(*pack_command(tar, tmp_path / "pack"), path=tmp_path)[0] == 0


def test_commands_that_need_no_kernels_load_none(tmp_path):
    (tmp_path / "numba.py").write_text("raise SystemExit('numba was imported')\n")
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    for code, out, error in run_each(("--help",), ("info",), path=tmp_path):
        assert (code, error) == (0, "")
        assert out


def test_closed_standard_streams_lose_only_the_output(tar, tmp_path):
    words = map(str, pack_command(tar, tmp_path / "pack"))
    command = ["/bin/sh", "-c", '"$@" >&- 2>&- <&-', "sh", *COMMAND, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sa1bpack.verify(tmp_path / "pack").ok
    command = ["/bin/sh", "-c", '"$@" >&-', "sh", *COMMAND, "verify", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "not a pack" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that only Linux has")
def test_output_that_cannot_be_written_is_a_disk_error_and_is_named():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4
    what, remedy = done.stderr.splitlines()
    assert what == "sa1bpack: [Errno 28] No space left on device: 'standard output'"
    assert remedy.startswith("sa1bpack: the disk is full")
