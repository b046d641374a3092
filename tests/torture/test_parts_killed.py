"""Parts of a job, and `finalize`, killed at any call: repeated, they make the undisturbed pack."""

import shutil
from pathlib import Path

import pytest
from commands import temporaries
from forked import Forked
from scenarios import FLAGS, Disturbed, Stage, check_whole
from small_tars import contents


class Job(Disturbed):
    """A job of two parts in a new folder, one of whose commands is disturbed."""

    def __init__(self, stage: Stage, folder: Path, which: str):
        root = folder / "pack"
        part = ("pack", *stage.tars, "-o", root, "--workers", 1, *FLAGS, "--part")
        self._commands = {
            "other part": (*part, "1/2"),
            "part": (*part, "2/2"),
            "finalize": ("finalize", root),
        }
        super().__init__(root, folder, *self._commands[which])
        self._before = ("other part", "part") if which == "finalize" else ()
        self._folder, self._stage = folder, stage

    def _run_undisturbed(self, which: str) -> None:
        code, said = Forked(*self._commands[which], log=self._folder / "log").wait()
        assert code == 0, said

    def begin(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        for which in self._before:
            self._run_undisturbed(which)

    def check_completed_by_the_next(self, where: str) -> None:
        """Repeated, the commands make the undisturbed pack and leave nothing else."""
        for which in self._commands:
            check_whole(self.root)
            self._run_undisturbed(which)
        assert contents(self.root) == self._stage.expected, where
        assert temporaries(self.root) == [], where


@pytest.mark.parametrize("which", ["part", "finalize"])
def test_a_command_killed_at_any_call_is_completed_when_it_is_repeated(
    stage, tmp_path, torture, which
):
    rounds = Job(stage, tmp_path, which).end_at_any_call(torture, ["killed"], 2, 80)
    torture.record(f"SIGKILL at a call: {which}", rounds, "all completed to the undisturbed pack")
