"""Every feature of reading crossed with every other: see tests/crossing/run.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[1] / "crossing" / "run.py"


def test_every_way_of_reading_has_the_batches_that_its_samples_say(torture, tmp_path):
    """In a process of its own: if a case ends it, another one begins with the next case."""
    count = torture.rounds(45, 3000)
    seed = torture.seed * 1_000_000
    end, failures, output = seed + count, [], ""
    while seed < end:
        command = [f"--seed={seed}", f"--count={end - seed}", f"--folder={tmp_path}"]
        done = subprocess.run(
            [sys.executable, RUN, *command],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        begun = re.findall(r"^case (\d+)$", done.stdout, re.MULTILINE)
        assert begun, done.stdout
        seed = int(begun[-1]) + 1
        failures += re.findall(r"^failed: .*$", done.stdout, re.MULTILINE)
        if not re.search(r"cases passed$", done.stdout):
            failures.append(
                f"ended the process ({done.returncode}): "
                f"OMP_NUM_THREADS=1 python tests/crossing/run.py --seed {begun[-1]}"
            )
        output += done.stdout if done.returncode else ""
    assert not failures, "\n".join([output[-20_000:], *failures])
    torture.record("ways of reading crossed", count, "nothing")
