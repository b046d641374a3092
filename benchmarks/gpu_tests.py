"""The parts of gpu.py that run tests: those that need a device, and kernels under a sanitizer."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from gpu_parts import DEVICE, Options, Report

HANGS = 120  # seconds for a file of tests
TESTS_IN = Path(__file__).parents[1]
SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
# Of the tests of kernels: those that launch each of them, on small batches.
SANITIZED = ("tests/transforms/triton", "tests/transforms/test_runs.py")
_BROKEN = re.compile(r"^ERROR ([^\s:]+\.py)(?: |$)")  # a module that cannot be imported
_ENDED = re.compile(r"^(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error")


def tests(options: Options, report: Report) -> None:
    """The tests marked `cuda`, counted as they end; raises unless all that ran passed.

    Each folder or file in a process of its own: after an assertion on the device, or a crash, a
    process can do no more. All but the last are stopped after `HANGS` seconds. Plugins that happen
    to be there are not loaded, and what another numpy or torch deprecates is no failure.
    """
    env = test_environment()
    counts: dict[str, int] = {}
    failed = False
    for path in options.tests:
        others = [other for other in options.tests if other.startswith(f"{path}/")]
        ignored = [f"--ignore={other}" for other in others]
        command = [sys.executable, *pytest_command(path, *ignored)]
        with subprocess.Popen(
            command, cwd=TESTS_IN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=env,
        ) as process:  # fmt: skip
            watch = threading.Timer(HANGS, process.kill)
            watch.daemon = True
            if path != options.tests[-1]:
                watch.start()
            for line in process.stdout:
                print(line, end="", flush=True)
                _count(line, counts, report)
            watch.cancel()
        if process.returncode:
            report(note=f"pytest {path} exited with {process.returncode}")
            failed = True
    if failed:
        raise SystemExit(1)


def test_environment() -> dict[str, str]:
    """The environment of pytest."""
    search = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "TRITON_INTERPRET": "0" if DEVICE.type == "cuda" else "1",
        "PYTHONPATH": os.pathsep.join(search),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def pytest_command(*arguments: str) -> list[str]:
    """pytest on tests that need a device, as arguments of a Python."""
    return [
        "-m", "pytest", "-v", "-m", "cuda", "-p", "no:cacheprovider",
        "-p", "failures_at_once", "-o", f"faulthandler_timeout={HANGS - 30}", "--tb=short",
        "-W", "default::DeprecationWarning", "-W", "default::FutureWarning",
        "--continue-on-collection-errors", *arguments,
    ]  # fmt: skip


def _count(line: str, counts: dict[str, int], report: Report, way: str = "tests") -> None:
    """Report what a line of pytest says."""
    if found := _ENDED.match(line):
        name, outcome = found.groups()
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome in ("FAILED", "ERROR"):
            report(failed=name)
        report(way=way, **{key.lower(): number for key, number in counts.items()})
    elif found := _BROKEN.match(line):
        report(not_collected=found[1])


def sanitizer(options: Options, report: Report) -> None:
    """Tests of kernels under compute-sanitizer, which finds addresses outside of their arrays.

    It makes programs many times slower: tests are counted as they end, until time is up. Every
    tensor has an allocation of its own then: in one of torch's large ones, no address is outside.
    """
    programs = SANITIZERS
    if options.sanitizer:
        programs = (options.sanitizer,)
    program = next(filter(None, map(shutil.which, programs)), None)
    if program is None:
        report(note="not run: compute-sanitizer is not here")
        return
    command = [
        program, "--tool", "memcheck", "--target-processes", "application-only",
        sys.executable, *pytest_command(*SANITIZED),
    ]  # fmt: skip
    counts: dict[str, int] = {}
    begin = time.perf_counter()
    errors = 0
    with subprocess.Popen(
        command, cwd=TESTS_IN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=test_environment() | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    ) as process:  # fmt: skip
        for line in process.stdout:
            print(line, end="", flush=True)
            _count(line, counts, report, way="tests under compute-sanitizer")
            if line.startswith("========= Invalid"):
                report(note=line.strip())
            if summary := _ERRORS.search(line):
                errors += int(summary[1])
                report(errors=errors)
    report(seconds=round(time.perf_counter() - begin, 1), status=process.returncode)
    if errors:
        raise SystemExit(1)
