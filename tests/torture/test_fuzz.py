"""The coverage-guided fuzzer over every target, and the kernels with bounds checks.

`make test` runs the kept seeds and inputs that hypothesis derives from them, see
tests/fuzz/test_fuzz_targets.py.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from targets import TARGETS

TESTS = Path(__file__).parent.parent
SECONDS = 60  # per target


def test_the_fuzzer_finds_nothing(torture, tmp_path):
    if not torture.full:
        pytest.skip("a minute per target: only with --torture")
    if find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install '.[fuzz]'")
    for target in TARGETS:
        command = [
            sys.executable, str(TESTS / "fuzz" / "run_fuzzer.py"), "--target", target,
            "--seconds", str(SECONDS), "--seed", str(torture.rng.randrange(1, 2**31)),
            "--findings", str(tmp_path),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-8000:]}"
        runs, branches = re.search(r"#(\d+)\s.* cov: (\d+)", done.stdout).groups()
        torture.record(f"fuzz {target}", int(runs), f"nothing ({branches} branches reached)")


def test_no_kernel_accesses_memory_outside_its_arrays(torture, tmp_path):
    """The tests of the kernels, compiled so that an index out of bounds is an IndexError."""
    if not torture.full:
        pytest.skip("compiles every kernel again: only with --torture")
    folders = [str(TESTS / name) for name in ("masks", "pixels", "fuzz", "packing/test_rejects.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *folders],
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)},
        cwd=TESTS.parent, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    torture.record("tests of the kernels with bounds checks", passed, "nothing")
