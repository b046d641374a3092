"""The benchmark of reading from the disk runs, and reports every line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COLD = Path(__file__).parents[2] / "benchmarks" / "cold.py"
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="dropping pages is Linux's"
)


def test_every_line_of_a_pack_is_reported(tmp_path, sample_tar, complete_runs):
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(COLD), str(sample_tar), "--folder", str(tmp_path / "packs")]
    command += ["--layout", "native", "--samples", "6", "--rounds", "1", "--batch", "4"]
    command += ["--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    lines = [line["line"] for line in found["lines"]]
    assert len(lines) == len(set(lines)) == 14  # ten of bytes, and four Loaders
    assert all(line["speed"][0] > 0 for line in found["lines"])
    for line in found["lines"]:
        if line["line"].startswith("O_DIRECT"):
            assert line["cached_mb"][0] < 1
    assert len(found["first_batch_seconds"]) == 2
    assert done.stdout.count("(ceiling)") == 1
