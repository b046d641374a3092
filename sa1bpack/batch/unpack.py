"""Mask bits to bool, straight into a buffer."""

import numpy as np

from sa1bpack.kernels import njit


@njit(nogil=True, cache=True)
def unpack_words(bits, rows, out):
    """The kernel: bits (n, b) uint8, rows (k,) int64, out (k, b) uint64. Checks nothing.

    A word of `out` is eight bools, from one byte of the bits.
    """
    for k in range(len(rows)):
        source, target = bits[rows[k]], out[k]
        for i in range(len(source)):
            # The byte eight times, with byte j keeping bit j only; adding 127 carries every nonzero
            # byte into its top bit.
            word = (np.uint64(source[i]) * np.uint64(0x0101010101010101)) & np.uint64(
                0x8040201008040201
            )
            word = (word + np.uint64(0x7F7F7F7F7F7F7F7F)) >> np.uint64(7)
            target[i] = word & np.uint64(0x0101010101010101)


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
    if rows.min() < 0 or rows.max() >= len(bits) or out.shape != (
        len(rows), bits.shape[1], 8 * bits.shape[2]
    ):  # fmt: skip
        raise ValueError(f"cannot unpack {len(rows)} rows of {bits.shape} into {out.shape}")
    # One compiled kernel for memory maps and new arrays: to numba, read-only is another type.
    flat = np.ascontiguousarray(bits).reshape(len(bits), -1).view()
    flat.flags.writeable = False
    words = out.reshape(len(out), -1).view(np.uint64)  # little-endian: byte j is cell j
    unpack_words(flat, rows, words)
