"""Histograms count every value once, in bins with round edges."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sa1bpack.export.info import histogram

FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False)
WHOLE = st.integers(-1000, 100_000)


@settings(max_examples=25, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=50) | st.lists(WHOLE, min_size=1, max_size=50))
@example([150001.0, -1e-05])  # below 0 by a 1e-9 of a bin
@example([0.95, 0.99, 1.0])
def test_every_value_is_counted_in_its_bin(values):
    values = np.array(values)
    counts, edges = histogram(values, 30)
    assert counts.sum() == len(values) and (np.diff(edges) > 0).all() and len(counts) <= 32
    assert edges[0] <= values.min() and values.max() <= edges[-1]
    if values.dtype.kind == "i":
        assert (edges == np.rint(edges)).all() and values.max() < edges[-1]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_areas_are_counted_by_decades_and_zeros_are_skipped(values):
    counts, edges = histogram(np.array(values), 30, logarithmic=True)
    assert counts.sum() == np.count_nonzero(values)
    for edge in edges[::4]:
        assert edge == pytest.approx(10.0 ** round(np.log10(edge)))


def test_numbers_that_are_not_finite_are_not_counted():
    assert histogram(np.array([0.5, np.nan, 0.7, np.inf, -np.inf]), 30)[0].sum() == 2
    assert histogram(np.array([np.nan]), 30)[0].sum() == 0
