"""Pixels of four bytes packed into three: the same colours, and nothing else read or written.

The pixels end, or begin, at a page that cannot be touched: reading beyond them ends pytest.
"""

import numpy as np
import pytest
from guard_pages import guarded
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.pixels.pil_memory import pack_rgb

AROUND = 96  # bytes of the target's memory on either side


@pytest.mark.parametrize("guard", ["start", "end"])
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 139), st.integers(0, 3), st.integers(0, 99))
def test_the_first_three_of_each_four_bytes_are_copied(guard, h, w, more, seed):
    """`more`: pixels between the rows of the target, which stay as they are."""
    stored = np.random.default_rng(seed).integers(0, 256, (h, w, 4), np.uint8)
    rgbx = guarded(stored.reshape(-1), guard).view(np.uint32).reshape(h, w)
    row = 3 * (w + more)
    memory = np.full(h * row + 2 * AROUND, 7, np.uint8)
    rows = memory[AROUND : AROUND + h * row].reshape(h, row)
    pack_rgb(rgbx, rows.reshape(h, w + more, 3))
    expected = np.full_like(memory, 7)
    expected[AROUND : AROUND + h * row].reshape(h, row)[:, : 3 * w] = stored[..., :3].reshape(
        h, 3 * w
    )
    np.testing.assert_array_equal(memory, expected)
