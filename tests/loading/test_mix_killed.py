"""The mixture of three sources over 4, then 2, then 3 processes that are killed is one run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import mixing
import mixing_ranks
import pytest

LAST_STEP = 30
PROGRAM = Path(mixing_ranks.__file__)


def lines_of(folder: Path, rank: int) -> list:
    """What a rank has seen; a line that a kill has cut is left out."""
    path = folder / f"seen-{rank}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def run(folder: Path, world_size: int, at_end: str, kill_after: int | None) -> list:
    """What all ranks have seen together, of processes that are killed after so many batches."""
    for path in folder.glob("seen-*"):
        path.unlink()
    arguments = [sys.executable, PROGRAM, folder, world_size, at_end, LAST_STEP]
    running = subprocess.Popen([*map(str, arguments)], start_new_session=True)
    try:
        limit = time.monotonic() + 120
        while kill_after is not None and len(lines_of(folder, 0)) < kill_after:
            assert running.poll() is None and time.monotonic() < limit
            time.sleep(0.002)
        if kill_after is None:
            assert running.wait(120) == 0
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    seen = [lines_of(folder, rank) for rank in range(world_size)]
    return [mixing.joined(list(parts)) for parts in zip(*seen, strict=False)]


@pytest.mark.parametrize("at_end", ["restart", "stop", "skip"])
def test_a_mixture_of_processes_that_are_killed_is_that_of_a_run_without_kills(tmp_path, at_end):
    rng = random.Random(at_end)
    mixing.write_packs(tmp_path)
    steps = mixing_ranks.STEPS_PER_EPOCH if at_end == "restart" else None
    mix = mixing.mix_of(mixing.datasets(tmp_path), at_end=at_end, steps=steps)
    expected: list = []
    while len(expected) <= LAST_STEP:
        expected += [mixing.seen(batch) for batch in mix]
    expected = json.loads(json.dumps(expected[: LAST_STEP + 1]))
    checkpoint = tmp_path / "state.json"
    first = 0
    for world_size, kill_after in ((4, rng.randint(3, 9)), (2, rng.randint(4, 9)), (3, None)):
        found = run(tmp_path, world_size, at_end, kill_after)
        assert len(found) >= (kill_after or 1) - 1
        assert found == expected[first : first + len(found)]
        state = json.loads(checkpoint.read_text())
        first = state["steps_before"] + state["batches"]
        assert first > 0
    assert found[-1] == expected[-1]
