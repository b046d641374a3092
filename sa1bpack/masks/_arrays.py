"""Checks on the arrays handed to the kernels, so that no kernel reads or writes outside them."""

import numpy as np
from numba import njit

from sa1bpack.errors import MaskError, OptionError

MAX_RUN_END = 2**31 - 1  # run ends are int32
MAX_SIDE = 65_535  # the longest side a JPEG can have; keeps every area below 2**32


def read_only(name: str, array: np.ndarray, dtype: type) -> np.ndarray:
    """Return a C-contiguous, read-only view of a 1-D array.

    Read-only because numba compiles a kernel once more for each mix of writable and read-only
    arguments; with views of one kind there is one compiled kernel for memory maps and fresh arrays.

    Raises:
        OptionError: `array` is not a 1-D array of `dtype`.
    """
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array)
        raise OptionError(f"{name} must be a 1-D array of {np.dtype(dtype)}, got {found}")
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def check_offsets(name: str, offset: np.ndarray, length: int) -> None:
    """Check that `offset` (int64, n + 1) rises and stays within an array of `length` elements.

    The first offset need not be 0: a slice of a larger CSR offset array is fine.

    Raises:
        OptionError: it does not.
    """
    if len(offset) == 0:
        raise OptionError(f"{name} is empty; it must hold one offset more than there are masks")
    if offset[0] < 0 or offset[-1] > length or (len(offset) > 1 and np.diff(offset).min() < 0):
        raise OptionError(
            f"{name} must rise from >= 0 to <= {length}; it goes from {offset[0]} to {offset[-1]}"
        )


@njit(nogil=True, cache=True)
def _first_bad_mask(run_ends, run_offset, pixels):
    """Return the first mask whose ends fall, start below 0 or do not reach `pixels`; -1 if none."""
    for m in range(len(run_offset) - 1):
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        if len(ends) == 0 or ends[0] < 0 or ends[-1] != pixels:
            return m
        step = np.int64(0)
        for k in range(1, len(ends)):
            step |= np.int64(ends[k]) - ends[k - 1]  # negative once a step is: a loop of SIMD code
        if step < 0:
            return m
    return -1


def check_runs(run_ends: np.ndarray, run_offset: np.ndarray, pixels: int) -> None:
    """Check that every mask's run ends never fall and that the last one equals `pixels`.

    Raises:
        MaskError: a mask's ends do not; its index is in the message and in the error's `mask`.
    """
    mask = _first_bad_mask(run_ends, run_offset, pixels)
    if mask >= 0:
        ends = run_ends[run_offset[mask] : run_offset[mask + 1]]
        found = f"the last of {len(ends)} is {ends[-1]}" if len(ends) else "there are none"
        raise mask_error(
            mask,
            len(run_offset) - 1,
            f"run ends must rise from >= 0 to the image's {pixels} pixels; {found}. "
            "The runs belong to another image or are damaged: pack that image again",
        )


def mask_error(mask: int, masks: int, fault: str) -> MaskError:
    """Return a MaskError that names the mask by its index in the record, also as `.mask`."""
    error = MaskError(f"mask {mask} of {masks}: {fault}")
    error.mask = mask
    return error
