"""Random numbers as a function of their key."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from splitmix import word

from sa1bpack.transforms.random import uniform, words

WORD = st.integers(0, 2**64 - 1)


@settings(max_examples=30, deadline=None)
@given(WORD, WORD, st.integers(-(2**63), 2**63 - 1), WORD, st.integers(0, 5))
def test_words_equal_those_of_unbounded_integers(seed, epoch, number, draw, k):
    found = words(seed, epoch, torch.tensor([7, number]), draw, k + 1)
    assert int(found[1, k]) % 2**64 == word(seed, epoch, number, draw, k)


def test_words_do_not_change_from_release_to_release():
    assert words(1, 2, torch.tensor([3]), 4, 2).tolist() == [
        [4060307132669941398, -3347521338214000131]
    ]


def test_uniform_numbers_are_the_upper_53_bits_of_the_words():
    ids = torch.arange(50)
    bits = words(9, 0, ids, 0, 3).numpy().view(np.uint64)
    found = uniform(9, 0, ids, 0, 3)
    assert found.dtype == torch.float64
    assert np.array_equal(found.numpy(), (bits >> np.uint64(11)) / 2**53)
