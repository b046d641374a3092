"""The `sa1bpack` command, in a process of its own or within this one."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_tars import SMALL

from sa1bpack.cli.main import main

# What pip makes of the entry in pyproject.toml.
COMMAND = (sys.executable, "-c", "import sys; from sa1bpack.__main__ import main; sys.exit(main())")
_PATIENCE = 60  # seconds; a process that takes longer has hung


def flags_of(options: dict) -> tuple[str, ...]:
    """Options of a pack as words of a command."""
    pairs = ((f"--{name.replace('_', '-')}", str(value)) for name, value in options.items())
    return tuple(itertools.chain(*pairs))


SMALL_FLAGS = flags_of(SMALL)


def pack_command(source, root: Path, *more, workers: int = 1) -> tuple:
    """Words that make a small pack of a source, or of a list of them."""
    sources = source if isinstance(source, list) else [source]
    return ("pack", *sources, "--output", root, "--workers", workers, *SMALL_FLAGS, *more)


def python(*arguments, quiet: bool = True, **options) -> str:
    """What Python prints with these arguments; it must succeed, and if `quiet` without warnings."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    assert not quiet or without_note(done.stderr) == "", done.stderr
    return done.stdout


def start(*arguments, path: Path | None = None, **options) -> subprocess.Popen:
    """Start `sa1bpack` with these arguments; `path` is first on its module search path."""
    search = [str(path)] if path else []
    search += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        **options,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    """Wait for a process: (exit code, stdout, stderr without the note on compiling kernels)."""
    with process:
        try:
            out, error = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, without_note(error)


def without_note(error: str) -> str:
    """Standard error without the line which the first process that compiles kernels prints."""
    return re.sub(r"^sa1bpack: compiling kernels .*\n", "", error, flags=re.MULTILINE)


def run(*arguments, **options) -> tuple[int, str, str]:
    """Run `sa1bpack` to its end: (exit code, stdout, stderr)."""
    return finish(start(*arguments, **options))


_EACH = """
import contextlib, io, json, sys
from sa1bpack.cli.main import main

results = []
for arguments in json.loads(sys.argv[1]):
    out = io.StringIO()
    error = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    results.append((code, out.getvalue(), error.getvalue()))
print(json.dumps(results))
"""


def run_each(*commands: tuple, path: Path) -> list[tuple[int, str, str]]:
    """Run `sa1bpack` with these lists of arguments one after the other, in one process of its own
    with `path` first on its module search path: what `run` returns of each."""
    arguments = json.dumps([[str(word) for word in command] for command in commands])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), *sys.path])}
    printed = python("-c", _EACH, arguments, env=environment)
    return [(code, out, without_note(error)) for code, out, error in json.loads(printed)]


def wait_until(condition: Callable[[], object], process: subprocess.Popen | None = None) -> object:
    """Wait until a condition holds or the process ends; returns the condition's last value."""
    end = time.monotonic() + _PATIENCE
    while not (found := condition()) and (process is None or process.poll() is None):
        assert time.monotonic() < end, f"the condition did not hold within {_PATIENCE} s"
        time.sleep(0.002)
    return found


def workers_of(pid: int) -> list:
    """The worker processes of a packer, as psutil.Process."""
    import psutil  # tests that need a GPU run without it

    try:
        return [
            child
            for child in psutil.Process(pid).children()
            if "sa1bpack.packing.workers" in child.cmdline()
        ]
    except psutil.NoSuchProcess:
        return []


def published(root: Path) -> int:
    """The number of shards with their final names."""
    return sum(path.name[0] not in ".z" for path in (root / "shards").glob("*"))


def temporaries(root: Path) -> list[str]:
    """The working names below a folder, except locks and records of runs, which packs keep."""
    hidden = [path for path in root.rglob(".*") if path.name not in (".lock", ".runs.jsonl")]
    return [str(path.relative_to(root)) for path in hidden]


@pytest.fixture
def command(capsys) -> Callable[..., tuple[int, str, str]]:
    """command(*arguments), called within this process: (exit code, stdout, stderr)."""

    def command(*arguments) -> tuple[int, str, str]:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
        out, error = capsys.readouterr()
        return code, out, without_note(error)

    return command
