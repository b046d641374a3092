"""A training program whose batches fail an assertion: on a CPU at once, on a device in a kernel."""

from pathlib import Path

from forked_programs import run_forked

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
    status, output, errors = run_forked(SCRIPT, root, device, closes)
    assert status == 1 and output == "", errors
    assert "Traceback (most recent call last)" in errors
    assert "Exception ignored" not in errors
    return errors
