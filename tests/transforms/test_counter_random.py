"""Random numbers as a function of their key."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from splitmix import uniform as expected

from sa1bpack.transforms.random import uniform

WORD = st.integers(0, 2**64 - 1)


@settings(max_examples=30)
@given(WORD, WORD, st.integers(-(2**63), 2**63 - 1), WORD, st.integers(0, 5))
def test_numbers_equal_those_of_unbounded_integers(seed, epoch, number, draw, k):
    ids = torch.tensor([7, number])
    found = uniform(seed, epoch, ids, draw, k + 1)
    assert torch.equal(found, expected(seed, epoch, ids, draw, k + 1))


def test_numbers_do_not_change_from_release_to_release():
    found = uniform(1, 2, torch.tensor([3]), 4, 2)
    assert found.dtype == torch.float64
    assert found.tolist() == [[0.2201096907099569, 0.8185305046333399]]
