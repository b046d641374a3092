"""Mounts without locks of files: what goes on without them says so, what needs them is refused."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COMMAND, pack_command
from mounts import on_mount
from small_tars import contents, members, pack_small, write_tar

import sa1bpack

_PROGRAM = Path(__file__).parents[1] / "helpers" / "commands_on_a_mount.py"
# Answers of flock(2): Lustre without -o flock, EFS, NFS without lockd and 9p, others in user space.
_NO_LOCKS = (errno.ENOSYS, errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
_FAILS = (errno.EIO, errno.ESTALE)

# Call → the folder, below the mount, that a warning names; what is not here needs no lock.
_GO_ON = {
    "estimate": "",
    "pack": "/pack/.lock",
    "pack more": "/pack/.lock",
    "pack in workers": "/other/.lock",
    "finalize": "/pack/.lock",
    "repair --dry-run": "/pack",
    "repair": "/pack/.lock",
    "merge": "/merged/.lock",
    "derive": "/pack/side/grey",
    "attach": "/pack/side/rows",
}
# Call → the class of its error, the path in it, and a remedy.
_REFUSED = {
    "pack a part": ("OutputRefused", "", "mount it with locks"),
    "repair a part": ("OutputRefused", "/pack/.lock", "repair without a part"),
    "cache": ("OptionError", "/cache", "choose a folder on a local disk"),
}


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tars")
    return [
        write_tar(folder / "sa_000000.tar", members(range(5))),
        write_tar(folder / "sa_000001.tar", members(range(10, 13))),
    ]


@pytest.fixture
def mount(tmp_path) -> Path:
    folder = tmp_path / "mount"
    folder.mkdir()
    return folder


def test_every_command_goes_on_and_says_so_or_refuses_with_path_cause_and_remedy(
    tars, mount, tmp_path
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [sys.executable, _PROGRAM, mount, elsewhere, *tars, *_NO_LOCKS]
    environment = on_mount(mount)
    environment["PYTHONPATH"] = str(_PROGRAM.parent)
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = [json.loads(line) for line in done.stdout.splitlines()]
    assert {call["errno"] for call in calls} == {str(code) for code in _NO_LOCKS}
    assert {call["call"] for call in calls} >= _GO_ON.keys() | _REFUSED.keys()
    for call in calls:
        name = call["call"]
        if name in _REFUSED:
            kind, path, remedy = _REFUSED[name]
            assert call["outcome"].startswith(kind)
            assert f"{mount}{path}: its file system has no file locks" in call["outcome"]
            assert remedy in call["outcome"]
            continue
        assert call["outcome"] == "done", call
        if name in _GO_ON:
            [line] = call["said"]
            assert line.startswith(f"{mount}{_GO_ON[name]}: its file system has no file locks")
            assert "going on without" in line
        else:
            assert call["said"] == [], call


@pytest.mark.parametrize("code", _FAILS)
def test_a_server_that_fails_while_a_folder_is_locked_is_an_error_that_names_it(tars, mount, code):
    environment = on_mount(mount, FLOCK_ERRNO=code)
    words = map(str, (*COMMAND, *pack_command(tars, mount / "pack")))
    done = subprocess.run([*words], env=environment, capture_output=True, text=True)
    assert done.returncode == 4
    assert str(mount / "pack" / ".lock") in done.stderr


def test_two_runs_into_one_folder_without_locks_leave_a_pack_that_the_command_completes(
    tars, mount, tmp_path
):
    environment = on_mount(mount, FLOCK_ERRNO=errno.ENOSYS)
    root = mount / "pack"
    words = [str(word) for word in (*COMMAND, *pack_command(tars, root))]
    runs = [subprocess.Popen(words, env=environment, stderr=subprocess.PIPE) for _ in range(2)]
    for run in runs:
        run.communicate()
    assert subprocess.run(words, env=environment, capture_output=True).returncode == 0
    pack_small(tars, tmp_path / "alone")
    assert contents(root) == contents(tmp_path / "alone")
    assert sa1bpack.verify(root).ok
