"""Packed mask bits to bool and back.

One bit per cell, row by row, lowest bit first: cell (i, j) is bit ``j % 8`` of byte ``(i, j // 8)``
(numpy's ``bitorder="little"``), so that a device unpacks a byte with shifts of 0 to 7.
"""

import numpy as np

from sa1bpack.arguments import checks_options
from sa1bpack.errors import OptionError


@checks_options
def pack_bits(masks: np.ndarray) -> np.ndarray:
    """Pack bool (..., Sm, Sm) into uint8 (..., Sm, Sm // 8).

    Raises:
        OptionError: the dtype is not bool, or the last axis is not a multiple of 8.

    Examples:
        >>> mask = np.zeros((1, 8, 8), bool)
        >>> mask[0, 0, :3] = True
        >>> sa1bpack.masks.pack_bits(mask)[0, 0]
        array([7], dtype=uint8)
    """
    if masks.dtype != np.bool_ or masks.ndim == 0 or masks.shape[-1] % 8:
        raise OptionError(
            "masks must be bool with a last axis that is a multiple of 8, "
            f"got {masks.dtype} {masks.shape}"
        )
    return np.packbits(masks, axis=-1, bitorder="little")


@checks_options
def unpack_bits(bits: np.ndarray, width: int | None = None) -> np.ndarray:
    """Unpack uint8 (..., h, ceil(w / 8)) into bool (..., h, w).

    `width` is w, the cells per row; by default all bits of the last axis are cells.

    Raises:
        OptionError: the dtype is not uint8, there is no axis, or rows do not have ceil(width / 8)
            bytes.

    Examples:
        >>> sa1bpack.masks.unpack_bits(np.array([[5]], np.uint8), width=4)
        array([[ True, False,  True, False]])
    """
    if bits.dtype != np.uint8 or bits.ndim == 0:
        raise OptionError(f"bits must be a uint8 array, got {bits.dtype} {bits.shape}")
    if width is not None and bits.shape[-1] != -(-width // 8):
        raise OptionError(f"rows of {bits.shape[-1]} bytes do not match width={width} cells")
    return np.unpackbits(bits, axis=-1, count=width, bitorder="little").view(np.bool_)
