"""Programs in benchmarks/: imported, and run. Complete runs are left to `make torture`."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def complete_runs(request) -> None:
    """Skips what uses it, unless all tests of reliability run: it takes a minute or more."""
    if not request.config.getoption("torture"):
        pytest.skip("a complete run of a benchmark: `make torture` has it")


@pytest.fixture(scope="module")
def module() -> Iterator[Callable]:
    """module(name): a module of benchmarks/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module


@pytest.fixture(scope="session")
def figures_of() -> Callable[..., tuple[dict, str]]:
    """figures_of(name, folder, *arguments): figures that a program writes into a folder on a CPU,
    and what it prints."""

    def run(name: str, folder: Path, *arguments) -> tuple[dict, str]:
        figures = folder / "figures.json"
        command = [sys.executable, BENCHMARKS / f"{name}.py", *arguments, "--json", figures]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, env=environment
        )
        if done.returncode == 77:  # of slow.py
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return json.loads(figures.read_text()), done.stdout

    return run
