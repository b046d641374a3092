"""Mask grids: bits to bool, and selected cells."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.transforms.masks.cells import unpack_bits


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_bits_unpack_as_in_numpy(masks, bytes_per_row, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (masks, 8 * bytes_per_row, bytes_per_row), dtype=np.uint8)
    cells = unpack_bits(torch.from_numpy(bits))
    assert cells.dtype == torch.bool
    assert np.array_equal(cells.numpy(), np.unpackbits(bits, axis=-1, bitorder="little"))
