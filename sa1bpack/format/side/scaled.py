"""Rows of floats in scaled bytes: half the bytes of float16.

Axis 0 of a row are its channels; a row of one axis is a single one. A channel is stored as its
scale, a little-endian float32 in four bytes, then its values divided by the scale and rounded to
int8 or float8. They lie together, so that a row is read at once and its checksum is of its scales,
too.
"""

import functools
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

# What `quantize` may be → floats that are stored in a byte each, with a scale per channel, see
# `scaled_shape`: as int8, and as bits of torch.float8_e4m3fn, which numpy does not have, in uint8.
SCALED_DTYPES = {"int8": "scaled_int8", "float8": "scaled_float8_e4m3fn"}
# The numpy types of the stored bytes.
SCALED_BYTES = {"scaled_int8": "int8", "scaled_float8_e4m3fn": "uint8"}
SCALE_BYTES = 4
SCALE_DTYPE = np.dtype("<f4")
# Of the stored numbers, either sign.
LARGEST = {"scaled_int8": 127, "scaled_float8_e4m3fn": 448}
# Of the rows that are read.
FLOAT_DTYPE = np.dtype("<f2")


def scaled_shape(row_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a stored row: (C, 4 + values of a channel), or (4 + n,) of a row of one axis."""
    channels = row_shape[:-1][:1]
    return (*channels, SCALE_BYTES + prod(row_shape[len(channels) :]))


def scaled_of(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Finite floats (n, *row_shape) as they are stored: int8 or uint8 (n, *scaled_shape)."""
    shape = (len(rows), *scaled_shape(rows.shape[1:]))
    largest = LARGEST[dtype]
    values = rows.astype(np.float32).reshape(*shape[:-1], shape[-1] - SCALE_BYTES)
    scale = (np.abs(values).max(-1, keepdims=True) / largest).astype(SCALE_DTYPE)
    np.divide(values, scale, out=values, where=scale > 0)
    stored = np.empty(shape, SCALED_BYTES[dtype])
    stored[..., :SCALE_BYTES] = scale.view(stored.dtype)
    # A scale that is hardly above zero is not exact.
    values.clip(-largest, largest, out=values)
    if dtype == "scaled_int8":
        stored[..., SCALE_BYTES:] = np.rint(values, out=values)
    else:
        stored[..., SCALE_BYTES:] = values.astype(_float8()).view(np.uint8)
    return stored


@functools.cache
def _float8() -> np.dtype[Any]:
    """float8_e4m3fn, whose library is imported with the first feature that has it."""
    dtype: np.dtype[Any] = np.dtype(import_module("ml_dtypes").float8_e4m3fn)
    return dtype


@functools.cache
def _float8_values() -> np.ndarray:
    """float32 (256,): the number of each byte. Looking it up is faster than converting."""
    return np.arange(256, dtype=np.uint8).view(_float8()).astype(np.float32)


def floats_of(stored: np.ndarray, row_shape: tuple[int, ...]) -> np.ndarray:
    """int8 or uint8 (..., *scaled_shape) as float16 (..., *row_shape), a new array."""
    scale = np.ascontiguousarray(stored[..., :SCALE_BYTES]).view(SCALE_DTYPE)
    values = stored[..., SCALE_BYTES:]
    if stored.dtype == np.uint8:
        values = _float8_values().take(values)
    with np.errstate(all="ignore"):  # of what a damaged file holds, infinities included
        values = (values * scale).astype(FLOAT_DTYPE)
    return values.reshape(*stored.shape[: stored.ndim - len(scaled_shape(row_shape))], *row_shape)
