"""Every case that `make test` leaves to `make torture` is one that there is, and has siblings."""

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


def test_every_name_of_crossed_cases_is_a_test_with_two_parameters(request):
    """Of which some cases are left, and some are left out."""
    lines = (HERE / "crossed_cases.txt").read_text().splitlines()
    left = {line: 0 for line in lines if line and not line.startswith("#")}
    assert left
    left_out = dict(left)
    for item in request.session.items:
        name = item.nodeid.partition("[")[0]
        if name in left:
            assert len(item.callspec.params) >= 2, name
            counts = left_out if item.get_closest_marker("long") else left
            counts[name] += 1
    if len({item.path for item in request.session.items}) < 100:
        pytest.skip("not all tests are collected")
    assert all(left.values()), left
    assert all(left_out.values()), left_out
