"""The type and shape of rows, found from the rows themselves, and from what the user says of them.

One rule, whatever the source:

- text is a row of text;
- a number is a row of one number: int64 if all are whole numbers, otherwise float64;
- a list of numbers, as in JSON, is a ragged row, of any length, and of the same types; unless
  `shape` says which one;
- an array is a row of its own type: if all arrays have one shape, rows are fixed, and if they
  differ in the first length alone, ragged;
- with `shape`, all rows must have it; a first None stands for any length: then rows are ragged,
  even if all have one length;
- with `dtype`, rows are converted to it, without changing a whole number; text is then read as a
  number, or as a list of numbers in brackets.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from sa1bpack.deriving.returned_rows import check_dense, stored_rows
from sa1bpack.errors import OptionError
from sa1bpack.format.side.spec import MAX_SIDE_ROW_BYTES, SIDE_DTYPES, TEXT
from sa1bpack.wording import brief

_EXACT = 1 << 53  # whole numbers up to this one are exact in float64
_INT64 = (-(1 << 63), (1 << 63) - 1)


class RowType:
    """The type and shape of the rows of a feature, which become known as rows are converted.

    Attributes:
        dtype: TEXT or one of SIDE_DTYPES; None as long as it is not known.
        widened: whole numbers were converted as int64 before the first other number came: they are
            to be made float64.
    """

    def __init__(
        self,
        dtype: str | None,
        shape: Sequence[int | None] | None,
        allow_nonfinite: bool = False,
    ):
        """
        Args:
            dtype: TEXT or one of SIDE_DTYPES; None: that of the rows.
            shape: shape of a row; a first None stands for any length; None: that of the rows.
            allow_nonfinite: rows may have NaN and infinities.

        Raises:
            OptionError: a value that cannot be used.
        """
        if dtype not in (None, TEXT, *SIDE_DTYPES):
            raise OptionError(
                f"dtype is {brief(dtype)}: choose {TEXT}, or one of {', '.join(SIDE_DTYPES)}"
            )
        self.dtype = dtype
        self.widened = False
        self._asked_dtype = dtype
        self._allow_nonfinite = allow_nonfinite
        self._asked_ragged: bool | None = None
        self._largest_whole = 0  # of the numbers that were converted as int64
        self._kind = ""  # what rows are, in words
        # Of a fixed row, or of an item of a ragged one; None as long as it is not known.
        self._row_shape: tuple[int, ...] | None = None
        if shape is not None:
            self._asked_ragged = tuple(shape[:1]) == (None,)
            self._row_shape = _sides(shape[1:] if self._asked_ragged else shape)
        self._ragged = bool(self._asked_ragged)
        if dtype == TEXT and shape is not None and shape != (None,):
            raise OptionError(f"shape is {brief(shape)}, but dtype is text, of any length")

    @property
    def ragged(self) -> bool:
        """True if rows have any number of items."""
        return self._ragged or self.dtype == TEXT

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a fixed row, or of one item of a ragged row."""
        return self._row_shape or ()

    @property
    def stored(self) -> np.dtype:
        """The numpy type of the values: uint8 for text, uint16 for bfloat16."""
        name = {TEXT: "uint8", "bfloat16": "uint16", None: "uint8"}.get(self.dtype, self.dtype)
        return np.dtype(name).newbyteorder("<")

    def convert(self, value: Any, variable: bool = False) -> tuple[bytes | memoryview, int]:
        """The bytes of a row, and its number of items, 1 for a single number.

        Args:
            value: text, a number, a list of numbers, an array or a tensor.
            variable: an array stands for a list of any length.

        Raises:
            ValueError: it cannot be a row, or does not fit the rows before; the message says why,
                and what to do.
        """
        if isinstance(value, str):
            return self._convert_text(value)
        if self.dtype == TEXT:
            raise ValueError(f"it is {_kind_of(value)}, but rows are text: make it text")
        if isinstance(value, bool | int | float):
            return self._convert_number(value)
        if isinstance(value, list | tuple):
            return self._convert_array(_array_of_list(value), is_list=True)
        try:
            check_dense(value)
        except OptionError as error:
            raise ValueError(f"it is {error}") from None
        array = value if hasattr(value, "detach") else np.asarray(value)
        shape = tuple(array.shape)
        try:
            array, dtype = stored_rows(array)
        except OptionError:
            array, dtype = self._other_array(value)
        array = array.reshape(shape)  # a single number became an array of one
        return self._convert_array(array, is_list=variable, dtype=dtype)

    def _other_array(self, value: Any) -> tuple[np.ndarray, str]:
        """An array of a type that rows cannot have, for which `dtype` may name another."""
        array = np.asarray(value)
        if array.dtype.kind in "US" and array.ndim == 0:
            raise ValueError("it is text in an array: give the text itself")
        if array.dtype.kind not in "bui" or self._asked_dtype is None:
            hint = f"choose `dtype`, one of {', '.join(SIDE_DTYPES)}"
            if isinstance(value, dict):
                hint = "name one of its keys, after a dot (`value`: caption.text)"
            elif array.dtype.kind not in "buif":
                hint = "give text, numbers, or lists or arrays of numbers"
            raise ValueError(f"it is {_kind_of(value)}: {hint}")
        if array.dtype == np.uint16 and self._asked_dtype == "bfloat16":
            raise ValueError(
                "it is an array of uint16: if these are bits of bfloat16, give tensors, "
                "torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)"
            )
        return array, array.dtype.name

    # ------------------------------------------------------------------------------------ by kind

    def _convert_text(self, text: str) -> tuple[bytes | memoryview, int]:
        if self._asked_dtype not in (None, TEXT):
            return self._convert_parsed(text)
        if self._asked_ragged is False or self._row_shape:
            raise ValueError("it is text, of any length, but `shape` says otherwise")
        self._is("text")
        self.dtype = TEXT
        self._row_shape = ()
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it is not text that UTF-8 can hold: {error}") from None
        _check_size(len(data))
        return data, len(data)

    def _convert_parsed(self, text: str) -> tuple[bytes | memoryview, int]:
        """A number, or a list in brackets, that was read as text."""
        stripped = text.strip()
        number: Any
        try:
            if "_" in stripped or not stripped.isascii():  # digits to Python, and to nobody else
                raise ValueError
            if stripped.startswith("["):
                number = msgspec.json.decode(stripped)
            elif stripped.lstrip("+-").isdecimal():
                number = int(stripped)
            else:
                number = float(stripped)
        except (ValueError, msgspec.DecodeError):
            raise ValueError(
                f"it is neither a number nor a list of numbers, but dtype is {self._asked_dtype}"
            ) from None
        if isinstance(number, list):
            return self._convert_array(_array_of_list(number), is_list=True)
        return self._convert_number(number)

    def _convert_number(self, number: bool | int | float) -> tuple[bytes | memoryview, int]:
        if isinstance(number, int) and not _INT64[0] <= number <= _INT64[1]:
            raise ValueError("it is beyond int64: make it text")
        return self._convert_array(np.asarray(number), is_list=False)

    def _convert_array(
        self, array: np.ndarray, is_list: bool, dtype: str | None = None
    ) -> tuple[bytes | memoryview, int]:
        """A row of numbers.

        Args:
            array: of any type of numbers; of bfloat16 its bits.
            is_list: it was a list, whose length means nothing.
            dtype: type of the array, by name; None: int64 or float64, which may be mixed.
        """
        if dtype is None and array.dtype.kind == "b" and self._asked_dtype is None:
            raise ValueError("it is true or false: choose uint8 as `dtype`, for 1 and 0")
        converted = self._typed(array, dtype)
        items = self._shaped(converted, is_list)
        _check_size(converted.nbytes)
        if not self._allow_nonfinite and not _is_finite(converted, self.dtype):
            raise ValueError(
                "it has NaN or an infinity: repair what computes it, or store such rows with "
                "allow_nonfinite=True (--allow-nonfinite)"
            )
        return np.ascontiguousarray(converted).reshape(-1).view(np.uint8).data, items

    # -------------------------------------------------------------------------------- type of rows

    def _typed(self, array: np.ndarray, dtype: str | None) -> np.ndarray:
        """The array in the type of the rows."""
        if self._asked_dtype is not None:
            return _cast(array, dtype or array.dtype.name, self._asked_dtype)
        if dtype is None:
            return self._int_or_float(array)
        self._is("arrays")
        if self.dtype is None:
            self.dtype = dtype
        elif self.dtype != dtype:
            raise ValueError(
                f"it is {dtype}, but rows before are {self.dtype}: choose the `dtype` of all"
            )
        return array

    def _int_or_float(self, array: np.ndarray) -> np.ndarray:
        """Python's numbers: int64 as long as all are whole numbers, then float64."""
        self._is("numbers")
        if not array.size:
            return array.astype(self.stored) if self.dtype else array
        whole = array.dtype.kind in "iu"
        if self.dtype is None:
            self.dtype = "int64" if whole else "float64"
        if whole:
            largest = max(int(array.max()), -int(array.min()))
            self._largest_whole = max(self._largest_whole, largest)
        elif self.dtype == "int64":
            self.dtype = "float64"
            self.widened = True
        if self.dtype == "float64" and self._largest_whole > _EXACT:
            raise ValueError(
                f"rows have {self._largest_whole}, which float64 cannot hold, and numbers that "
                "are not whole: choose `dtype`"
            )
        return array.astype(self.stored)

    def _is(self, kind: str) -> None:
        """Raise ValueError unless all rows are of this kind."""
        if self._kind not in ("", kind):
            raise ValueError(
                f"it is {kind}, but rows before are {self._kind}: rows of a feature are all text, "
                "or all numbers of one type (`dtype`)"
            )
        self._kind = kind

    # ------------------------------------------------------------------------------- shape of rows

    def _shaped(self, array: np.ndarray, is_list: bool) -> int:
        """Check the shape of a row; returns its number of items, 1 for a single number."""
        # The shape of an item of an empty list is not known.
        empty_list = is_list and not array.size and array.ndim == 1
        if empty_list and self._asked_ragged is not False:
            self._ragged = True
            return 0
        if self._row_shape is None:
            self._ragged = self._ragged or (is_list and self._asked_ragged is None)
            self._row_shape = array.shape[1:] if self._ragged else array.shape
        if not self._ragged and array.shape != self._row_shape:
            self._become_ragged(array)
        if not self._ragged:
            return len(array) if array.ndim else 1
        if array.ndim == 0 or array.shape[1:] != self._row_shape:
            expected = ", ".join(map(str, ("n", *self._row_shape)))
            raise ValueError(f"its shape is {array.shape}, but rows are ({expected}), of any n")
        return len(array)

    def _become_ragged(self, array: np.ndarray) -> None:
        """Rows of arrays, which had one shape so far, have any first length from now on."""
        assert self._row_shape is not None
        inner = self._row_shape[1:]
        may_differ = self._asked_ragged is None and self._row_shape and array.ndim
        if not may_differ or array.shape[1:] != inner:
            because = ", as `shape` says" if self._asked_ragged is False else ""
            raise ValueError(
                f"its shape is {array.shape}, but rows before are {self._row_shape}{because}; rows "
                "of one feature may differ in their first length alone"
            )
        self._ragged = True
        self._row_shape = inner


# ------------------------------------------------------------------------------------------ values


def _sides(shape: Sequence[Any]) -> tuple[int, ...]:
    """The sides of a shape. Raises OptionError for what are none."""
    for side in shape:
        if isinstance(side, bool) or not isinstance(side, int) or side < 1:
            raise OptionError(
                f"shape is {brief(shape)}: choose whole numbers from 1 on, and None for any length "
                "in the first place alone, such as (None, 4096)"
            )
    return tuple(shape)


def _check_size(nbytes: int) -> None:
    if nbytes > MAX_SIDE_ROW_BYTES:
        raise ValueError(f"it has {nbytes:,} bytes; the limit is {MAX_SIDE_ROW_BYTES:,} per row")


def _kind_of(value: Any) -> str:
    """What a value is, for a message."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return f"an array of {str(dtype).removeprefix('torch.')}"
    if isinstance(value, dict):
        return "an object with keys"
    return f"of type {type(value).__name__}"


def _is_finite(array: np.ndarray, dtype: str | None) -> bool:
    """True if an array has neither NaN nor an infinity; of bfloat16 it has the bits."""
    if dtype == "bfloat16":
        return bool(((array & 0x7F80) != 0x7F80).all())
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _array_of_list(value: Sequence[Any]) -> np.ndarray:
    """A list of numbers, or of lists of one length, as an array."""
    if any(isinstance(item, str) for item in value):
        raise ValueError(
            "it is a list of texts, but a row is one text: choose one of them, by its number in "
            "the path (`value`: captions.0), or join them"
        )
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"it is not a list of numbers, or of lists of one length: {error}"
        ) from None
    if array.dtype.kind not in "biuf" or array.dtype == np.uint64:
        raise ValueError("it is not a list of numbers of int64 or float64")
    if array.dtype.kind == "f" and (np.abs(array) >= _EXACT).any() and _has_inexact(value):
        raise ValueError(
            f"it has whole numbers beyond {_EXACT}, which float64 cannot hold beside others"
        )
    return array


def _has_inexact(value: Sequence[Any]) -> bool:
    """True if a list, or a list or array in it, has a whole number that float64 may not hold."""
    for item in value:
        if isinstance(item, list | tuple):
            if _has_inexact(item):
                return True
        elif getattr(item, "dtype", None) is not None:
            numbers = np.asarray(item)
            if numbers.dtype.kind in "iu" and ((numbers > _EXACT) | (numbers < -_EXACT)).any():
                return True
        elif isinstance(item, int) and abs(item) > _EXACT:
            return True
    return False


def _cast(array: np.ndarray, dtype: str, wanted_dtype: str) -> np.ndarray:
    """An array of numbers in another type.

    Raises ValueError if that would change a whole number, or make an infinity of a number.
    """
    if dtype == wanted_dtype:
        return array
    if wanted_dtype == TEXT:
        raise ValueError("it is a number, but dtype is text: make it text")
    values = array
    if dtype == "bfloat16":
        values = (array.astype(np.uint32) << 16).view(np.float32)
    numpy_dtype = np.dtype(ml_dtypes.bfloat16 if wanted_dtype == "bfloat16" else wanted_dtype)
    with np.errstate(all="ignore"):
        converted = values.astype(numpy_dtype)
        if numpy_dtype.kind in "iu":
            # Compared as they are: what wraps around comes back the same.
            if not np.array_equal(converted, values):
                raise ValueError(f"its numbers are not all whole numbers of {wanted_dtype}")
            return converted
        exact = converted.astype(np.float64)
        if (np.isfinite(values) & ~np.isfinite(exact)).any():
            raise ValueError(f"its numbers are beyond those of {wanted_dtype}")
        if values.dtype.kind in "iu" and not np.array_equal(exact.astype(values.dtype), values):
            raise ValueError(
                f"it has whole numbers that {wanted_dtype} rounds: choose a wider dtype"
            )
    if wanted_dtype == "bfloat16":
        return converted.view(np.uint16)
    return converted
