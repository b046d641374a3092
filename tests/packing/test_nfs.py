"""Commands on NFS, where a removed file that is in use stays, and so does its folder."""

import json
import subprocess
import sys
from pathlib import Path

from mounts import on_mount

_PROGRAM = Path(__file__).parents[1] / "helpers" / "files_in_use.py"


def test_what_a_reader_has_open_stays_under_working_names_and_stops_no_command(tmp_path):
    """It is removed by a later run; a pack is sound and can be read all the time."""
    mount, elsewhere = tmp_path / "mount", tmp_path / "elsewhere"
    for folder in (mount, elsewhere):
        folder.mkdir()
    environment = on_mount(mount)
    environment["PYTHONPATH"] = str(_PROGRAM.parent)
    command = [sys.executable, _PROGRAM, mount, elsewhere]
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 10
    for line in lines:
        assert any(".nfs" in name for name in line["kept"]), line["command"]
        for name in line["kept"]:
            assert name.split("/")[-1].startswith((".nfs", ".tmp-")), (line["command"], name)
        assert line["left"] == [], line["command"]
