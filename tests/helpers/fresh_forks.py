"""Programs with one fault, in forks of an interpreter of its own that has run nothing else.

A client of object stores keeps threads, which a fork does not have: whoever uses one in a fork of a
process that has used one before waits for ever. Here no program shares a process with another.
"""

import importlib
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

from one_fault import Fault, run_with

from sa1bpack.packing.options import PackOptions
from sa1bpack.packing.sample import warm_up

# What a program imports that packs into an object store: once for all forks. No client is made.
_IMPORTED = ("botocore.session", "obstore", "sa1bpack.packing.run", "sa1bpack.remote.upload")


class FreshForks:
    """A new interpreter, with the environment of this moment; each program runs in a fork of it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it

    def run_with(
        self, program: Callable[[], object], root: Path, log: Path, fault: Fault | None = None
    ) -> tuple[str, Counter[str]]:
        """As `one_fault.run_with`, of a program that can be pickled."""
        pickle.dump((program, root, log, fault), self._process.stdin)
        self._process.stdin.flush()
        failure, ending = pickle.load(self._process.stdout)
        if failure is not None:
            raise failure
        return ending


def _serve() -> None:
    """Run each program of the standard input, and print how it ended."""
    for name in _IMPORTED:
        importlib.import_module(name)
    warm_up(PackOptions())
    while True:
        try:
            program, root, log, fault = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        failure = None
        ending = None
        try:
            ending = run_with(program, root, log, fault)
        except AssertionError as error:
            failure = error
        pickle.dump((failure, ending), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
