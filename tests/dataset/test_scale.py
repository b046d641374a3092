"""All of SA-1B, as sparse files: what opening and reading need does not grow with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCALE = Path(__file__).parents[2] / "benchmarks" / "scale.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The benchmark's figures of a small pack and of one of 11.2 million samples in 1000 shards."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("the kernel does not report the memory of a process here")
    folder = tmp_path_factory.mktemp("scale")
    options = ["--json", "--shards", "1000", "--copies", "5", "--folder", str(folder)]
    command = [sys.executable, str(SCALE), *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_opening_all_of_sa1b_takes_little_private_memory(found):
    """The index is mapped, and no object exists per sample."""
    large = found["large"]
    assert (large["samples"], large["shards"]) == (11_185_362, 1000)
    assert large["open_private_mb"] < 100  # Python and numpy included
    assert large["grown_mb"] < 20


def test_with_every_shard_open_the_mappings_are_within_the_kernels_default(found):
    """65,530 is vm.max_map_count where nobody changed it."""
    assert 10_000 < found["large"]["mappings"] < 65_530
    assert found["large"]["touched_anonymous_mb"] < 200


def test_a_selection_of_all_samples_is_saved_and_opened_without_a_step_per_sample(found):
    large, small = found["large"], found["small"]
    assert small["save_calls"] <= large["save_calls"] < 50_000
    assert small["open_saved_calls"] <= large["open_saved_calls"] < 200_000


def test_a_random_sample_takes_the_same_calls_at_any_scale(found):
    """No search depends on the size of the pack."""
    assert 0 < found["large"]["calls"] == found["small"]["calls"] < 60
