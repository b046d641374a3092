"""Mask bits to bool, straight into a buffer."""

import numpy as np

from sa1bpack.kernels import memcpy, njit


@njit
def _unpack_row(source, target):
    """Unpack (b,) uint8 to (b,) uint64: a word is eight bools, from one byte of the bits."""
    for i in range(len(source)):
        # The byte eight times, with byte j keeping bit j only; adding 127 carries every nonzero
        # byte into its top bit.
        word = (np.uint64(source[i]) * np.uint64(0x0101010101010101)) & np.uint64(
            0x8040201008040201
        )
        word = (word + np.uint64(0x7F7F7F7F7F7F7F7F)) >> np.uint64(7)
        target[i] = word & np.uint64(0x0101010101010101)


@njit
def _unpack_words(bits, rows, out):
    """The rows (k,) int64 of bits (n, b) uint8 to out (k, b) uint64. Checks nothing."""
    for k in range(len(rows)):
        _unpack_row(bits[rows[k]], out[k])


@njit
def unpack_rows(source, out):
    """Unpack k rows of b bytes, one after the other at an address, to out (k, b) uint64."""
    row = np.empty(out.shape[1], np.uint8)
    for k in range(len(out)):
        memcpy(row.ctypes.data, source + k * len(row), len(row))
        _unpack_row(row, out[k])


def unpack_into(bits: np.ndarray, out: np.ndarray, rows: np.ndarray | None = None) -> None:
    """Unpack masks straight into `out`, without the GIL.

    bits  uint8 (n, Sm, Sm / 8), C-contiguous, the lowest bit first
    out   bool (k, Sm, Sm), C-contiguous
    rows  int64 (k,), the masks to unpack, each 0 to n - 1; None for all

    Callers have checked shapes and rows; even so, nothing outside the arrays is touched.
    """
    if rows is None:
        rows = np.arange(len(bits))
    if not len(rows):
        return
    if (
        rows.min() < 0
        or rows.max() >= len(bits)
        or out.shape != (len(rows), bits.shape[1], 8 * bits.shape[2])
    ):
        raise ValueError(f"cannot unpack {len(rows)} rows of {bits.shape} into {out.shape}")
    # One compiled kernel for memory maps and new arrays: to numba, read-only is another type.
    flat = np.ascontiguousarray(bits).reshape(len(bits), -1).view()
    flat.flags.writeable = False
    words = out.reshape(len(out), -1).view(np.uint64)  # little-endian: byte j is cell j
    _unpack_words(flat, rows, words)
