"""Histograms count every value once, in bins with round edges."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sa1bpack.export.survey import histogram

FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False)


@settings(max_examples=25, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=50))
@example([150001.0, -1e-05])  # below 0 by a 1e-9 of a bin
@example([0.95, 0.99, 1.0])
def test_every_value_is_counted_in_its_bin(values):
    values = np.array(values)
    shape = histogram(values)
    assert shape.counts.sum() == len(values) and shape.left_out == 0
    assert (np.diff(shape.edges) > 0).all() and len(shape.counts) <= 32
    assert shape.edges[0] <= values.min() and values.max() <= shape.edges[-1]
    counts, _ = np.histogram(values, shape.edges)
    assert shape.counts.tolist() == counts.tolist()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-1000, 100_000), min_size=1, max_size=50))
def test_whole_numbers_are_counted_as_numpy_counts_them(values):
    values = np.array(values)
    shape = histogram(values)
    counts, _ = np.histogram(values, [*shape.edges[:-1], np.nextafter(shape.edges[-1], 1e9)])
    assert shape.counts.tolist() == counts.tolist()
    assert (shape.edges == np.rint(shape.edges)).all()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_areas_are_counted_by_decades_and_zeros_are_skipped(values):
    values = np.array(values)
    shape = histogram(values, logarithmic=True)
    assert shape.counts.sum() + shape.left_out == len(values)
    assert shape.left_out == (values == 0).sum()
    counts, _ = np.histogram(values[values > 0], shape.edges)
    assert shape.counts.tolist() == counts.tolist()
    for edge in shape.edges[::4]:
        assert edge == pytest.approx(10.0 ** round(np.log10(edge)))


def test_numbers_that_are_not_finite_are_counted_separately():
    shape = histogram(np.array([0.5, np.nan, 0.7, np.inf, -np.inf]))
    assert shape.counts.sum() == 2 and shape.left_out == 3
    assert histogram(np.array([np.nan])).counts.sum() == 0
