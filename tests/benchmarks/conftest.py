"""Complete runs of benchmarks take a minute or more: `make torture` has them."""

import pytest


@pytest.fixture(scope="session")
def complete_runs(request) -> None:
    """Skips what uses it, unless all tests of reliability run."""
    if not request.config.getoption("torture"):
        pytest.skip("a complete run of a benchmark: `make torture` has it")
