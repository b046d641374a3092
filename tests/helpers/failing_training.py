"""A training program whose batches fail an assertion: on a CPU at once, on a device in a kernel."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, torch, sa1bpack
def train(loader):
    for batch in loader:
        torch._assert_async(batch["images"].sum() < 0)
    print(batch["images"].sum().item())
loader = sa1bpack.Loader(sa1bpack.open(sys.argv[1]), 1, device=sys.argv[2], threads=2)
if sys.argv[3] == "True":
    with loader:
        train(loader)
else:
    train(loader)
"""


def failing_training(root: Path, device: str, closes: bool) -> str:
    """What the program prints as it ends: a traceback, and nothing of finalizers. `closes`: it
    closes the loader."""
    command = [sys.executable, "-c", SCRIPT, str(root), device, str(closes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stdout == "", done.stderr
    assert "Traceback (most recent call last)" in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stderr
