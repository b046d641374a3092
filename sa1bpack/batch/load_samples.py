"""Samples into a batch, in one compiled call: what is not in memory is read, then all is copied.

Two calls, with Python in between, would make a thread wait for the GIL twice, and a batch of a few
samples takes hardly longer than that.
"""

import time

import numpy as np

from sa1bpack.batch.copy_samples import copy_samples
from sa1bpack.batch.read_samples import read_samples
from sa1bpack.batch.side_rows import copy_sides, read_sides
from sa1bpack.kernels import njit, types

_gettime = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.uintp))
_CLOCK = time.CLOCK_MONOTONIC


@njit(nogil=True, cache=True)
def _nanoseconds():
    now = np.empty(2, np.int64)
    _gettime(_CLOCK, now.ctypes.data)
    return now[0] * 1_000_000_000 + now[1]


@njit(nogil=True, cache=True)
def load_samples(
    context, low, first, stop, buffer, scratch, counts, spent, addresses, files, direct, spans,
    chosen, mask_spans, offsets, capacity, mask_capacity, sizes, scales, how, side, layout_stride,
    images_at, image_bytes, masks_at, mask_bytes, as_bool, fields, status,
):  # fmt: skip
    """`read_samples`, then `copy_samples`, with the arguments that are described there.

    spent  int64 (1,), out: nanoseconds that the first of them took

    Returns as `read_samples`; unless that is 0, nothing was copied.
    """
    begin = _nanoseconds()
    outcome = read_samples(
        context, low, first, stop, buffer, scratch, counts, addresses, files, direct, spans,
        chosen, mask_spans, offsets, mask_capacity, how, images_at, image_bytes, masks_at,
        mask_bytes, as_bool, fields, status,
    )  # fmt: skip
    spent[0] = _nanoseconds() - begin
    if outcome == 0:
        copy_samples(
            low, first, stop, buffer, addresses, files, spans, chosen, offsets, capacity,
            mask_capacity, sizes, scales, how, side, layout_stride, images_at, image_bytes,
            masks_at, mask_bytes, as_bool, fields, status,
        )  # fmt: skip
    return outcome


@njit(nogil=True, cache=True)
def load_sides(
    context, low, first, stop, buffer, scratch, counts, spent, addresses, files, direct, local,
    chosen, offsets, capacity, sides, status,
):  # fmt: skip
    """`read_sides`, then `copy_sides`; as `load_samples`."""
    begin = _nanoseconds()
    outcome = read_sides(
        context, low, first, stop, buffer, scratch, counts, addresses, files, direct, local,
        chosen, offsets, capacity, sides, status,
    )  # fmt: skip
    spent[0] = _nanoseconds() - begin
    if outcome == 0:
        copy_sides(
            low, first, stop, buffer, addresses, files, local, chosen, offsets, capacity, sides,
            status,
        )  # fmt: skip
    return outcome
