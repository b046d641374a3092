"""Mask grids: bits to bool, and selected cells."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.transforms.masks.cells import grid_index, take_cells, unpack_bits


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_bits_unpack_as_in_numpy(masks, bytes_per_row, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (masks, 8 * bytes_per_row, bytes_per_row), dtype=np.uint8)
    cells = unpack_bits(torch.from_numpy(bits))
    assert cells.dtype == torch.bool
    assert np.array_equal(cells.numpy(), np.unpackbits(bits, axis=-1, bitorder="little"))


@pytest.mark.parametrize("packed", [True, False])
def test_cells_equal_those_that_numpy_takes_mask_by_mask(packed, device):
    rng = np.random.default_rng(1)
    cells = rng.random((5, 16, 16)) < 0.5
    owner = np.array([0, 2, 2, 1, 0])
    columns, rows = rng.integers(0, 16, (3, 9)), rng.integers(0, 16, (3, 20))
    inside = rng.random((3, 9)) < 0.7, rng.random((3, 20)) < 0.7
    masks = np.packbits(cells, axis=-1, bitorder="little") if packed else cells
    found = take_cells(
        *(torch.from_numpy(array).to(device) for array in (masks, owner, columns, rows)),
        tuple(torch.from_numpy(keep).to(device) for keep in inside),
    )
    assert found.dtype == torch.bool
    for k, b in enumerate(owner):
        expected = cells[k][np.ix_(rows[b], columns[b])] & np.outer(inside[1][b], inside[0][b])
        assert np.array_equal(found[k].cpu().numpy(), expected)


def test_a_position_is_in_the_cell_below_it_or_in_the_nearest_one():
    at = torch.tensor([-3.0, 0.0, 0.99, 1.0, 7.5, 8.0, 99.0], dtype=torch.float64)
    assert grid_index(at, 8).tolist() == [0, 0, 0, 1, 7, 7, 7]
