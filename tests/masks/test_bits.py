"""Packed bits ↔ bool."""

import numpy as np
import pytest

from sa1bpack.errors import OptionError
from sa1bpack.masks import pack_bits, unpack_bits


def test_column_8k_plus_b_is_bit_b_of_byte_k():
    masks = np.zeros((2, 16, 16), bool)
    masks[1, 5, 11] = True
    bits = pack_bits(masks)
    assert bits.shape == (2, 16, 2) and bits.dtype == np.uint8
    assert bits[1, 5, 1] == 1 << 3 and bits.sum() == 8


@pytest.mark.parametrize("shape", [(8, 8), (3, 16, 16), (2, 0, 24, 24), (2, 3, 8, 8)])
def test_unpacking_inverts_packing(shape):
    masks = np.random.default_rng(0).random(shape) < 0.5
    unpacked = unpack_bits(pack_bits(masks))
    assert unpacked.dtype == np.bool_ and unpacked.shape == shape
    np.testing.assert_array_equal(unpacked, masks)


def test_rows_of_other_widths_unpack_to_that_many_cells():
    bits = np.array([[0b0000_0001, 0b0000_0110]], np.uint8)
    np.testing.assert_array_equal(np.flatnonzero(unpack_bits(bits, 11)[0]), [0, 9, 10])
    assert unpack_bits(bits, 10).shape == (1, 10)
    for width in (8, 17):
        with pytest.raises(OptionError, match=f"rows of 2 bytes do not match width={width} cells"):
            unpack_bits(bits, width)
