"""Programs that run for long: ways of reading crossed, the fuzzer, the documents' training."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import make_figures
import pytest
from targets import TARGETS

import sa1bpack

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


def run(*command, **options) -> subprocess.CompletedProcess:
    """Run a Python program; both outputs are `stdout`."""
    return subprocess.run(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", **options,
    )  # fmt: skip


def test_every_way_of_reading_has_the_batches_that_its_samples_say(torture, tmp_path):
    """tests/crossing/run.py, in a process of its own: if a case ends it, another one begins with
    the next case."""
    count, program = torture.rounds(5, 3000), TESTS / "crossing/run.py"
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


def test_the_example_of_training_md_learns_as_its_table_says(torture, sample_tar, tmp_path):
    """From tar to gradient, to the last step; tests/test_train_promptable.py has the first ones."""
    if not torture.full:
        pytest.skip("a minute or two: `make torture` has it")
    sa1bpack.pack(sample_tar, tmp_path / "packed", workers=1)
    text = (ROOT / "docs/training.md").read_text()
    done = run(ROOT / "scripts/train_promptable.py", *make_figures.example(), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    rows = re.findall(r"^\| (\d+) \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    scores = [json.loads(line) for line in (tmp_path / "run/scores.jsonl").read_text().splitlines()]
    for step, *expected in rows:
        [score] = [score for score in scores if score["step"] == int(step)]
        found = [score["iou@1"], score["iou@3"]]
        assert found == pytest.approx([float(value) for value in expected], abs=0.1), step
    torture.record("photographs learnt", scores[-1]["step"], f"IoU {scores[-1]['iou@3']:.2f}")
    assert (tmp_path / "run/predictions.png").exists()
