"""Fixtures and options that every test folder shares."""

from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torture", "reliability tests, see docs/reliability.md")
    group.addoption(
        "--torture", action="store_true", help="run tests/torture in full, as `make torture` does"
    )
    group.addoption(
        "--torture-seed", type=int, default=0, help="of all that is random there (default: 0)"
    )


@pytest.fixture(scope="session")
def sample_tar() -> Path:
    """Path of the sample tar: three freely licensed photographs in SA-1B's layout."""
    return SAMPLES / "sa_000000.tar"
