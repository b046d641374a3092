"""Progress bars, wherever they are shown."""

import threading

import pytest
from tqdm import tqdm

from sa1bpack.packing.progress import Progress
from sa1bpack.progress import byte_bar, image_steps


@pytest.mark.parametrize("show", [False, True])
def test_bars_start_no_thread_that_stays_in_the_program(monkeypatch, show):
    """With one, every later fork, as of torch's workers, is one of a process with threads."""
    monkeypatch.setattr(tqdm, "monitor", None)  # none was started yet
    before = set(threading.enumerate())
    with byte_bar(show) as advance, image_steps(3, show) as step:
        advance(1, 2)
        step(1)
    Progress(10, show=show).close()
    assert set(threading.enumerate()) <= before
