"""Whoever drives the loop, epoch and place are right, also after a stop.

20 cases of each kind here, 200 with --torture. `python tests/helpers/driving.py SEED` repeats one.
"""

import importlib.util

import driving
import pytest

# Of the libraries: their use of torch, and advice.
pytestmark = pytest.mark.filterwarnings("ignore")

# Of `make frameworks` alone: too large to be installed for every test.
OTHERS = ("torchdata", "trainer")


def wrong(outcomes) -> list[str]:
    return [f"python tests/helpers/driving.py {seed}: {text}" for seed, text in outcomes if text]


@pytest.fixture
def seeds(request) -> list[int]:
    return [*range(200 if request.config.getoption("torture") else 20)]


def test_a_run_in_one_process_is_where_it_would_be_wherever_it_was_stopped(seeds):
    alone, _ = driving.split_by_ranks(seeds)
    assert not wrong(driving.outcomes(alone))


def test_a_run_of_two_processes_is_where_it_would_be_wherever_it_was_stopped(seeds):
    _, together = driving.split_by_ranks(seeds)
    assert not wrong(driving.outcomes_of_ranks(together))


@pytest.mark.parametrize("driver", OTHERS)
def test_so_is_a_run_of_libraries_that_only_make_frameworks_installs(seeds, driver):
    if importlib.util.find_spec(driving.PACKAGES[driver]) is None:
        pytest.skip(f"{driving.PACKAGES[driver]} is not installed: make frameworks")
    alone, _ = driving.split_by_ranks(seeds, (driver,))
    assert not wrong(driving.outcomes(alone, (driver,)))
