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
    note: str = "",
    kind: type = np.ndarray,
) -> None:
    """Check that an argument is an array of a dtype and a shape.

    Args:
        name: name of the argument, for the message.
        array: the argument.
        dtype: name of the dtype, which is the same in numpy and torch, or several: "float32 or
            float64".
        shape: the shape; a letter stands for any length, "..." at its start for any number of axes.
        note: text after dtype and shape in the message.
        kind: np.ndarray or torch.Tensor.

    Raises:
        OptionError: the array is another; the message says which.
    """
    shown = f"a {type(array).__qualname__}, no {kind.__module__}.{kind.__qualname__}"
    is_of_kind = isinstance(array, kind)
    if is_of_kind:
        array_dtype = str(array.dtype).removeprefix("torch.")
        if array_dtype in dtype.split(" or ") and _fits(tuple(array.shape), shape):
            return
        shown = f"{array_dtype} {tuple(array.shape)}"
    sides = ", ".join(map(str, shape))
    if len(shape) == 1:
        sides += ","
    raise OptionError(f"{name} must be {dtype} ({sides}){note}, got {shown}")


def _fits(sides: tuple[int, ...], shape: tuple[int | str, ...]) -> bool:
    """Whether an array with these sides has a shape, see `check_array`."""
    if shape[:1] == ("...",):
        shape = shape[1:]
        sides = sides[-len(shape) :]
    return len(sides) == len(shape) and all(
        isinstance(length, str) or side == length for side, length in zip(sides, shape, strict=True)
    )


def checked_pieces(
    names: tuple[str, str], values: np.ndarray, dtype: type, offset: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """An array and the offsets of its pieces (CSR) as the kernels expect them.

    The first offset need not be 0: a slice of a larger offset array is allowed.

    Args:
        names: names of the two, for the message.
        values: `dtype` (r,), the pieces, one after the other.
        offset: int64 (n + 1,), non-decreasing and within 0 to r.

    Raises:
        OptionError: an array has the wrong dtype or the offsets do not fit.
    """
    for name, array, expected in zip(names, (values, offset), (dtype, np.int64), strict=True):
        if not isinstance(array, np.ndarray) or array.dtype != expected or array.ndim != 1:
            check_array(name, array, np.dtype(expected).name, ("n",))
    # Compared, not subtracted: a difference of two int64 may overflow.
    falls = (offset[1:] < offset[:-1]).any()
    if not len(offset) or offset[0] < 0 or offset[-1] > len(values) or falls:
        raise OptionError(
            f"{names[1]} must be non-decreasing from >= 0 to <= {len(values)}, one more than there "
            f"are masks; of its {len(offset)} the first is {offset[:1]}, the last {offset[-1:]}"
        )
    return frozen(values), frozen(offset)


@njit
def first_bad_mask(run_ends: np.ndarray, run_offset: np.ndarray, pixels: int) -> int:
    """The first mask whose ends decrease, are negative or do not reach `pixels`, or -1."""
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
    """`checked_pieces` of run ends; what the ends are is not checked."""
    return checked_pieces(("run_ends", "run_offset"), run_ends, np.int32, run_offset)


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
    mask = first_bad_mask(run_ends, run_offset, pixels)
    if mask >= 0:
        ends = run_ends[run_offset[mask] : run_offset[mask + 1]]
        shown = "it has none"
        if len(ends):
            shown = f"the last of {len(ends)} is {ends[-1]}"
        raise mask_error(
            mask,
            len(run_offset) - 1,
            f"run ends must be non-decreasing from >= 0 to the image's {pixels} pixels; {shown}. "
            "The runs belong to another image or are damaged: pack that image again",
        )
    return run_ends, run_offset


def check_out(out: np.ndarray | None, masks: int, rows: int, columns: int) -> None:
    """Raise OptionError unless `out` is None or can take packed bits.

    These are uint8 (masks, rows, ceil(columns / 8)).
    """
    if out is not None:
        check_array("out", out, "uint8", (masks, rows, -(-columns // 8)))
        if not out.flags.carray:
            raise OptionError("out must be writable and C-contiguous")


def mask_error(mask: int, masks: int, fault: str) -> MaskError:
    """A MaskError that names the mask by its index in the record and has it as `.mask`."""
    error = MaskError(f"mask {mask} of {masks}: {fault}")
    error.mask = mask
    return error
