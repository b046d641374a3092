"""Whoever drives the loop, epoch and place are right, also after a stop.

4 to 10 cases of each kind here, 200 with --torture. `python tests/helpers/driving.py SEED` is one.
"""

import importlib.util
from collections.abc import Iterable

import driving
import pytest
from commands import python

# Of the libraries: their use of torch, and advice.
pytestmark = pytest.mark.filterwarnings("ignore")

# Of `make frameworks` alone: too large to be installed for every test.
OTHERS = {"torchdata": "torchdata", "trainer": "transformers"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the pack that is read."""
    folder = tmp_path_factory.mktemp("driving")
    driving.write_pack(folder)
    return folder


@pytest.fixture
def seeds(request) -> range:
    return range(200 if request.config.getoption("torture") else 10)


@pytest.fixture
def few(request, seeds) -> Iterable[int]:
    """Seeds of which each driver has one."""
    return seeds if request.config.getoption("torture") else (3, 6, 7, 9)


def test_a_run_in_one_process_is_where_it_would_be_wherever_it_was_stopped(few, folder):
    cases = map(driving.case_of, few)
    driving.check_all([case for case in cases if case.ranks == 1], folder)


def test_a_run_of_two_processes_is_where_it_would_be_wherever_it_was_stopped(seeds):
    python(
        driving.__file__, *(seed for seed in seeds if driving.case_of(seed).ranks == 2), quiet=False
    )


def test_a_mix_that_others_drive_is_where_it_would_be_wherever_it_was_stopped(few, folder):
    cases = map(driving.mix_case_of, few)
    driving.check_all([case for case in cases if case.ranks == 1], folder)


def test_so_is_a_mix_in_two_processes(seeds):
    numbers = [seed for seed in seeds if driving.mix_case_of(seed).ranks == 2]
    python(driving.__file__, "--mix", *numbers, quiet=False)


@pytest.mark.parametrize("driver", OTHERS)
def test_so_is_a_run_of_libraries_that_only_make_frameworks_installs(seeds, driver, folder):
    if importlib.util.find_spec(OTHERS[driver]) is None:
        pytest.skip(f"{OTHERS[driver]} is not installed: make frameworks")
    cases = [driving.case_of(seed, driver) for seed in seeds]
    driving.check_all([case for case in cases if case.ranks == 1], folder)


def test_so_is_a_mix_that_the_trainer_of_transformers_drives(seeds, folder):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed: make frameworks")
    driving.check_all([driving.mix_case_of(seed, "trainer") for seed in seeds], folder)
