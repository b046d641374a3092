"""Checks of the arrays passed to kernels, so that no kernel reads or writes outside them."""

from typing import Any

import numpy as np

from sa1bpack.errors import MaskError, OptionError
from sa1bpack.kernels import njit

MAX_RUN_END = 2**31 - 1  # run ends are int32
MAX_SIDE = 65_535  # the longest side a JPEG can have; keeps every area below 2**32


def frozen(array: np.ndarray, dtype: type | None = None) -> np.ndarray:
    """A read-only, C-contiguous view, or a copy of another dtype.

    Numba compiles a kernel again for each combination of writable and read-only arguments: this way
    memory maps and new arrays share one compiled kernel.
    """
    view = np.ascontiguousarray(array, dtype).view()
    view.flags.writeable = False
    return view


def check_array(
    name: str,
    array: Any,
    dtype: str,
    shape: tuple[int | str, ...],
    what: str = "",
    kind: type = np.ndarray,
) -> None:
    """Check that an argument is an array of a dtype and a shape.

    Args:
        dtype: its name, which is the same in numpy and torch, or several, "float32 or float64".
        shape: a letter stands for any length, "..." at its start for any number of axes.
        what: text after dtype and shape in the message.
        kind: np.ndarray or torch.Tensor.

    Raises:
        OptionError: it is not; the message has the dtype and shape found.
    """
    if is_kind := isinstance(array, kind):
        dtypes, sides, ends = dtype.split(" or "), tuple(array.shape), shape
        if shape[:1] == ("...",):
            sides, ends = sides[1 - len(shape) :], shape[1:]
        fits = len(sides) == len(ends) and all(
            side == end or isinstance(end, str) for side, end in zip(sides, ends, strict=True)
        )
        if fits and str(array.dtype).removeprefix("torch.") in dtypes:
            return
        found = f"{array.dtype} {tuple(array.shape)}".removeprefix("torch.")
    else:
        found = f"a {type(array).__module__}.{type(array).__qualname__}".replace("builtins.", "")
    expected = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    what_kind = "" if is_kind else f"a {kind.__module__}.{kind.__qualname__} of "
    raise OptionError(f"{name} must be {what_kind}{dtype} {expected}{what}, got {found}")


def read_only(name: str, array: Any, dtype: type) -> np.ndarray:
    """A frozen view of a 1-D array. Raises OptionError for anything but an array of `dtype`."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
        check_array(name, array, np.dtype(dtype).name, ("n",))
    return frozen(array)


def check_offsets(name: str, offset: np.ndarray, length: int) -> None:
    """Check that `offset` (int64, n + 1) is non-decreasing and within 0 to `length`.

    The first offset need not be 0: a slice of a larger CSR offset array is allowed.

    Raises:
        OptionError: it is not.
    """
    # Compared, not subtracted: a difference of two int64 may overflow.
    if not len(offset) or offset[0] < 0 or offset[-1] > length or (offset[1:] < offset[:-1]).any():
        raise OptionError(
            f"{name} must be non-decreasing from >= 0 to <= {length}, one more than there are "
            f"masks; of its {len(offset)} the first is {offset[:1]}, the last {offset[-1:]}"
        )


@njit
def _first_bad_mask(run_ends, run_offset, pixels):
    """Return the first mask whose ends decrease, are negative or do not reach `pixels`, or -1."""
    for m in range(len(run_offset) - 1):
        ends = run_ends[run_offset[m] : run_offset[m + 1]]
        if len(ends) == 0 or ends[0] < 0 or ends[-1] != pixels:
            return m
        step = np.int64(0)
        for k in range(1, len(ends)):
            step |= np.int64(ends[k]) - ends[k - 1]  # negative once a step is: compiles to SIMD
        if step < 0:
            return m
    return -1


def checked_runs(run_ends: np.ndarray, run_offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return run ends and offsets as the kernels expect them; what the ends are is not checked.

    Raises:
        OptionError: an array has the wrong dtype or the offsets do not fit the runs.
    """
    run_ends = read_only("run_ends", run_ends, np.int32)
    run_offset = read_only("run_offset", run_offset, np.int64)
    check_offsets("run_offset", run_offset, len(run_ends))
    return run_ends, run_offset


def check_image_runs(
    run_ends: np.ndarray, run_offset: np.ndarray, pixels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Check the runs of an image's masks and return them as the kernels expect them.

    Raises:
        MaskError: a mask's run ends decrease or do not end with `pixels`; its index is in the
            message and in `.mask`.
        OptionError: an array has the wrong dtype or the offsets do not fit the runs.
    """
    run_ends, run_offset = checked_runs(run_ends, run_offset)
    mask = _first_bad_mask(run_ends, run_offset, pixels)
    if mask >= 0:
        ends = run_ends[run_offset[mask] : run_offset[mask + 1]]
        found = f"the last of {len(ends)} is {ends[-1]}" if len(ends) else "it has none"
        raise mask_error(
            mask,
            len(run_offset) - 1,
            f"run ends must be non-decreasing from >= 0 to the image's {pixels} pixels; {found}. "
            "The runs belong to another image or are damaged: pack that image again",
        )
    return run_ends, run_offset


def bits_for(masks: int, rows: int, columns: int, out: np.ndarray | None) -> np.ndarray:
    """Return `out`, or a new array, for packed bits: uint8 (masks, rows, ceil(columns / 8)).

    Raises:
        OptionError: `out` cannot be used.
    """
    shape = (masks, rows, -(-columns // 8))
    if out is None:
        return np.empty(shape, np.uint8)
    if out.dtype != np.uint8 or out.shape != shape or not out.flags.carray:
        raise OptionError(
            f"out must be a writable C-contiguous array of uint8 {shape}, "
            f"got {out.dtype} {out.shape}"
        )
    return out


def mask_error(mask: int, masks: int, fault: str) -> MaskError:
    """Return a MaskError that names the mask by its index in the record and has it as `.mask`."""
    error = MaskError(f"mask {mask} of {masks}: {fault}")
    error.mask = mask
    return error
