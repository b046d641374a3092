"""A layer between a packer and its system calls that makes them fail, write short, or kill.

It counts the calls on files below a folder, in one process: a `Plan` says what happens, and from
which call on. The calls themselves are real; those that a plan lets through reach the disk.
"""

import errno
import itertools
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from sa1bpack.format import replacing

# Calls that a full disk can refuse: "create" is an `open` that makes a file. A broken disk refuses
# any.
WRITES = ("mkdir", "symlink", "link", "pwrite", "ftruncate", "fsync", "fdatasync", "rename")
SPACE = ("create", *WRITES)
CALLS = (*SPACE, "open", "unlink", "rmdir")


@dataclass(frozen=True)
class Plan:
    """The fate of the calls below a folder.

    Attributes:
        root: the folder.
        action: "error": calls fail with `code`. "short": writes are short. "kill": the process
            kills itself instead of making the call. "count": calls are only counted.
        at, count: the first affected call, among those in `calls`, and the number of affected
            calls.
        report: file that gets a line for every affected call (with "count", every call), before it
            is made.
    """

    root: str
    action: str
    at: int = 0
    count: int = 1 << 60
    calls: tuple[str, ...] = CALLS
    code: int = errno.ENOSPC
    report: str | None = None

    def apply(self) -> None:
        """Install the layer in this process permanently."""
        layer = _Layer(self)
        for name in CALLS[1:]:
            setattr(os, name, layer.around(name, getattr(os, name)))
        # A system call that os lacks.
        replacing.exchange = layer.around("rename", replacing.exchange)


def cannot_exchange() -> None:
    """From now on, as on a file system that cannot exchange two names (NFS)."""
    replacing.exchange = lambda one, other: False


class _Layer:
    def __init__(self, plan: Plan):
        self.plan = plan
        self._number = itertools.count()
        self._random = random.Random(plan.at)
        self._report = plan.report and os.open(
            plan.report, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666
        )

    def around(self, name: str, call):
        """`call` through the layer."""

        def layered(target, *arguments, **named):
            path = path_of(
                arguments[0] if name in ("symlink", "link") else target, named.get("dir_fd")
            )
            makes = name == "open" and arguments[0] & (os.O_CREAT | os.O_TMPFILE)
            kind = "create" if makes else name
            if not self._due(kind, path):
                return call(target, *arguments, **named)
            if self._report is not None:
                os.write(self._report, f"{kind} {path}\n".encode())
            match self.plan.action:
                case "error":
                    # As that of a real call, which names no file where it has a descriptor.
                    named_in_it = () if isinstance(target, int) else (os.fspath(target),)
                    raise OSError(self.plan.code, os.strerror(self.plan.code), *named_in_it)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "short":
                    data, offset = memoryview(arguments[0]).cast("B"), arguments[1]
                    arguments = data[: self._random.randint(1, max(1, data.nbytes))], offset
            return call(target, *arguments, **named)

        return layered

    def _due(self, kind: str, path: str) -> bool:
        plan = self.plan
        if kind not in plan.calls or not (path + "/").startswith(plan.root + "/"):
            return False
        if kind == "mkdir" and Path(path).is_dir():  # the kernel checks that first
            return False
        return plan.at <= next(self._number) < plan.at + plan.count


def path_of(target, folder: int | None = None) -> str:
    """The path that a call uses: a path, one relative to an open folder, or a descriptor's."""
    if isinstance(target, int):
        return str(Path(f"/proc/self/fd/{target}").readlink()).removesuffix(" (deleted)")
    path = os.fspath(target)
    return path if folder is None else f"{path_of(folder)}/{path}"
