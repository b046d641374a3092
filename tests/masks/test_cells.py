"""Bits ↔ bool, unpacked into place; grids looked up; distances: compared with numpy and SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import distance_transform_edt

from sa1bpack import OptionError
from sa1bpack.masks import pack_bits, unpack_bits
from sa1bpack.masks.cells import fill_cells, squared_distances, take_cells

SIDES = st.integers(1, 40)
SEEDS = st.integers(0, 2**32 - 1)


def sparse_cells(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Noise of any density, with empty rows and empty masks."""
    cells = random.random(shape) < random.random()
    cells[random.random(shape[:2]) < 0.5] = False
    cells[random.random(shape[0]) < 0.2] = False
    return cells


def old_array(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """What was in memory before."""
    return random.random(shape) < 0.5


def check(found: np.ndarray, counts: np.ndarray, before: np.ndarray, places, keep, cells) -> None:
    """The masks are in their places, cut off at `keep`; the others are as they were."""
    expected = before.copy()
    expected[places] = cells
    expected[places, keep[0] :], expected[places, :, keep[1] :] = False, False
    assert np.array_equal(found, expected)
    assert found.view(np.uint8).max(initial=0) <= 1
    assert counts[places].tolist() == expected[places].sum((1, 2)).tolist()


@settings(max_examples=30)
@given(SEEDS, st.integers(0, 5), SIDES, SIDES, st.floats(0, 1), st.floats(0, 1))
def test_bits_are_unpacked_into_their_places_and_counted(seed, masks, height, width, down, across):
    random = np.random.default_rng(seed)
    cells = sparse_cells(random, (masks, height, width))
    before = old_array(random, (masks + 3, height, width))
    places = random.permutation(masks + 3)[:masks]
    keep = round(down * height), round(across * width)
    found = before.copy()
    counts = np.zeros(masks + 3, np.int64)
    bits = np.packbits(cells, axis=-1, bitorder="little")
    fill_cells(bits, places, keep, found.view(np.uint8), counts)
    check(found, counts, before, places, keep, cells)


@pytest.mark.parametrize("packed", [True, False])
@settings(max_examples=20)
@given(SEEDS, st.integers(0, 4), SIDES, st.integers(1, 5), SIDES, SIDES)
def test_selected_cells_are_those_that_numpy_takes(packed, seed, masks, side, octets, h, w):
    random = np.random.default_rng(seed)
    cells = sparse_cells(random, (masks, side, 8 * octets))
    rows = np.sort(random.integers(0, side, h))
    columns = random.integers(0, 8 * octets, w)
    before = old_array(random, (masks + 2, h, w))
    places = random.permutation(masks + 2)[:masks]
    keep = int(random.integers(0, h + 1)), int(random.integers(0, w + 1))
    found = before.copy()
    counts = np.zeros(masks + 2, np.int64)
    source = np.packbits(cells, axis=-1, bitorder="little") if packed else cells.view(np.uint8)
    take_cells(source, packed, places, rows, columns, keep, found.view(np.uint8), counts)
    check(found, counts, before, places, keep, cells[:, rows][:, :, columns])


def test_column_8k_plus_b_is_bit_b_of_byte_k():
    masks = np.zeros((2, 16, 16), bool)
    masks[1, 5, 11] = True
    bits = pack_bits(masks)
    assert bits.shape == (2, 16, 2) and bits.dtype == np.uint8
    assert bits[1, 5, 1] == 1 << 3 and bits.sum() == 8


@pytest.mark.parametrize("shape", [(8, 8), (2, 0, 24, 24), (2, 3, 8, 8)])
def test_unpacking_inverts_packing(shape):
    masks = np.random.default_rng(0).random(shape) < 0.5
    np.testing.assert_array_equal(unpack_bits(pack_bits(masks)), masks, strict=True)


def test_rows_of_other_widths_unpack_to_that_many_cells():
    bits = np.array([[0b0000_0001, 0b0000_0110]], np.uint8)
    np.testing.assert_array_equal(np.flatnonzero(unpack_bits(bits, 11)[0]), [0, 9, 10])
    assert unpack_bits(bits, 10).shape == (1, 10)
    for width in (8, 17):
        with pytest.raises(OptionError, match=f"rows of 2 bytes do not match width={width} cells"):
            unpack_bits(bits, width)


GRIDS = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 12))


@settings(max_examples=50)
@given(GRIDS.flatmap(lambda shape: arrays(np.bool_, shape)))
def test_distances_are_those_of_scipy_with_everything_outside_the_border(masks):
    expected = [distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1] ** 2 for mask in masks]
    assert (squared_distances(masks) == np.round(expected)).all()
