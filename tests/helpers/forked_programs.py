"""Programs in forks of one interpreter that has imported torch and numba, and nothing of sa1bpack.

Importing takes two seconds or more. A program that needs a process of its own, but no interpreter
that has just begun, is spared them: it may end its process, fork, change modules, and is ended as
any other.
"""

import atexit
import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATIENCE = 90  # seconds; a program that takes longer has hung


@dataclass(frozen=True)
class _Program:
    """What a fork runs: its code, as `python -c` gets it; `action` is for all warnings."""

    code: str
    arguments: list[str]
    action: str
    environment: dict[str, str]
    folder: str
    output: str
    errors: str


class _Forks:
    """The interpreter; each program runs in a fork of it, one after the other."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that a program that hangs can be ended
        )
        atexit.register(self.end)

    def run(self, program: _Program, timeout: float) -> int:
        """The exit code of a program. Raises TimeoutError if it takes longer, in seconds."""
        pickle.dump(program, self.process.stdin)
        self.process.stdin.flush()
        answer = select.poll()  # `select` knows no descriptor from 1024 on
        answer.register(self.process.stdout, select.POLLIN)
        if not answer.poll(timeout * 1000):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise TimeoutError(f"a program took more than {timeout} s")
        return pickle.load(self.process.stdout)

    def end(self) -> None:
        """End the interpreter. Forks of this process may hold its input, so that never ends."""
        with contextlib.suppress(BrokenPipeError):
            pickle.dump(None, self.process.stdin)
            self.process.communicate()


_forks: list[_Forks] = []


def run_forked(
    code: str, *arguments: object, action: str = "default", timeout: float = _PATIENCE
) -> tuple[int, str, str]:
    """Run a program in a process of its own: (exit code, what it prints, and on stderr).

    Args:
        code: the program, as `python -c` gets it.
        arguments: `sys.argv[1:]`.
        action: for all warnings, as `python -W` gets it.
        timeout: in seconds; a program that takes longer is killed, and a TimeoutError.
    """
    if not _forks or _forks[-1].process.poll() is not None:
        _forks.append(_Forks())
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        errors = Path(folder, "errors")
        program = _Program(
            code=code,
            arguments=[str(argument) for argument in arguments],
            action=action,
            environment=dict(os.environ),
            folder=str(Path.cwd()),
            output=str(output),
            errors=str(errors),
        )
        status = _forks[-1].run(program, timeout)
        return status, output.read_text(), errors.read_text()


def forked_python(code: str, *arguments: object, **options: Any) -> str:
    """What a program prints, as `run_forked`; it must succeed, without a word on stderr."""
    status, output, errors = run_forked(code, *arguments, **options)
    assert status == 0, f"exit code {status}\n{errors}"
    assert errors == "", errors
    return output


def _next_program() -> _Program:
    """Fork for each program of the standard input, and say how it ended; returns in the forks."""
    while True:
        try:
            program: _Program | None = pickle.load(sys.stdin.buffer)
        except EOFError:
            program = None
        if program is None:
            sys.exit()
        child = os.fork()
        if child == 0:
            return program
        _, status = os.waitpid(child, 0)
        pickle.dump(os.waitstatus_to_exitcode(status), sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _become(program: _Program) -> None:
    """Give this process the environment and the streams of a program."""
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)
    sys.argv = ["-c", *program.arguments]
    for descriptor, path in enumerate((os.devnull, program.output, program.errors)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.dup2(opened, descriptor)
        os.close(opened)
    warnings.simplefilter(program.action)


if __name__ == "__main__":
    import numba
    import torch  # noqa: F401 - for all programs

    numba.njit(lambda: 0)()  # loads the compiler
    _program = _next_program()
    _become(_program)
    exec(compile(_program.code, "<program>", "exec"), {"__name__": "__main__"})
