"""Fixtures and options that every test folder shares."""

import fnmatch
import functools
import gc
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

SAMPLES = Path(__file__).parent / "samples"

# A job in the background of a shell is started with Ctrl-C ignored, and so would be what it starts:
# tests of interrupts would wait for an end that never comes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a CUDA device, Triton's kernels run in its interpreter. It decides that when it is
# imported, which torch and other libraries may do at any time. No call to CUDA says whether there
# is one: after such a call, no child can be forked. On Windows (WSL 2) every vendor has the same
# device, and the driver of NVIDIA brings its library.
ON_WINDOWS = Path("/dev/dxg").exists() and Path("/usr/lib/wsl/lib/libcuda.so.1").exists()
HAS_CUDA = ON_WINDOWS or any(Path("/dev").glob("nvidia[0-9]*"))
os.environ.setdefault("TRITON_INTERPRET", "0" if HAS_CUDA else "1")

# Where several processes run tests, each has one processor: threads of torch that wait for others
# take those of the others. It reads this when it is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# No example has a time limit: how long one takes depends on what else the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torture", "reliability tests, see docs/reliability.md")
    group.addoption(
        "--torture", action="store_true", help="run tests/torture in full, as `make torture` does"
    )
    group.addoption(
        "--torture-seed", type=int, default=0, help="of all that is random there (default: 0)"
    )


def lines_of(name: str) -> list[str]:
    """The lines of a list in this folder, without comments."""
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@functools.cache
def long_case() -> re.Pattern:
    """Matches the names of the tests that `make torture` alone runs."""
    return re.compile("|".join(map(fnmatch.translate, lines_of("long_cases.txt"))))


def cover(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Few of the cases of a test: every value of every parameter is in one of them."""
    # Each value is one object, in all cases.
    values = {
        case: {(name, id(value)) for name, value in case.callspec.params.items()} for case in cases
    }
    chosen = []
    missing = set().union(*values.values())
    while missing:
        best = max(cases, key=lambda case: len(values[case] & missing))
        missing -= values[best]
        chosen.append(best)
    return chosen


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of long_cases.txt, and what is left out of those of crossed_cases.txt."""
    crossed = {line: [] for line in lines_of("crossed_cases.txt")}
    for item in items:
        test = item.nodeid.partition("[")[0]
        if long_case().match(item.nodeid):
            item.add_marker("long")
        elif test in crossed and item.get_closest_marker("cuda") is None:
            crossed[test].append(item)
    for cases in crossed.values():
        chosen = set(cover(cases))
        for item in cases:
            if item not in chosen:
                item.add_marker("long")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that `make torture` runs, and those that need a CUDA device where there is none;
    with one, they would pass with interpreted kernels."""
    if item.get_closest_marker("long") is not None and not item.config.getoption("torture"):
        pytest.skip("long: make torture")
    if item.get_closest_marker("cuda") is None:
        return
    import torch  # here, after TRITON_INTERPRET is set

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if os.environ["TRITON_INTERPRET"] != "0":
        pytest.fail("Triton's kernels would be interpreted: set TRITON_INTERPRET=0")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Garbage collections pass over what is there before the first test: millions of objects of
    torch, numba and the collected tests, which take a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def sample_tar() -> Path:
    """Path of the sample tar: three freely licensed photographs in SA-1B's layout."""
    return SAMPLES / "sa_000000.tar"


@pytest.fixture(scope="session")
def ray_address():
    """Address of a Ray cluster of a head and one node, whose tasks find the modules of tests."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: make ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        cluster.add_node(num_cpus=4, memory=10**10)
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_flushed():
    """Flushing to the disk takes most of the time, and only a power cut shows the difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def workers_end_soon():
    """torch kills a worker that does not end with its DataLoader: after 5 s, and here after 1."""
    with pytest.MonkeyPatch.context() as patch:
        if "torch.utils.data" in sys.modules:
            patch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 1.0)
        yield


@pytest.fixture(autouse=True)
def signals_restored():
    """The command handles signals its own way, and a test calls it within this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)
