"""Distances within masks, compared with SciPy's exact Euclidean distance transform."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import distance_transform_edt

from sa1bpack.errors import OptionError
from sa1bpack.masks.distance import squared_distances

GRIDS = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=100)
@given(GRIDS.flatmap(lambda shape: arrays(np.bool_, shape)))
def test_distances_are_those_of_scipy_with_everything_outside_the_border(masks):
    expected = [distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1] ** 2 for mask in masks]
    assert (squared_distances(masks) == np.round(expected)).all()


@pytest.mark.parametrize("share", [0.9, 0.999, 1.0])
def test_so_they_are_on_the_grid_of_a_model(share):
    masks = np.random.default_rng(0).random((2, 256, 200)) < share
    expected = [distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1] ** 2 for mask in masks]
    assert (squared_distances(masks) == np.round(expected)).all()


@pytest.mark.parametrize(
    "masks", [np.zeros((2, 2), np.bool_), np.zeros((1, 2, 2), np.uint8)], ids=["2-D", "uint8"]
)
def test_what_is_no_batch_of_masks_is_refused(masks):
    with pytest.raises(OptionError, match="give bool"):
        squared_distances(masks)
