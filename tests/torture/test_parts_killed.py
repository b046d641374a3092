"""Parts of a job, and `finalize`, killed at any call: repeated, they make the undisturbed pack."""

import signal
from pathlib import Path

import pytest
from commands import temporaries
from faults import Plan
from forked import Forked
from scenarios import FLAGS, Stage, check_whole
from small_tars import contents

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="calls are recognised by way of Linux's /proc"
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


class Job:
    """A job of two parts in a new folder; one of its commands is disturbed."""

    def __init__(self, stage: Stage, folder: Path):
        folder.mkdir()
        self.root = folder / "pack"
        self._folder = folder
        self._stage = stage
        part = ("pack", *stage.tars, "-o", self.root, "--workers", 1, *FLAGS, "--part")
        self._commands = {
            "other part": (*part, "1/2"),
            "part": (*part, "2/2"),
            "finalize": ("finalize", self.root),
        }

    def run(self, which: str, **disturbance) -> tuple[int, str]:
        """Run a command to its end."""
        plan = Plan(str(self.root), **disturbance).apply if disturbance else lambda: None
        return Forked(*self._commands[which], log=self._folder / "log", prepare=plan).wait()

    def check_completed(self) -> None:
        """Repeated, the commands make the undisturbed pack and leave nothing else."""
        for which in ("other part", "part", "finalize"):
            check_whole(self.root)
            code, said = self.run(which)
            assert code == 0, said
        assert contents(self.root) == self._stage.expected
        assert temporaries(self.root) == []


@pytest.mark.parametrize("which", ["part", "finalize"])
def test_a_command_killed_at_any_call_is_completed_when_it_is_repeated(
    stage, tmp_path, torture, which
):
    def begun(number: int) -> Job:
        job = Job(stage, tmp_path / f"job{number}")
        if which == "finalize":
            assert job.run("other part")[0] == job.run("part")[0] == 0
        return job

    report = tmp_path / "report"
    assert begun(0).run(which, action="count", report=str(report))[0] == 0
    total = len(report.read_text().splitlines())
    steps = torture.rng.sample(range(total), min(total, torture.rounds(2, 80)))
    killed = 0
    for number, at in enumerate(steps, 1):
        job = begun(number)
        code, said = job.run(which, action="kill", at=at)
        assert code in (0, -signal.SIGKILL), said  # the number of calls varies slightly with timing
        killed += code != 0
        job.check_completed()
    assert killed > 0
    torture.record(f"SIGKILL at a call: {which}", killed, "all completed to the undisturbed pack")
