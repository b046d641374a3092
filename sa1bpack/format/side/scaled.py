"""Rows of floats as int8 with float scales: half the bytes of float16.

Axis 0 of a row are its channels; a row of one axis is a single channel. A channel is stored as
its scale, a little-endian float32 in four int8, then its values divided by the scale and rounded.
They lie together, so that a row is read at once and its checksum is also of its scales.
"""

from math import prod

import numpy as np

SCALE_BYTES = 4
SCALE_DTYPE = np.dtype("<f4")
# Of the stored int8, either sign.
LARGEST = 127
# Of the rows that are read.
FLOAT_DTYPE = np.dtype("<f2")


def scaled_shape(row_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a stored row: (C, 4 + values of a channel), or (4 + n,) of a row of one axis."""
    channels = row_shape[:-1][:1]
    return (*channels, SCALE_BYTES + prod(row_shape[len(channels) :]))


def scaled_of(rows: np.ndarray) -> np.ndarray:
    """Finite floats (n, *row_shape) as they are stored: int8 (n, *scaled_shape)."""
    shape = (len(rows), *scaled_shape(rows.shape[1:]))
    values = rows.astype(np.float32).reshape(*shape[:-1], shape[-1] - SCALE_BYTES)
    scale = (np.abs(values).max(-1, keepdims=True) / LARGEST).astype(SCALE_DTYPE)
    np.divide(values, scale, out=values, where=scale > 0)
    stored = np.empty(shape, np.int8)
    stored[..., :SCALE_BYTES] = scale.view(np.int8)
    # A scale that is hardly above zero is not exact.
    stored[..., SCALE_BYTES:] = np.rint(values, out=values).clip(-LARGEST, LARGEST)
    return stored


def floats_of(stored: np.ndarray, row_shape: tuple[int, ...]) -> np.ndarray:
    """int8 (..., *scaled_shape) as float16 (..., *row_shape), a new array."""
    scale = np.ascontiguousarray(stored[..., :SCALE_BYTES]).view(SCALE_DTYPE)
    with np.errstate(all="ignore"):  # of what a damaged file holds, infinities included
        values = (stored[..., SCALE_BYTES:] * scale).astype(FLOAT_DTYPE)
    return values.reshape(*stored.shape[: stored.ndim - len(scaled_shape(row_shape))], *row_shape)
