"""What docs/cluster.md offers to schedulers works, with the scheduler's variables set by hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COMMAND, SMALL_FLAGS
from small_tars import contents, members, pack_small, write_tar

import sa1bpack

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "slurm").glob("*.sbatch"))


@pytest.fixture
def environment(tmp_path):
    """A PATH on which `sa1bpack` is this one, and nothing of a scheduler."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "sa1bpack"
    command.write_text(f"#!{sys.executable}\n{COMMAND[2]}\n")
    command.chmod(0o755)
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
    return {**kept, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def bash(*words, **options) -> subprocess.CompletedProcess:
    """Run bash; its output is text."""
    return subprocess.run(["bash", *words], capture_output=True, text=True, **options)


def test_an_array_that_counts_from_0_is_told_how_to_count(environment):
    """Of --array=0-1, part 1/1 would be all tars."""
    given = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_MAX": "1"}
    done = bash(SCRIPTS[0], "--output", "pack", "sa_*.tar", env={**environment, **given})
    assert done.returncode == 2 and "sbatch --array=1-2" in done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid_bash_and_says_that_its_environment_is_not_active(tmp_path, script):
    done = bash("-n", script)
    assert (done.returncode, done.stderr) == (0, "")
    done = bash(script, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert done.returncode == 127 and "activate" in done.stderr


def test_the_tasks_of_an_array_and_finalize_make_the_pack_of_one_run(tmp_path, environment):
    tars = [write_tar(tmp_path / f"sa_00000{n}.tar", members(range(9 * n, 9 * n + 6)))
            for n in range(3)]  # fmt: skip
    root, script = tmp_path / "pack", SCRIPTS[0]

    def task(number: int, **more: str) -> None:
        given = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_CPUS_PER_TASK": "1", **more}
        words = ("--output", root, f"{tmp_path}/sa_*.tar", *SMALL_FLAGS)
        done = bash(script, *words, env={**environment, **given})
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"part {number}/2 of a job")

    task(1, SLURM_ARRAY_TASK_MAX="2", SLURM_ARRAY_TASK_COUNT="2")
    assert sa1bpack.finalize(root).parts == ((2, 2),)
    task(2, SLURM_ARRAY_TASK_MAX="2", SLURM_ARRAY_TASK_COUNT="1", PARTS="2")  # --array=2 alone
    assert sa1bpack.finalize(root).complete
    pack_small(tars, tmp_path / "whole")
    assert contents(root) == contents(tmp_path / "whole")
