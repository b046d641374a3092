"""Large packs of sparse files: what opening and reading need does not grow with them.

48,000 samples in 24 shards; with `--torture` all of it in 1000.
"""

import json
from pathlib import Path

import pytest
from commands import python

SCALE = Path(__file__).parents[2] / "benchmarks/scale.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory, request):
    """The benchmark's figures of a small pack and of a large one."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("the kernel does not report the memory of a process here")
    samples, shards = (11_185_362, 1000) if request.config.getoption("torture") else (48_000, 24)
    options = ["--samples", samples, "--shards", shards, "--copies", 2, "--reads", 20]
    folder = tmp_path_factory.mktemp("scale")
    found = json.loads(python(SCALE, "--json", *options, "--folder", folder))
    assert (found["large"]["samples"], found["large"]["shards"]) == (samples, shards)
    return found


def test_opening_a_large_pack_takes_little_private_memory(found):
    """The index is mapped, and no object exists per sample."""
    large = found["large"]
    assert large["open_private_mb"] < 100  # Python and numpy included
    assert large["grown_mb"] < 12 + large["samples"] / 1.5e6


def test_with_every_shard_open_the_mappings_are_within_the_kernels_default(found):
    """All 1000 shards of SA-1B: vm.max_map_count is 65,530 where nobody changed it."""
    assert 10 < found["large"]["mappings"] / found["large"]["shards"] < 60
    assert found["large"]["touched_anonymous_mb"] < 200


def test_a_selection_of_all_samples_is_saved_and_opened_without_a_step_per_sample(found):
    large = found["large"]
    small = found["small"]
    assert small["save_calls"] <= large["save_calls"] < 50_000
    assert small["open_saved_calls"] <= large["open_saved_calls"] < 200_000


def test_a_random_sample_takes_the_same_calls_at_any_scale(found):
    """No search depends on the size of the pack."""
    assert 0 < found["large"]["calls"] == found["small"]["calls"] < 60
