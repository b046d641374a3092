"""Programs that run for long: ways of reading crossed, the fuzzer, the training of the README."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from targets import TARGETS

import sa1bpack

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
STEPS = 700  # fewer than two cores do in the README's 400 seconds; 0.925 on 2026-11-25


def run(*command, **options) -> subprocess.CompletedProcess:
    """Run a Python program; both outputs are `stdout`."""
    return subprocess.run(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", **options,
    )  # fmt: skip


def test_every_way_of_reading_has_the_batches_that_its_samples_say(torture, tmp_path):
    """tests/crossing/run.py, in a process of its own: if a case ends it, another one begins with
    the next case."""
    count, program = torture.rounds(30, 3000), TESTS / "crossing/run.py"
    seed = torture.seed * 1_000_000
    end, failures, output = seed + count, [], ""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    while seed < end:
        options = [f"--seed={seed}", f"--count={end - seed}", f"--folder={tmp_path}"]
        done = run(program, *options, env=environment)
        begun = re.findall(r"^case (\d+)$", done.stdout, re.MULTILINE)
        assert begun, done.stdout
        seed = int(begun[-1]) + 1
        failures += re.findall(r"^failed: .*$", done.stdout, re.MULTILINE)
        if not re.search(r"cases passed$", done.stdout):
            again = f"OMP_NUM_THREADS=1 python tests/crossing/run.py --seed {begun[-1]}"
            failures.append(f"ended the process ({done.returncode}): {again}")
        output += done.stdout if done.returncode else ""
    assert not failures, "\n".join([output[-20_000:], *failures])
    torture.record("ways of reading crossed", count, "nothing")


def test_the_fuzzer_finds_nothing(torture, tmp_path):
    """Guided by coverage; `make test` has inputs that hypothesis makes, see tests/fuzz."""
    if not torture.full:
        pytest.skip("a minute per target: only with --torture")
    if find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install '.[fuzz]'")
    for target in TARGETS:
        options = ["--seconds", 60, "--seed", torture.rng.randrange(1, 2**31)]
        options += ["--target", target, "--findings", tmp_path]
        done = run(TESTS / "fuzz/run_fuzzer.py", *options)
        assert done.returncode == 0, done.stdout[-8000:]
        runs, branches = re.search(r"#(\d+)\s.* cov: (\d+)", done.stdout).groups()
        torture.record(f"fuzz {target}", int(runs), f"nothing ({branches} branches reached)")


def test_no_kernel_accesses_memory_outside_its_arrays(torture, tmp_path):
    """The tests of the kernels, compiled so that an index out of bounds is an IndexError."""
    if not torture.full:
        pytest.skip("compiles every kernel again: only with --torture")
    folders = [TESTS / name for name in ("masks", "pixels", "fuzz", "packing/test_rejects.py")]
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = run(*options, *folders, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-8000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    torture.record("tests of the kernels with bounds checks", passed, "nothing")


def test_the_command_of_the_readme_reaches_a_mean_iou_of_0_85_at_three_clicks(
    torture, sample_tar, tmp_path
):
    """From tar to gradient: a model learns the photographs of the sample tar by heart."""
    if not torture.full:
        pytest.skip("six minutes of two cores: `make torture` has it")
    sa1bpack.pack(sample_tar, tmp_path / "packed", workers=1)
    text = (ROOT / "README.md").read_text()
    [command] = re.findall(r"^python (scripts/train_promptable\.py .*\\\n.*)$", text, re.M)
    script, *options = shlex.split(command.replace("\\\n", ""))
    until = options.index("--seconds")
    options[until:] = ["--epochs", str(STEPS)]  # a batch is an epoch
    done = run(ROOT / script, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    scores = json.loads(re.search(r"mean IoU after clicks: (.*)", done.stdout)[1])
    torture.record("three photographs learnt", STEPS, f"IoU {scores['iou@3']} at three clicks")
    assert scores["iou@3"] >= 0.85
    assert (tmp_path / "run" / "predictions.png").exists()
