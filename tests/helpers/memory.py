"""Peak memory of a program, measured in its own process."""

import os
import subprocess
import sys
from pathlib import Path

_HELPERS = Path(__file__).parent
_WRAPPER = """
import sys
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
import {imports}
before = peak()
{program}
print((peak() - before) >> 10)
"""


def peak_growth(program: str, *arguments, imports: str) -> int:
    """MiB of a program's peak memory, in addition to that of `imports` alone.

    `arguments` are its `sys.argv[1:]`. Raises AssertionError if the program fails.
    """
    text = _WRAPPER.format(imports=imports, program=program)
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(_HELPERS)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout.split()[-1])
