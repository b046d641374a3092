"""Fixtures that every test folder shares."""

from pathlib import Path

import pytest

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture(scope="session")
def sample_tar() -> Path:
    """Path of the sample tar: three freely licensed photographs in SA-1B's layout."""
    return SAMPLES / "sa_000000.tar"
