"""Every case that `make test` leaves to `make torture` is one that there is."""

import fnmatch
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_every_pattern_of_long_cases_matches_a_test(request):
    """Of those files of tests that this run has collected."""
    lines = (HERE / "long_cases.txt").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns
    names = [item.nodeid for item in request.session.items]
    collected = {name.partition("::")[0] for name in names}
    if len(collected) < 100:
        pytest.skip("not all tests are collected")
    missing = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
    assert missing == []
