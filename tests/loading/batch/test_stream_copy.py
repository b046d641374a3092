"""Copies past the caches move every byte, whatever the alignment and the length, and no other."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sa1bpack.loading.batch.put import LEAST, stream_copy

# Of them those around the switch from a plain copy.
COUNTS = st.sampled_from([LEAST - 1, LEAST, LEAST + 63, LEAST + 64]) | st.integers(0, 3 * LEAST)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 130), st.integers(0, 130), COUNTS)
def test_the_copy_is_exact_and_stays_within_its_bounds(ahead, skipped, count):
    source = np.random.default_rng(count).integers(1, 256, count + 131, dtype=np.uint8)
    target = np.zeros(count + 300, np.uint8)
    stream_copy(target.ctypes.data + ahead, source.ctypes.data + skipped, count)
    assert np.array_equal(target[ahead : ahead + count], source[skipped : skipped + count])
    assert not target[:ahead].any() and not target[ahead + count :].any()
