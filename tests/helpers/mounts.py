"""Programs that run on a mount which behaves as some do: mounts.c says how, and by which variables.

The shim needs a C compiler; where there is none, the tests that use it are skipped.
"""

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_suffix(".c")


@functools.cache
def _library() -> Path:
    """The compiled shim."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = Path(tempfile.mkdtemp(prefix="sa1bpack-mounts-")) / "mounts.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


def on_mount(folder: Path, **behaviour: object) -> dict[str, str]:
    """The environment of a process for which `folder` is such a mount.

    Args:
        behaviour: variables that mounts.c names; a process may also set them itself later.
    """
    variables = {name: str(value) for name, value in behaviour.items()}
    return {
        **os.environ,
        **variables,
        "LD_PRELOAD": str(_library()),
        "MOUNT": str(folder.resolve()),
    }
