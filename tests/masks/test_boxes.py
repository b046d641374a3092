"""Boxes from runs equal the boxes around full-size masks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.masks import mask_boxes


def box_of(mask: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return [0, 0, 0, 0]
    x, y = columns[0], rows[0]
    return [x, y, columns[-1] + 1, rows[-1] + 1]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_boxes_equal_those_around_full_size_masks(data):
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    pixels = height * width
    cuts = data.draw(st.lists(st.lists(st.integers(0, pixels), max_size=8), min_size=1, max_size=4))
    ends = [[*sorted(cut), pixels] for cut in cuts]  # including runs of length 0
    offset = np.cumsum([0, *map(len, ends)])
    found = mask_boxes(np.concatenate(ends).astype(np.int32), offset, height, width)
    assert found.dtype == np.int64 and found.shape == (len(ends), 4)
    for box, one in zip(found, ends, strict=True):
        flat = np.repeat(np.arange(len(one)) % 2 == 1, np.diff(one, prepend=0))
        assert box.tolist() == box_of(flat.reshape(width, height).T)
