"""Stored sizes compared with exact fractions."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.errors import OptionError
from sa1bpack.pixels import FITS, stored_size

sides = st.integers(1, 70_000)


@settings(max_examples=200)
@given(sides, sides, st.integers(1, 8192), st.sampled_from(["pad", "native"]))
def test_stored_size_rounds_half_up_exactly(height, width, size, fit):
    """floor(H r + 1/2), and never below 1."""
    r = Fraction(size, max(height, width))
    expected = [max(1, floor(side * r + Fraction(1, 2))) for side in (height, width)]
    assert list(stored_size(height, width, size, fit)) == expected
    assert max(expected) == size


@pytest.mark.parametrize(
    ("height", "width", "stored"),
    [(1500, 2250, (683, 1024)), (2650, 1500, (1024, 580)), (1500, 1500, (1024, 1024))],
)
def test_sizes_of_sa1b(height, width, stored):
    """The usual ones, equal to those of segment-anything's preprocessing."""
    assert stored_size(height, width, 1024, "pad") == stored


def test_half_a_pixel_is_rounded_up():
    """2 * 1 / 4 is exactly one half."""
    assert stored_size(4, 2, 1, "pad") == (1, 1)
    assert stored_size(8, 4, 3, "pad") == (3, 2)  # 1.5


def test_squash_fills_the_square():
    """Whatever the shape of the source."""
    assert stored_size(1500, 2250, 1024, "squash") == (1024, 1024)


@pytest.mark.parametrize("arguments", [(0, 5, 8), (5, 0, 8), (5, 5, 0), (-1, 5, 8)])
@pytest.mark.parametrize("fit", FITS)
def test_sizes_below_one_are_refused(arguments, fit):
    """The message has the three values."""
    with pytest.raises(OptionError, match="at least 1"):
        stored_size(*arguments, fit)


def test_an_unknown_fit_is_refused():
    """The message names the valid ones."""
    with pytest.raises(OptionError, match="fit is 'crop': choose one of pad, squash, native"):
        stored_size(5, 5, 8, "crop")
