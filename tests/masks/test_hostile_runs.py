"""Counts and offsets that would lead a kernel outside its arrays, or keep it busy forever."""

import numpy as np
import pytest
from mask_oracle import number

from sa1bpack.errors import MaskError, OptionError
from sa1bpack.masks import encode_counts, mask_area, parse_counts, rasterize, take_masks

OFFSETS = [
    [0, 2**63 - 1, -5, 3],  # no difference of adjacent offsets is negative in int64
    [0, 2**62, -(2**62) - 2, 3],
    [0, -(2**63), 3],
    [2, 2**63 - 1, -(2**63), 3],
    [0, 9],
    [-1, 3],
    [2, 1, 3],
]


@pytest.mark.parametrize("offset", OFFSETS)
def test_offsets_that_decrease_or_leave_their_array_are_refused(offset):
    offset = np.array(offset, np.int64)
    ends, text = np.array([1, 2, 4], np.int32), np.frombuffer(b"123", np.uint8)
    uses = (
        lambda: parse_counts(text, offset, 4),
        lambda: encode_counts(ends, offset),
        lambda: mask_area(ends, offset),
        lambda: take_masks(ends, offset, np.zeros(1, np.int64)),
        lambda: rasterize(ends, offset, 2, 2, 8),
    )
    for use in uses:
        with pytest.raises(OptionError, match="_offset must be non-decreasing"):
            use()


@pytest.mark.parametrize("value", [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**58, -(2**58)])
@pytest.mark.parametrize("repeats", [1, 2, 16, 40])
def test_counts_that_would_overflow_32_or_64_bits_are_refused(value, repeats):
    """Repeated differences add up: the 40th count would be 20 * 2^58, beyond int64."""
    text = np.frombuffer(b"000" + number(value) * repeats, np.uint8)
    with pytest.raises(MaskError, match=r"cover \d+ pixels|are not COCO's counts"):
        parse_counts(text, np.array([0, len(text)]), 2**31 - 2)
