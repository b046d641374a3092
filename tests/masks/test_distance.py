"""Distances within masks, compared with SciPy's exact Euclidean distance transform."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import distance_transform_edt

from sa1bpack.masks.cells import squared_distances

GRIDS = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=100)
@given(GRIDS.flatmap(lambda shape: arrays(np.bool_, shape)))
def test_distances_are_those_of_scipy_with_everything_outside_the_border(masks):
    expected = [distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1] ** 2 for mask in masks]
    assert (squared_distances(masks) == np.round(expected)).all()
